"""What a prompt says about the length of its answer, in English, Chinese, Japanese, German, French and Spanish.

"in 200 words", "one sentence", "only yes or no", "list 50", "at most 5 bullet points", "from 1 to 500", "as JSON",
"translate this": read as a few numbers. Words of spaced languages are looked up in one table, and only the words
around a hit are looked at; Chinese and Japanese are read by one regular expression.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.prompt_words import MARKS, as_bytes, excerpt, split

STATED: Final = 16
"""Numbers of a `StatedLength`; the last two are always 0."""
_SPARE: Final = (0.0, 0.0)

MAX_TOKENS: Final = 20_000.0
"""Largest size that counts as stated."""

WORD_TOKENS: Final = {"en": 1.35, "de": 1.9, "fr": 1.6, "es": 1.6, "zh": 1.1, "ja": 1.1}
"""Tokens of a word, in Chinese and Japanese of a character: about those of current tokenizers."""

ITEM_TOKENS: Final = 40.0
"""Tokens of a point, a tip or an example with its explanation."""

LOG_UNIT: Final = 4.0
"""Logs are divided by this, so that all numbers are between 0 and about 2.5: nothing is standardised."""


@dataclass(slots=True)
class StatedLength:
    """Sizes that a prompt states, in tokens, and kinds of requests that decide the length; 0 where it states none."""

    exact: float = 0.0
    at_most: float = 0.0
    at_least: float = 0.0
    items: float = 0.0
    """Points, examples or names that are asked for."""
    item_tokens: float = 0.0
    """Tokens of all of them."""
    span: float = 0.0
    """Numbers from A to B that are to be written."""
    terse: bool = False
    """Only yes or no, a letter, a number or a word is asked for."""
    brief: bool = False
    detailed: bool = False
    json: bool = False
    translate: bool = False
    """The answer repeats the given text: a translation, a correction, a paraphrase."""
    summarise: bool = False
    given: float = 0.0
    """Tokens of the text to translate or summarise."""
    loose: bool = False
    """The size may be part of a task, such as a programming one, and not a request."""

    @property
    def tokens(self) -> float:
        """The length that follows from the request, in tokens; 0 where none does."""
        if self.exact:
            return self.exact
        if self.at_least and self.at_most:
            return math.sqrt(self.at_least * self.at_most)
        if self.terse:
            return _TERSE_TOKENS
        for size in (self.span * _SPAN_TOKENS, self.item_tokens, self.at_least * _ABOVE, self.at_most * _BELOW):
            if size:
                return min(size, MAX_TOKENS)
        return self.given if self.translate and not self.summarise else 0.0

    def numbers(self) -> NDArray[np.float32]:
        """Return the STATED features."""
        tokens = self.tokens
        sizes = (self.exact, self.at_most, self.at_least, self.items, self.span, tokens, self.given)
        flags = (
            tokens > 0.0, self.terse, self.brief, self.detailed, self.json, self.translate, self.summarise,
        )  # fmt: skip
        return np.array(
            [*[math.log1p(size) / LOG_UNIT if size else 0.0 for size in sizes], *flags, *_SPARE], np.float32
        )

    @property
    def kind(self) -> str:
        """The statement that `tokens` follows from: a key of SPREADS, or "" where none does."""
        if self.exact or (self.at_least and self.at_most):
            return "exact"
        for name in ("terse", "span", "items", "at_least", "at_most"):
            if getattr(self, name):
                return name
        return "given" if self.tokens else ""

    @property
    def observation(self) -> LogEstimate | None:
        """The log length that the request states, and its spread; None where it states nothing definite."""
        tokens = 0.0 if self.loose else self.tokens
        if not tokens:
            return None
        kind = self.kind
        return math.log(tokens) + SHIFTS.get(kind, 0.0), SPREADS[kind]


LogEstimate = tuple[float, float]
"""A log length and its spread (a sigma)."""

SPREADS: Final = {
    "exact": 0.4, "at_least": 0.6, "at_most": 0.6, "terse": 0.3, "span": 0.5, "items": 1.5, "given": 1.2,
}  # fmt: skip
"""Spread of the log length around what is stated: about that of answers to IFEval, M-IFEval and ghostbuster."""
MIN_OTHER_SIGMA: Final = 0.6
"""Least sigma of the prediction that it is combined with: that of usual prompts does not hold for those that state a
length."""
SHIFTS: Final = {"items": 0.5, "given": 0.3}
"""Log of the usual answer relative to what is stated, where they differ."""


def combined(mu: float, sigma: float, seen: LogEstimate) -> LogEstimate:
    """Combine a prediction of the log length with a stated one.

    s        = max(sigma, 0.6)
    share    = spread^-2 / (spread^-2 + s^-2)
    mu'      = mu + share * (stated - mu)
    sigma'^2 = 1 / (spread^-2 + s^-2) + share * (1 - share) * (stated - mu)^2

    The last term is the variance between the two: LLMs miss a stated size, mostly where they would not answer so.
    """
    stated_mu, spread = seen
    precision = spread**-2 + max(sigma, MIN_OTHER_SIGMA) ** -2
    share, apart = stated_share(sigma, seen), stated_mu - mu
    return mu + share * apart, math.sqrt(1.0 / precision + share * (1.0 - share) * apart**2)


def stated_share(sigma: float, seen: LogEstimate) -> float:
    """Return the weight of a stated length beside a prediction, from 0 to 1."""
    stated = seen[1] ** -2
    return stated / (stated + max(sigma, MIN_OTHER_SIGMA) ** -2)


def with_observations(predictions: LogTPredictions, seen: Sequence[LogEstimate | None]) -> LogTPredictions:
    """Combine each prediction with what its prompt states, if anything; mean and std move with the median."""
    if not any(seen):
        return predictions
    mu, sigma = predictions.mu.copy(), predictions.sigma.copy()
    for row, each in enumerate(seen):
        if each is not None:
            mu[row], sigma[row] = combined(float(mu[row]), float(sigma[row]), each)
    scale = np.exp(mu - predictions.mu)
    mean, std = predictions.sample_mean * scale, predictions.sample_std * scale
    return replace(predictions, mu=mu, sigma=sigma, sample_mean=mean, sample_std=std)


NOTHING: Final = np.zeros(STATED, np.float32)
"""The features of a prompt that states nothing."""

_TERSE_TOKENS: Final = 3.0
_SPAN_TOKENS: Final = 2.5
"""Tokens of a number in a list of numbers, with what separates it from the next."""
_ABOVE: Final = 1.2
_BELOW: Final = 0.75
"""Usual lengths relative to a lower and an upper limit."""


class _Kind(Enum):
    SIZE = 0
    """Words, characters, pages: sizes of the whole answer."""
    PART = 1
    """Sentences, paragraphs: used where no size of the whole is stated."""
    ITEM = 2
    LISTS = 3
    NUMBERS = 4
    ONLY = 5
    BRIEF = 6
    DETAILED = 7
    JSON = 8
    TRANSLATE = 9
    SUMMARISE = 10


def _triggers() -> dict[bytes, tuple[_Kind, float]]:
    size, part, item = _Kind.SIZE, _Kind.PART, _Kind.ITEM
    listed: list[tuple[_Kind, float, str]] = [
        (size, WORD_TOKENS["en"], "word words"),
        (size, WORD_TOKENS["de"], "wort wörter wörtern worten worte"),
        (size, WORD_TOKENS["fr"], "mot mots"),
        (size, WORD_TOKENS["es"], "palabra palabras"),
        (size, 0.25, "character characters letter letters zeichen buchstaben caractère caractères caracteres"),
        (size, 1.0, "token tokens"),
        (size, 600.0, "page pages seite seiten página páginas"),
        (part, 25.0, "sentence sentences satz sätze sätzen phrase phrases frase frases oración oraciones"),
        (part, 100.0, "paragraph paragraphs absatz absätze absätzen paragraphe paragraphes párrafo párrafos"),
        (part, 14.0, "line lines zeile zeilen ligne lignes línea líneas verses vers verso versos"),
        (part, 50.0, "stanza stanzas strophe strophen strophes estrofa estrofas"),
        (part, 130.0, "section sections abschnitt abschnitte abschnitten sección secciones"),
        (part, 900.0, "chapter chapters kapitel kapiteln chapitre chapitres capítulo capítulos"),
        (item, ITEM_TOKENS, ("bullet bullets point points item items tip tips fact facts idea ideas reason reasons "
         "step steps example examples question questions suggestion suggestions way ways benefit "
         "benefits advantage advantages")),
        (item, ITEM_TOKENS, ("stichpunkt stichpunkte stichpunkten punkt punkte punkten tipp tipps fakten ideen gründe "
         "schritte schritten beispiele fragen vorschläge vorteile")),
        (item, ITEM_TOKENS, ("puce puces conseil conseils idée idées raison raisons étape étapes exemple exemples "
         "questions faits avantages suggestions")),
        (item, ITEM_TOKENS, ("viñeta viñetas punto puntos consejo consejos razón razones paso pasos ejemplo ejemplos "
         "preguntas datos ventajas sugerencias")),
        (item, 9.0, ("names synonym synonyms title titles keyword keywords hashtag hashtags adjectives verbs nouns "
         "namen titel synonyme noms titres títulos sinónimos mots-clés")),
        (_Kind.LISTS, 9.0, ("list name give suggest enumerate provide nenne liste gib cite donne énumère nomme "
         "enumera menciona nombra dame lista")),
        (_Kind.NUMBERS, 0.0, ("number numbers integers count years multiples primes squares zahlen zähle zähl jahre "
         "nombres compte compter années números cuenta contar años zählen counting")),
        (_Kind.ONLY, 0.0, ("only just solely simply nur lediglich bloß seulement uniquement juste solo sólo solamente "
         "únicamente")),
        (_Kind.BRIEF, 0.0, ("brief briefly short concise concisely succinct succinctly tersely kurz kurze kurzen knapp "
         "bref brève brièvement court courte breve brevemente corto corta conciso concisa")),
        (_Kind.DETAILED, 0.0, ("detailed detail comprehensive thorough thoroughly elaborate essay ausführlich "
         "ausführliche detailliert detaillierte aufsatz umfassend détaillé détaillée détail exhaustif dissertation "
         "detallado detallada detalladamente exhaustivo ensayo")),
        (_Kind.JSON, 0.0, "json"),
        (_Kind.TRANSLATE, 0.0, ("translate translation paraphrase proofread rewrite übersetze übersetzen übersetzung "
         "übersetz umschreiben traduis traduire traduisez traduction reformule traduce traducir traduzca traducción "
         "reescribe")),
        (_Kind.SUMMARISE, 0.0, ("summarize summarise summary summarizing tldr zusammenfassen zusammenfassung fasse "
         "résume résumer résumé résumez resume resumir resumen")),
    ]  # fmt: skip
    found: dict[bytes, tuple[_Kind, float]] = {}
    for kind, tokens, words in listed:
        for word in _words(words):
            found.setdefault(word, (kind, tokens))
    return found


def _words(text: str) -> frozenset[bytes]:
    """Return words as a prompt is split into them: letters outside ASCII keep their case."""
    return frozenset(form.encode().lower() for word in text.split() for form in (word, word.capitalize()))


_TRIGGERS: Final = _triggers()
_UNITS: Final = (_Kind.SIZE, _Kind.PART, _Kind.ITEM)
_FLAGS: Final = {kind: kind.name.lower() for kind in _Kind}
_COUNTS: Final[dict[bytes, float]] = {
    word: float(value)
    for value, words in {
        1: "a an one single ein eine einen einem einer einzigen einziger un une seule seul una uno sola única",
        2: "two couple zwei deux dos", 3: "three few drei trois tres", 4: "four vier quatre cuatro",
        5: "five several fünf cinq cinco", 6: "six sechs seis", 7: "seven sieben sept siete", 8: "eight acht huit ocho",
        9: "nine neun neuf nueve", 10: "ten zehn dix diez", 12: "twelve dozen zwölf douze doce",
        15: "fifteen fünfzehn quinze quince", 20: "twenty zwanzig vingt veinte", 30: "thirty dreißig trente treinta",
        40: "forty vierzig quarante cuarenta", 50: "fifty fünfzig cinquante cincuenta",
        100: "hundred hundert cent cents cien cientas cientos", 200: "zweihundert doscientas doscientos",
        300: "dreihundert trescientas trescientos", 400: "vierhundert cuatrocientas cuatrocientos",
        500: "fünfhundert quinientas quinientos", 1000: "thousand tausend mille mil eintausend", 2000: "zweitausend",
    }.items()
    for word in _words(words)
}  # fmt: skip
_ARTICLES: Final = _words("a an ein eine einen einem einer un une una uno")
_MOST: Final = _words(
    "most max maximum maximal under below fewer less within limit exceed exceeding shorter höchstens weniger "
    "unter moins maximum dépasse dépasser máximo maximo menos hasta"
)
_LEAST: Final = _words("least min minimum minimal more over longer mindestens mehr über plus mínimo minimo más")
_NOT: Final = _words("no not nicht kein pas")
_AT: Final = _words("au al lo como")
_OR: Final = _words("or oder ou o")
_TO: Final = _words("to and or bis und à et ou a y o")
_IN: Final = _words("in en with mit avec con just only exactly genau nur exactamente exactement")
_IN_ONE: Final = _words("in en")
_ASKS: Final = _words(
    "list give provide write suggest create generate name include contain offer propose tell share recommend identify "
    "outline make use with in need are exactly nenne gib schreibe liste mit exactement donne cite écris propose avec "
    "da dame escribe menciona enumera proporciona con genera want like hätte gern brauche möchte faut voudrais veux "
    "besoin quiero necesito des"
)
_WRITES: Final = _words(
    "list write print count enumerate recite say type output show display give schreibe liste zähle zähl nenne gib "
    "écris compte compter zählen contar counting liste affiche énumère donne escribe cuenta lista enumera muestra da"
)
_CODE: Final = _words(
    "function code python javascript array string strings integer integers program import def return returns kata sql "
    "pandas numpy print input output true false variable algorithm many much"
)
_PROGRAMS: Final = _words("program function code script programm funktion programme fonction programa función")
_REPLIES: Final = _words(
    "answer reply respond response output return say give antworte antwort réponds répondez réponse responde respuesta"
)
_EACH: Final = _words("each every per apiece jeweils jeder jedes pro chacun chacune chaque cada")
_YES: Final = _words("yes ja oui sí true wahr vrai verdadero")
_BARE: Final = _words(
    "letter number name word option digit buchstaben zahl namen wort lettre chiffre nombre mot letra número palabra"
)
_MARK: Final = MARKS[b"."].strip()[0]
"""The byte that a mark of a sign begins with."""
_DIGITS: Final = b"0123456789"
_FULL_STOP: Final = MARKS[b"."].strip()
_ANSWERS: Final = ("\n<assistant> ", "\nAssistant: ")
_USER_TURNS: Final = ("\n<user> ", "\nUser: ")
_MAX_HITS: Final = 10
"""Triggers looked at, from the beginning and from the end of a prompt."""
_STEP_BY_STEP: Final = _words("step schritt étape paso pas")
_SPAN: Final = re.compile(
    r"(\d{1,6})\s*(?:to|through|until|up to|bis|à|jusqu.à|al?|hasta|and|und|et|y|-|–|\.\.\.?)\s*"
    r"(\d{1,6}(?:[., ]\d{3})?)\b"
)


def stated(text: str) -> StatedLength:
    """Read what a prompt says about the length of its answer: any string."""
    part = excerpt(text)
    return stated_in(split(as_bytes(part)), part, len(text))


def _last_turn(part: str) -> str:
    """Return the system prompt and the last user turn of a chat: earlier turns are answered."""
    system = part[: part.find("\n<user> ")] if part.startswith("<system> ") else ""
    return f"{system}\n{part[max(part.rfind(mark) for mark in _USER_TURNS) :]}"


def stated_in(words: Sequence[bytes], part: str, size: int) -> StatedLength:
    """Read an excerpt that is already split into words; `size` is the number of characters of the whole prompt."""
    found = StatedLength()
    if any(mark in part for mark in _ANSWERS):
        part = _last_turn(part)
        words = split(as_bytes(part))
    hits = list(compress(range(len(words)), map(_TRIGGERS.__contains__, words)))
    if hits:
        _read_words(found, words, hits if len(hits) <= 2 * _MAX_HITS else hits[:_MAX_HITS] + hits[-_MAX_HITS:], part)
    if not part.isascii() and _HAN.search(part):
        _read_han(found, part)
    if found.translate or found.summarise:
        found.given = _given(part) * size / max(len(part), 1)
    found.loose = bool(hits) and found.tokens > 0.0 and not _CODE.isdisjoint(words)
    return found


@dataclass(slots=True)
class _Sizes:
    """Sizes found so far: those of the whole answer, and those of its parts."""

    whole: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    each: float = 0.0
    count: float = 0.0
    """Number of parts or items."""

    def add(self, kind: _Kind, limit: str, number: float, tokens: float) -> None:
        into = self.whole if kind is _Kind.SIZE else self.parts
        into[limit] = max(into.get(limit, 0.0), min(number * tokens, MAX_TOKENS))
        if kind is not _Kind.SIZE:
            self.count = max(self.count, number)

    def put(self, found: StatedLength) -> None:
        if self.each and max(self.count, found.items):
            self.whole["exact"] = min(self.each * max(self.count, found.items), MAX_TOKENS)
        for limit, size in (self.whole or self.parts).items():
            setattr(found, limit, max(getattr(found, limit), size))


def _read_words(found: StatedLength, words: Sequence[bytes], hits: Sequence[int], part: str) -> None:
    sizes = _Sizes()
    for place in hits:
        kind, tokens = _TRIGGERS[words[place]]
        if kind in _UNITS:
            _read_unit(found, sizes, words, place, part)
        elif kind is _Kind.LISTS:
            _read_list(found, words, place, tokens)
        elif kind is _Kind.NUMBERS:
            if not found.span and _WRITES.intersection(words[max(0, place - 4) : place + 1]):
                found.span = 0.0 if _PROGRAMS.intersection(words[max(0, place - 10) : place]) else _span(part)
        elif kind is _Kind.ONLY:
            near = words[max(0, place - 5) : place + 6]
            bare = not _BARE.isdisjoint(words[place + 1 : place + 3]) and not _REPLIES.isdisjoint(near)
            found.terse |= bare or not _YES.isdisjoint(near)
        else:
            setattr(found, _FLAGS[kind], True)
    sizes.put(found)


def _read_unit(found: StatedLength, sizes: _Sizes, words: Sequence[bytes], place: int, part: str) -> None:
    """Read "at most 200 words": the number before the unit, and the limit before or after."""
    kind, tokens = _TRIGGERS[words[place]]
    if kind is _Kind.ITEM and words[place] in _STEP_BY_STEP and words[place] in words[place + 1 : place + 4]:
        found.detailed = True
        return
    number, start = _number_before(words, place, part)
    if not number:
        return
    small = tokens < 20.0  # words, letters, lines
    inside = start > 0 and words[start - 1] in _IN
    if kind is _Kind.SIZE and small and number == 1:
        if words[start] in _ARTICLES:  # "en un mot", and not "in a letter" or "with a word"
            found.terse |= tokens > 1.0 and start > 0 and words[start - 1] in _IN_ONE and words[start] != b"a"
        else:
            found.terse |= inside or not _REPLIES.isdisjoint(words[place + 1 : place + 2])
        return
    if number == 1 and words[start] in _ARTICLES and not (inside and kind is _Kind.PART and place - start < 3):
        return
    if not inside and ((number == 1 and small) or (kind is _Kind.SIZE and small and number < 8)):
        return  # "one line of text", "3 words that begin with a"
    if kind is _Kind.ITEM and _ASKS.isdisjoint(words[max(0, start - 6) : start]):
        return
    if not _EACH.isdisjoint(words[place + 1 : place + 4]) and kind is not _Kind.ITEM:
        sizes.each = number * tokens
        return
    if kind is _Kind.ITEM:
        if number * tokens > found.item_tokens:
            found.items, found.item_tokens = number, number * tokens
        return
    sizes.add(kind, _limit(words, start, place), number, tokens)


def _read_list(found: StatedLength, words: Sequence[bytes], place: int, tokens: float) -> None:
    """Read "list 50 animals": a number after the verb that counts no unit."""
    for at in range(place + 1, min(place + 4, len(words))):
        number = _one_number(words[at]) or 0.0
        if number > 1:
            following = words[at + 1 : at + 4]
            if not any(word in _TRIGGERS and _TRIGGERS[word][0] in _UNITS for word in following):
                found.items, found.item_tokens = number, max(found.item_tokens, number * tokens)
            return


def _one_number(word: bytes) -> float | None:
    """Return the number that a word is, None if it is none."""
    if word.isdigit():
        return float(word) if len(word) < 6 else None
    if word[-1:] == b"k" and word[:-1].isdigit() and len(word) < 4:
        return 1000.0 * float(word[:-1])
    return _COUNTS.get(word)


def _number_before(words: Sequence[bytes], place: int, part: str) -> tuple[float, int]:
    """Return the number that counts a unit and where it begins; (0, 0) without one. At most two words lie between."""
    for at in range(place - 1, max(place - 4, -1), -1):
        word = words[at]
        if word in _COUNTS or word[0] in _DIGITS:
            number = _one_number(word)
            if number is not None:
                return _whole_number(words, at, number, part)
        elif word[0] == _MARK:
            break
    return 0.0, 0


def _whole_number(words: Sequence[bytes], at: int, number: float, part: str) -> tuple[float, int]:
    """Join "3 000", "five hundred" and "200 to 250"; return the number and where it begins."""
    before = words[at - 1] if at else b""
    earlier = words[at - 2] if at > 1 else b""
    if words[at].isdigit() and len(words[at]) == 3:
        if before.isdigit() and len(before) < 3 and not re.search(f"{before.decode()} ?[-–~]", part):
            return float(before + words[at]), at - 1
        if before == _FULL_STOP and earlier.isdigit() and len(earlier) < 3:
            return float(earlier + words[at]), at - 2
    if number >= 100 and words[at] in _COUNTS:
        factor = _one_number(before)
        return (factor * number, at - 1) if factor and factor < number else (number, at)
    low, start = (float(before), at - 1) if before.isdigit() and len(before) < 6 else (0.0, 0)
    if before in _TO:
        low, start = _one_number(earlier) or 0.0, at - 2
    return (math.sqrt(low * number), start) if number / 4 <= low < number else (number, at)


def _limit(words: Sequence[bytes], start: int, place: int) -> str:
    """Return the field for a size: exact, at_most or at_least."""
    for at in range(start - 1, max(start - 4, -1), -1):
        word = words[at]
        if word[0] == _MARK:
            break
        before = words[at - 1] if at else b""
        if word in _MOST:
            # French "au moins" and Spanish "al menos" are lower limits, "moins de" and "menos de" upper ones.
            return "at_least" if word in (b"moins", b"menos") and before in _AT else "at_most"
        if word in _LEAST:
            return "at_most" if before in _NOT or (word == b"plus" and before == b"au") else "at_least"
        if word == b"up" and words[at + 1] == b"to":
            return "at_most"
    after = words[place + 1 : place + 3]
    if after and (after[0] in _OR or after[0] in _MOST or after[0] in _LEAST):
        if not _MOST.isdisjoint(after):
            return "at_most"
        if not _LEAST.isdisjoint(after):
            return "at_least"
    return "exact"


def _span(part: str) -> float:
    match = _SPAN.search(part)
    if not match:
        return 0.0
    first, last = int(match[1]), int(_SEPARATOR.sub("", match[2]))
    return float(min(last - first + 1, MAX_TOKENS)) if last > first + 2 else 0.0


def _given(part: str) -> float:
    """Return about how many tokens of an excerpt are the text that it is about: all after the first colon or line."""
    starts = [at for at in (part.find(":"), part.find("\n"), part.find("：")) if 0 <= at < 300]
    return len(part[min(starts) + 1 if starts else min(40, len(part)) :].strip().encode("utf-8", "replace")) / 4.0


_HAN: Final = re.compile("[぀-ヿ一-鿿]")
_SEPARATOR: Final = re.compile("[.,， ]")
_HAN_UNITS: Final = {
    "字": WORD_TOKENS["zh"], "文字": WORD_TOKENS["ja"], "词": 1.6, "单词": 1.6, "語": 1.6, "句": 30.0, "文": 30.0,
    "段": 130.0, "页": 800.0, "ページ": 800.0, "行": 18.0, "章": 1000.0,
}  # fmt: skip
_HAN_LISTS: Final = re.compile("列出|列举|举出|给出|提供|推荐|写出|挙げ|リスト|教えて|提案|ポイント|箇条書き")
_HAN_PARTS: Final = ("句", "文", "段", "行", "章")
_HAN_WORDS: Final = re.compile(
    r"(?P<use>[用以])?(?P<before>不超过|最多|至多|少于|不多于|控制在|至少|不少于|多于|超过|最少|最低|最大)?\s*"
    r"(?P<number>\d[\d,，]{0,7}|[一二三四五六七八九十两百千]{1,5})\s*(?:[-~〜～到至]\s*(?P<upper>\d{1,5}))?\s*"
    r"(?:(?P<unit>个?单词|个?字|文字|个?词|語|句|文(?=で|に|以|程度)|段|页|ページ|行(?!代)|章)"
    r"|(?P<item>个|個|种|つ|条|點|点|项|項|例|件))"
    r"\S{0,2}?(?P<after>以内|以下|以上|之内|まで|を超え)?"
    r"|(?P<span>\d{1,6})\s*(?:数到|到|至|から|~|〜|-)\s*(?P<end>\d{1,6}(?:,\d{3})?)"
    r"|(?P<terse>(?:只|仅|だけ|のみ)[^。\n]{0,12}(?:是|否|对|错|字母|数字)|(?:はい|いいえ)[^。\n]{0,8}(?:だけ|のみ))"
    r"|(?P<translate>翻译|翻訳|译成|訳し|改写|润色)|(?P<summarise>总结|概括|摘要|要約|まとめ)"
    r"|(?P<detailed>详细|詳し|详尽|一步一步|逐步|ステップ|论文|作文)|(?P<brief>简短|简要|简洁|簡潔|簡単に|短く|一言)"
    r"|(?P<json>JSON|json)"
)
_HAN_DIGITS: Final = {digit: value for value, digit in enumerate("零一二三四五六七八九")} | {"两": 2}


def _read_han(found: StatedLength, part: str) -> None:
    sizes = _Sizes()
    for match in _HAN_WORDS.finditer(part):
        kind = match.lastgroup or ""
        if match["number"] is not None:
            _read_han_number(found, sizes, match)
        elif match["span"] is not None:
            count = int(_SEPARATOR.sub("", match["end"])) - int(match["span"]) + 1
            found.span = max(found.span, float(min(count, MAX_TOKENS)) if count > 3 else 0.0)
        else:
            setattr(found, kind, True)
    sizes.put(found)


def _read_han_number(found: StatedLength, sizes: _Sizes, match: re.Match[str]) -> None:
    number = _han_number(match["number"])
    if match["upper"] and int(match["upper"]) > number:
        number = math.sqrt(number * int(match["upper"]))
    if match["item"]:
        if number > 1 and _HAN_LISTS.search(match.string):
            found.items = max(found.items, number)
            found.item_tokens = max(found.item_tokens, number * ITEM_TOKENS)
        return
    unit = match["unit"].removeprefix("个")
    before, after = match["before"] or "", match["after"] or ""
    most = before in ("不超过", "最多", "至多", "少于", "不多于", "控制在", "最大") or after in (
        "以内",
        "以下",
        "之内",
        "まで",
    )
    limit = "at_most" if most else "at_least" if before or after else "exact"
    if unit not in ("句", "文") and (number == 1 or (number < 8 and unit not in _HAN_PARTS)):
        found.terse |= number == 1 and (unit == "語" or (unit in ("字", "词", "单词") and bool(match["use"])))
        return
    sizes.add(_Kind.PART if unit in _HAN_PARTS else _Kind.SIZE, limit, number, _HAN_UNITS[unit])


def _han_number(text: str) -> float:
    if text[0].isdigit():
        return float(_SEPARATOR.sub("", text))
    total = digit = 0
    for sign in text:
        factor = {"十": 10, "百": 100, "千": 1000}.get(sign)
        if factor is None:
            digit = _HAN_DIGITS.get(sign, 0)
        else:
            total, digit = total + max(digit, 1) * factor, 0
    return float(total + digit)
