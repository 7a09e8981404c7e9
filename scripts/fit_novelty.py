"""Fit how much wider `fast` is on prompts unlike its training data, and write that into the model file.

    LENGTHWISE_DATA=... python scripts/fit_novelty.py       # ten minutes of one core; only the part novelty.npz changes

Four trainings leave out three or four kinds of prompts each (the recipe of `fast`, without a teacher, at most
PER_KIND prompts of a kind outside CASTILLO). Their errors on the kinds left out and on held-out prompts fit `Novelty`;
its centres are those of the packaged file's own training prompts. Scores of a kind left out are with a fit to the
other kinds. Alpaca and the sources of unclear licence are scored only.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lengthwise.predictors import load_predictor
from lengthwise.predictors.fast import FastPredictor
from lengthwise.predictors.model_file import read_model_file, write_model_file
from lengthwise.predictors.novelty import Novelty
from lengthwise.training.fast.novelty import Errors, fit_centres, fit_factor, fit_novelty, topics_of
from lengthwise.training.fast.train import (
    FastRecipe,
    FastTrainer,
    calibrated,
    capped,
    held_out,
    made_prompts,
    official_test,
    training_pairs,
)
from lengthwise.training.fast.word_tables import Vocabulary
from lengthwise.training.pairs import PairTable

SEED = 0
PER_KIND = 1_000
PROMPTS = 2_500  # that centres are fitted to
SCORED = 400  # prompts of a kind left out
PARTS = (
    ("ifeval", "riddles", "agent"),
    ("mt-bench", "mmlu-pro", "castillo-chat"),
    ("chat", "gpteacher", "code"),
    ("writing", "zero-eval", "chinese", "open-ended"),
)
JUDGED = ("alpaca", "arena", "noncompliance")
MODELS = Path(__file__).parent.parent / "src" / "lengthwise" / "predictors" / "models"


def main() -> None:
    """Train without kinds, fit, score, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--file", type=Path, default=MODELS / "fast.lw")
    parser.add_argument("--scores", type=Path, help="write the scores here as well (.json)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lengthwise.predictors").setLevel(logging.ERROR)  # LLMs of left-out kinds are unknown
    packaged = load_predictor(str(options.file))
    if not isinstance(packaged, FastPredictor):
        raise SystemExit(f"{options.file} is no `fast` predictor")
    everything = training_pairs(ships=False)
    judged = everything.in_groups(JUDGED)
    table = everything.take(everything.trainable() & ~judged)
    test = {"CASTILLO": official_test(everything)}
    test |= {name: everything.take(everything.in_groups([name]) & (everything.test if name == "alpaca" else judged))
             for name in JUDGED}  # fmt: skip
    trainer = FastTrainer(Vocabulary.of_packaged(packaged), FastRecipe(epochs=int(packaged.card["recipe"]["epochs"])))
    left: dict[str, Errors] = {}
    trained, small = [], capped(table, PER_KIND, SEED)
    for part in PARTS:
        train = small.take(~small.in_groups(part))
        predictor, _ = calibrated(trainer, train, packaged.widening, SEED)
        centres, held = _centres(predictor, train), held_out(train, SEED)
        trained.append(Errors.of(predictor, centres, train.take(held)))
        left |= {name: Errors.of(predictor, centres, _some(small.take(small.in_groups([name])))) for name in part}
        _print(f"without {', '.join(part)}")
    novelty = fit_novelty(_centres(packaged, table), list(left.values()), trained)
    scores = _scores(left, trained, {name: Errors.of(packaged, novelty.centres, own) for name, own in test.items()},
                     novelty)  # fmt: skip
    _print(json.dumps(scores, indent=2))
    if options.scores is not None:
        options.scores.write_text(json.dumps(scores, indent=1) + "\n")
    card = {**read_model_file(options.file).card, "novelty": _stated(novelty) | {"left_out": scores["left_out_mean"]}}
    write_model_file(options.file, card, replace(packaged, novelty=novelty, _llm_cache={}).parts())


def _centres(predictor: FastPredictor, train: PairTable) -> Any:
    own = _some(train.take(~made_prompts(train)), PROMPTS)
    return fit_centres(topics_of(predictor, own.texts), own.group, seed=SEED)


def _some(table: PairTable, prompts: int = SCORED) -> PairTable:
    return table.take(np.sort(np.random.default_rng(SEED).permutation(len(table))[:prompts]))


def _scores(
    left: dict[str, Errors], trained: list[Errors], test: dict[str, Errors], novelty: Novelty
) -> dict[str, Any]:
    """Return coverage without novelty, with it and with one factor, and the mean ratios of the widths."""

    def row(errors: Errors, fitted: Novelty, factor: float) -> dict[str, float]:
        wide = errors.spread(fitted)
        return {
            "cover90": round(errors.covered(errors.sigma), 3),
            "with_novelty": round(errors.covered(wide), 3),
            "wider": round(float(np.exp(np.mean(np.log(wide / errors.sigma)))), 2),
            "with_factor": round(errors.covered(errors.sigma * factor), 3),
            "factor": round(factor, 2),
        }

    rows = {}
    for name, errors in left.items():
        others = [each for other, each in left.items() if other != name]
        rows[name] = row(errors, fit_novelty(novelty.centres, others, trained), fit_factor(others, trained))
    factor = fit_factor(list(left.values()), trained)
    mean = {key: round(float(np.mean([each[key] for each in rows.values()])), 3) for key in next(iter(rows.values()))}
    return {
        "novelty": _stated(novelty),
        "left_out": rows,
        "left_out_mean": mean,
        "packaged": {name: row(errors, novelty, factor) for name, errors in test.items()},
    }


def _stated(novelty: Novelty) -> dict[str, Any]:
    return {
        "low": round(novelty.low, 4),
        "high": round(novelty.high, 4),
        "spread": round(novelty.spread, 4),
        "centres": len(novelty.centres),
    }


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
