"""Table 1 of length-aware Preble (its appendix A.1): MiniLM, 20 classes of length, Alpaca-52k, split 60/20/20.

The paper does not say how its bins are cut. Accuracy 0.24 with a Matthews correlation of 0.20 means balanced classes,
so bins of equal mass are what is compared; bins of equal width, of which a constant gets most right, stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.alpaca20.run import BinPredictions, read_predictions
from lengthwise.errors import InputError
from lengthwise.predictors import scores
from lengthwise.predictors.scores import ClassScores
from lengthwise.workloads import LengthSamples

FIGURES: Final = ("accuracy", "f1", "precision", "recall", "auroc", "mcc")
PAPER: Final[Mapping[str, float]] = {
    "accuracy": 0.24,
    "f1": 0.22,
    "precision": 0.23,
    "recall": 0.24,
    "auroc": 0.85,
    "mcc": 0.20,
}


@dataclass(frozen=True, eq=False)
class Binned:
    """One way to cut lengths into 20 classes: what a network and what a constant reach."""

    binning: str
    edges: NDArray[np.float64]
    prompts: int
    ours: ClassScores
    alone: tuple[ClassScores, ...]
    """Each network by itself, where ours are several."""
    constant: ClassScores
    """The most frequent class of the rows that are not tested."""
    confusion: NDArray[np.int64]
    """(true, predicted): prompts."""
    about: Mapping[str, Any]

    @property
    def beaten(self) -> tuple[str, ...]:
        """The paper's figures that ours are above, as exactly as the paper prints its own."""
        return tuple(name for name in FIGURES if getattr(self.ours, name) > PAPER[name])


@dataclass(frozen=True)
class Alpaca20:
    """All that was found, by binning."""

    origin: str
    test_prompts: int
    binned: Mapping[str, Binned]


def compare(made: Mapping[str, BinPredictions], samples: LengthSamples, *, source: str = "predictions") -> Alpaca20:
    """Score probabilities of the test prompts against the lengths in the data."""
    lengths = samples.lengths_matrix()[:, 0]
    tested = np.array(samples.table["split"].to_pylist(), object) == "test"
    return Alpaca20(
        samples.origin,
        int(tested.sum()),
        {name: _binned(name, each, lengths, tested, source) for name, each in made.items()},
    )


def _binned(
    name: str, made: BinPredictions, lengths: NDArray[np.int64], tested: NDArray[np.bool_], source: str
) -> Binned:
    fits = made.rows.size > 0 and made.rows.max() < len(lengths) and bool(tested[made.rows].all())
    if not fits or not np.array_equal(lengths[made.rows], made.lengths):
        raise InputError("is about other prompts", source=source, hint="make it again from the Alpaca that is here")
    inner = made.edges[1:-1]
    true, past = (np.searchsorted(inner, some, side="left") for some in (lengths[made.rows], lengths[~tested]))
    probabilities = made.probabilities
    said = np.argmax(probabilities, axis=1)
    most = int(np.bincount(past).argmax())
    bins = len(made.edges) - 1
    flat = np.full((len(true), bins), 1.0 / bins)
    confusion = np.zeros((bins, bins), np.int64)
    np.add.at(confusion, (true, said), 1)
    return Binned(
        binning=name,
        edges=made.edges,
        prompts=len(true),
        ours=scores.classification(true, said, probabilities),
        alone=tuple(scores.classification(true, np.argmax(one, axis=1), one) for one in made.members),
        constant=scores.classification(true, np.full(len(true), most), flat),
        confusion=confusion,
        about=made.about,
    )


def load_predictions(path: Path) -> dict[str, BinPredictions]:
    """Read what a training elsewhere (scripts/gpu_alpaca20.py) wrote."""
    try:
        return read_predictions(path)
    except (OSError, ValueError) as error:
        hint = "give the alpaca20.npz that scripts/gpu_alpaca20.py or --save wrote"
        raise InputError("is not a file of predictions", source=path, hint=hint) from error
