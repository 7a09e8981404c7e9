"""Prompts made from templates, whose lengths follow from the request whatever the LLM: 200 words are 200 words.

They are no LLM's answers. They teach a network what the features of `predictors/stated_length.py` mean where real
prompts are few, in six languages, and are marked by the corpus MADE and by ids such as "de/words/17". Nothing is scored
or calibrated on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lengthwise.predictors.stated_length import WORD_TOKENS
from lengthwise.training.encoder.pack import MADE
from lengthwise.workloads import LengthSamples

LICENCE: Final = "made from templates of this package; no prompt or answer of others"

PROMPTS: Final = 2_400
ANSWERED_BY: Final = 4
"""LLMs that each prompt is shown with, drawn at random: the length does not depend on the LLM."""
_SPREAD: Final = 0.2
"""Std of the log length around what is asked."""
_LONGEST: Final = 8_000
_SAMPLES: Final = 2

_TOPICS: Final = {
    "en": "the history of bread|volcanoes|learning to swim|renewable energy|the moon landing|time management|"
    "a lost dog|chess openings|the immune system|a trip to the sea|inflation|good sleep|the printing press|bees",
    "de": "die Geschichte des Brotes|Vulkane|erneuerbare Energie|die Mondlandung|einen verlorenen Hund|das Immunsystem|"
    "guten Schlaf|den Buchdruck|Bienen|eine Reise ans Meer|die Inflation|Zeitmanagement",
    "fr": "l'histoire du pain|les volcans|les énergies renouvelables|un chien perdu|le système immunitaire|le sommeil|"
    "l'imprimerie|les abeilles|un voyage à la mer|l'inflation|la gestion du temps|les échecs",
    "es": "la historia del pan|los volcanes|las energías renovables|un perro perdido|el sistema inmunitario|el sueño|"
    "la imprenta|las abejas|un viaje al mar|la inflación|la gestión del tiempo|el ajedrez",
    "zh": "面包的历史|火山|可再生能源|登月|一只走失的狗|免疫系统|良好的睡眠|印刷术|蜜蜂|海边旅行|通货膨胀|时间管理",
    "ja": "パンの歴史|火山|再生可能エネルギー|月面着陸|迷子の犬|免疫システム|良い睡眠|印刷術|ミツバチ|海への旅|"
    "インフレ|時間管理",
}
_TEXTS: Final = {
    "en": "The river was quiet that morning. Nobody had expected the boats to return before noon, yet there they were.",
    "de": "Der Fluss war an diesem Morgen still. Niemand hatte die Boote vor Mittag erwartet, doch da waren sie.",
    "fr": "La rivière était calme ce matin-là. Personne n'attendait les bateaux avant midi, et pourtant ils étaient "
    "là.",
    "es": "El río estaba tranquilo esa mañana. Nadie esperaba los barcos antes del mediodía, pero allí estaban.",
    "zh": "那天早晨河面很安静。没有人料到船会在中午之前回来,可是它们就在那里。",
    "ja": "その朝、川は静かだった。昼前に船が戻るとは誰も思っていなかったが、船はそこにいた。",
}
_TEMPLATES: Final[dict[str, dict[str, str]]] = {
    "words": {
        "en": "Write an essay of {n} words on {topic}.|Give me a {n}-word text about {topic}.|"
        "Write about {topic} in about "
        "{n} words.|Compose an article about {topic}. Length: {n} words.",
        "de": "Schreibe einen Aufsatz von {n} Wörtern über {topic}.|"
        "Verfasse einen Text über {topic} mit etwa {n} Wörtern.",
        "fr": "Écris un texte de {n} mots sur {topic}.|Rédige un article d'environ {n} mots sur {topic}.",
        "es": "Escribe un texto de {n} palabras sobre {topic}.|Redacta un artículo de unas {n} palabras sobre {topic}.",
        "zh": "写一篇关于{topic}的{n}字文章。|以{topic}为题写一篇短文，{n}字左右。",
        "ja": "{topic}について{n}字の文章を書いてください。|{topic}について{n}文字程度で説明してください。",
    },
    "at_most": {
        "en": "Describe {topic} in at most {n} words.|Tell me about {topic}. Stay under {n} words.|"
        "Explain {topic} in no more "
        "than {n} words.",
        "de": "Beschreibe {topic} in höchstens {n} Wörtern.|Erkläre {topic} mit maximal {n} Wörtern.",
        "fr": "Décris {topic} en {n} mots maximum.|Explique {topic} en moins de {n} mots.",
        "es": "Describe {topic} en un máximo de {n} palabras.|Explica {topic} en menos de {n} palabras.",
        "zh": "请介绍{topic}，不超过{n}字。|用{n}字以内说明{topic}。",
        "ja": "{topic}を{n}字以内で説明してください。|{topic}について{n}文字以下で書いてください。",
    },
    "at_least": {
        "en": "Write about {topic}, at least {n} words.|Write a story on {topic} with more than {n} words.",
        "de": "Schreibe über {topic}, mindestens {n} Wörter.|"
        "Verfasse eine Geschichte über {topic} mit mehr als {n} Wörtern.",
        "fr": "Écris sur {topic}, au moins {n} mots.|Rédige une histoire sur {topic} de plus de {n} mots.",
        "es": "Escribe sobre {topic}, al menos {n} palabras.|"
        "Redacta una historia sobre {topic} de más de {n} palabras.",
        "zh": "写一篇关于{topic}的文章，至少{n}字。|写一个关于{topic}的故事，{n}字以上。",
        "ja": "{topic}について{n}字以上で書いてください。|{topic}の話を{n}文字以上で書いてください。",
    },
    "sentences": {
        "en": "Explain {topic} in {n} sentences.|Give {n} sentences about {topic}.",
        "de": "Erkläre {topic} in {n} Sätzen.|Schreibe {n} Sätze über {topic}.",
        "fr": "Explique {topic} en {n} phrases.|Écris {n} phrases sur {topic}.",
        "es": "Explica {topic} en {n} frases.|Escribe {n} oraciones sobre {topic}.",
        "zh": "用{n}句话介绍{topic}。",
        "ja": "{topic}を{n}文で説明してください。",
    },
    "one_sentence": {
        "en": "What is special about {topic}? Use one sentence.|In a single sentence, describe {topic}.",
        "de": "Beschreibe {topic} in einem Satz.|Was ist besonders an {topic}? Ein Satz genügt.",
        "fr": "Décris {topic} en une seule phrase.|Une phrase sur {topic}, s'il te plaît.",
        "es": "Describe {topic} en una sola frase.|Una oración sobre {topic}, por favor.",
        "zh": "用一句话说明{topic}。",
        "ja": "{topic}を一文で説明してください。",
    },
    "paragraphs": {
        "en": "Write {n} paragraphs about {topic}.|Discuss {topic} in {n} paragraphs.",
        "de": "Schreibe {n} Absätze über {topic}.",
        "fr": "Écris {n} paragraphes sur {topic}.",
        "es": "Escribe {n} párrafos sobre {topic}.",
        "zh": "写{n}段关于{topic}的文字。",
        "ja": "{topic}について{n}段落で書いてください。",
    },
    "points": {
        "en": "Give {n} bullet points on {topic}.|List {n} facts about {topic}.|"
        "What are {n} important points about {topic}?",
        "de": "Gib {n} Stichpunkte zu {topic}.|Nenne {n} Fakten über {topic}.",
        "fr": "Donne {n} points clés sur {topic}.|Cite {n} faits sur {topic}.",
        "es": "Da {n} puntos clave sobre {topic}.|Menciona {n} datos sobre {topic}.",
        "zh": "列出关于{topic}的{n}个要点。|给出{n}条关于{topic}的建议。",
        "ja": "{topic}についてのポイントを{n}つ挙げてください。",
    },
    "names": {
        "en": "List {n} animals, names only.|List {n} cities without explanations.",
        "de": "Nenne {n} Tiere, ohne Erklärungen.",
        "fr": "Cite {n} animaux, sans explications.",
        "es": "Menciona {n} animales, sin explicaciones.",
        "zh": "列出{n}个城市，不要解释。",
        "ja": "都市の名前を{n}個挙げてください。説明は不要です。",
    },
    "numbers": {
        "en": "Write the numbers from 1 to {n}.|Count from 1 to {n}.|Print all integers from 1 through {n}.",
        "de": "Zähle von 1 bis {n}.|Schreibe die Zahlen von 1 bis {n}.",
        "fr": "Compte de 1 à {n}.|Écris les nombres de 1 à {n}.",
        "es": "Cuenta de 1 a {n}.|Escribe los números del 1 al {n}.",
        "zh": "从1到{n}写出所有数字。",
        "ja": "1から{n}までの数字を書いてください。",
    },
    "yes_no": {
        "en": "Is {topic} interesting? Answer yes or no only.|Does {topic} matter? Reply with just yes or no.",
        "de": "Ist {topic} wichtig? Antworte nur mit ja oder nein.",
        "fr": "Est-ce que {topic}, c'est important ? Réponds seulement par oui ou non.",
        "es": "¿Es importante {topic}? Responde solo sí o no.",
        "zh": "{topic}重要吗？只回答是或否。",
        "ja": "{topic}は重要ですか。はいかいいえだけで答えてください。",
    },
    "one_word": {
        "en": "Sum up {topic} in one word.|One word for {topic}, nothing else.",
        "de": "Beschreibe {topic} in einem Wort.",
        "fr": "Décris {topic} en un mot.",
        "es": "Describe {topic} en una palabra.",
        "zh": "用一个词形容{topic}。",
        "ja": "{topic}を1語で表してください。",
    },
    "translate": {
        "en": "Translate into French:\n{text}|Proofread the following text:\n{text}",
        "de": "Übersetze ins Englische:\n{text}",
        "fr": "Traduis en anglais :\n{text}",
        "es": "Traduce al inglés:\n{text}",
        "zh": "翻译成英文：\n{text}",
        "ja": "英語に翻訳してください:\n{text}",
    },
    "summarise": {
        "en": "Summarise the following text in one sentence:\n{text}|Give a one-sentence summary:\n{text}",
        "de": "Fasse den folgenden Text in einem Satz zusammen:\n{text}",
        "fr": "Résume le texte suivant en une phrase :\n{text}",
        "es": "Resume el siguiente texto en una frase:\n{text}",
        "zh": "用一句话总结下文：\n{text}",
        "ja": "次の文章を一文で要約してください:\n{text}",
    },
}
_SIZES: Final[dict[str, tuple[float, float, float]]] = {
    # least and most of n, and tokens of one; words by language
    "words": (20, 3000, 0), "at_most": (20, 800, 0), "at_least": (50, 2000, 0), "sentences": (2, 12, 26),
    "one_sentence": (1, 1, 28), "paragraphs": (2, 8, 105), "points": (3, 25, 40), "names": (5, 120, 5),
    "numbers": (10, 1500, 2.6), "yes_no": (1, 1, 3), "one_word": (1, 1, 3), "translate": (1, 12, 0),
    "summarise": (1, 12, 0),
}  # fmt: skip
_BYTES_PER_TOKEN: Final = 4.0


def made_samples(llms: Sequence[str], prompts: int = PROMPTS, seed: int = 0) -> LengthSamples:
    """Return made prompts, each with lengths for a few of these LLMs."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {
        name: [] for name in ("corpus", "split", "prompt_id", "llm", "input_tokens", "prompt", "lengths", "capped")
    }
    seen = set()
    for number in range(prompts):
        kind, language = (str(rng.choice(list(names))) for names in (_TEMPLATES, _TOPICS))
        text, tokens = _prompt(kind, language, rng)
        if text in seen:
            continue
        seen.add(text)
        for llm in rng.choice(len(llms), min(ANSWERED_BY, len(llms)), replace=False):
            drawn = np.rint(tokens * np.exp(_SPREAD * rng.standard_normal(_SAMPLES)))
            row = (
                MADE, "train", f"{language}/{kind}/{number}", llms[llm], max(1, len(text) // 4), text,
                np.clip(drawn, 1, _LONGEST).astype(int).tolist(), [False] * _SAMPLES,
            )  # fmt: skip
            for name, value in zip(columns, row, strict=True):
                columns[name].append(value)
    return LengthSamples.from_table(columns, origin=MADE)


def _prompt(kind: str, language: str, rng: np.random.Generator) -> tuple[str, float]:
    """Return a prompt and the tokens that it asks for."""
    least, most, each = _SIZES[kind]
    number = float(np.exp(rng.uniform(np.log(least), np.log(most))))
    # Sizes that people state are round.
    step = 10.0 ** max(0, int(np.log10(number)) - (1 if rng.random() < 0.5 else 0))
    number = max(least, round(number / step) * step)
    text = " ".join([_TEXTS[language]] * round(number))
    template = str(rng.choice(_TEMPLATES[kind][language].split("|")))
    topic = str(rng.choice(_TOPICS[language].split("|")))
    prompt = template.format(n=_written(number, language, rng), topic=topic, text=text)
    if kind == "translate":
        return prompt, len(text.encode()) / _BYTES_PER_TOKEN
    if kind == "summarise":
        return prompt, 32.0
    tokens = number * (each or WORD_TOKENS[language])
    usual = {"at_most": rng.uniform(0.55, 0.95), "at_least": rng.uniform(1.05, 1.5)}.get(kind, 1.0)
    return prompt, tokens * usual


def _written(number: float, language: str, rng: np.random.Generator) -> str:
    whole = round(number)
    if whole < 1000 or rng.random() < 0.5:
        return str(whole)
    return f"{whole:,}".replace(",", {"de": ".", "fr": " ", "es": "."}.get(language, ","))
