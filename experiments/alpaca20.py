"""Table 1 of length-aware Preble (its appendix A.1): MiniLM, 20 classes of length, Alpaca-52k, split 60/20/20.

The paper does not say how its bins are cut. Accuracy 0.24 with a Matthews correlation of 0.20 implies balanced classes,
so bins of equal mass are compared; bins of equal width, where a constant is mostly right, are shown beside them.
Scores a file of predictions, which `python -m scripts.gpu_alpaca20` writes. Alpaca is for non-commercial use:
weights are not saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.alpaca20_training import BINNINGS, BinPredictions, read_predictions
from experiments.study import Run, Study
from lengthwise.errors import InputError
from lengthwise.predictors import scores
from lengthwise.predictors.scores import ClassScores
from lengthwise.reports.figures import figure, png
from lengthwise.reports.tables import Table
from lengthwise.workloads import LengthSamples
from lengthwise.workloads.datasets import load_alpaca_lengths

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
    """One way to cut lengths into 20 classes: scores of the network and of a constant."""

    binning: str
    edges: NDArray[np.float64]
    prompts: int
    ours: ClassScores
    alone: tuple[ClassScores, ...]
    """Each network alone, where there are several."""
    constant: ClassScores
    """The most frequent class of the rows that are not tested."""
    confusion: NDArray[np.int64]
    """(true, predicted): prompts."""
    about: Mapping[str, Any]

    @property
    def beaten(self) -> tuple[str, ...]:
        """The paper's scores that ours exceed."""
        return tuple(name for name in FIGURES if getattr(self.ours, name) > PAPER[name])


@dataclass(frozen=True)
class Alpaca20Result:
    """Scores by binning."""

    origin: str
    test_prompts: int
    binned: Mapping[str, Binned]


def compare(
    made: Mapping[str, BinPredictions], samples: LengthSamples, *, source: str = "predictions"
) -> Alpaca20Result:
    """Score probabilities of the test prompts against the lengths in the data."""
    lengths = samples.lengths_matrix()[:, 0]
    tested = np.array(samples.table["split"].to_pylist(), object) == "test"
    return Alpaca20Result(
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
    true, past = (np.searchsorted(inner, values, side="left") for values in (lengths[made.rows], lengths[~tested]))
    probabilities = made.probabilities
    predicted = np.argmax(probabilities, axis=1)
    most = int(np.bincount(past).argmax())
    bins = len(made.edges) - 1
    flat = np.full((len(true), bins), 1.0 / bins)
    confusion = np.zeros((bins, bins), np.int64)
    np.add.at(confusion, (true, predicted), 1)
    return Binned(
        binning=name,
        edges=made.edges,
        prompts=len(true),
        ours=scores.classification(true, predicted, probabilities),
        alone=tuple(scores.classification(true, np.argmax(one, axis=1), one) for one in made.members),
        constant=scores.classification(true, np.full(len(true), most), flat),
        confusion=confusion,
        about=made.about,
    )


def load_predictions(path: Path) -> dict[str, BinPredictions]:
    """Read the file that scripts/gpu_alpaca20.py writes."""
    try:
        return read_predictions(path)
    except (OSError, ValueError) as error:
        hint = "give the alpaca20.npz that `python -m scripts.gpu_alpaca20` wrote"
        raise InputError("is not a file of predictions", source=path, hint=hint) from error


_HEADINGS: Final = ("accuracy", "F1", "precision", "recall", "AUROC", "MCC")


def tables(found: Alpaca20Result) -> list[Table]:
    """One table: the paper's, ours and a constant's for each binning."""
    rows: list[tuple[str, ...]] = []
    begins, notes = set(), []
    for name, binned in found.binned.items():
        begins.add(len(rows))
        what = BINNINGS[name]
        if name == "equal_mass":
            rows.append((what, "paper", *(f"{PAPER[figure]:.2f}" for figure in FIGURES)))
            what = ""
            notes.append(f"* above the paper's: {len(binned.beaten)} of {len(FIGURES)}, on bins of equal mass.")
        networks = len(binned.alone)
        if networks > 1:
            rows.append((what, "ours, one network", *_means(binned.alone)))
            what = ""
        ours = "ours" if networks == 1 else f"ours, {networks} together"
        rows.append((what, ours, *_figures(binned.ours, binned.beaten if name == "equal_mass" else ())))
        rows.append(("", "constant", *_figures(binned.constant)))
        notes.append(_training(BINNINGS[name], binned))
    tested = sorted({binned.prompts for binned in found.binned.values()})
    counted = " and ".join(f"{n:,}" for n in tested)
    notes += [
        "Precision, recall, F1 and AUROC (one class against the rest) are weighted by how frequent a class is.",
        "Constant: the most frequent class of the rows that are not tested.",
        "Alpaca's licence is non-commercial: nothing trained on it ships.",
    ]
    title = f"20 bins, {counted} of {found.test_prompts:,} test prompts of {found.origin}"
    return [Table(title, ("bins", "", *_HEADINGS), rows, notes, frozenset(begins - {0}))]


def _figures(scores: ClassScores, marked: tuple[str, ...] = ()) -> list[str]:
    return [f"{getattr(scores, name):.3f}" + ("*" if name in marked else "") for name in FIGURES]


def _means(scores: tuple[ClassScores, ...]) -> list[str]:
    """The mean of each figure over single networks."""
    return [f"{sum(getattr(each, name) for each in scores) / len(scores):.3f}" for name in FIGURES]


def _training(what: str, binned: Binned) -> str:
    edges = ", ".join(f"{edge:g}" for edge in binned.edges[1:-1])
    text = f"{what}: cut after {edges} tokens"
    about = binned.about
    if "trained_on" in about:
        text += f"; trained on {about['trained_on']:,} prompts"
    if "held_out" in about:
        accuracies = [each["accuracy"] for each in about.get("each", [about["held_out"]])]
        text += f", held-out accuracy of one network {sum(accuracies) / len(accuracies):.3f}"
    if len(about.get("tried", ())) > 1:
        text += f", the best of {len(about['tried'])} settings on held-out prompts ({about['kept']})"
    return text + "."


def images(found: Alpaca20Result) -> dict[str, str]:
    """Title -> PNG in base64."""
    shown = list(found.binned.values())
    with figure(1, len(shown), size=(7.2 * len(shown), 6.4), title="True against predicted class") as (drawing, axes):
        for panel, binned in zip(axes, shown, strict=True):
            _confusion(panel, binned)
        return {"Confusion": png(drawing)}


def _confusion(axes: Axes, binned: Binned) -> None:
    share = binned.confusion / np.maximum(binned.confusion.sum(axis=1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0.0, vmax=max(float(share.max()), 0.01), origin="lower", aspect="equal")
    bins = len(share)
    labels = [f"≤ {edge:g}" for edge in binned.edges[1:-1]] + [f"> {binned.edges[-2]:g}"]
    axes.set_xticks(range(bins), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(bins), labels, fontsize=7)
    axes.grid(visible=False)
    axes.set_xlabel("predicted (tokens)")
    axes.set_ylabel("true (tokens)")
    axes.set_title(f"{BINNINGS[binned.binning]}: share of each true class")


@dataclass(frozen=True)
class Alpaca20Grid:
    """The file of predictions."""

    predictions: Path = Path("out/alpaca20.npz")


def measure(run: Run, grid: Alpaca20Grid) -> Alpaca20Result:
    """Read the predictions and score them."""
    run.report("scores", 0.0)
    return compare(load_predictions(grid.predictions), load_alpaca_lengths(), source=str(grid.predictions))


def _needs(grid: Alpaca20Grid) -> str | None:
    if grid.predictions.exists():
        return None
    return f"needs {grid.predictions}: `python -m scripts.gpu_alpaca20`, or --set predictions=FILE"


STUDY: Study[Alpaca20Grid, Alpaca20Result] = Study(
    name="alpaca20",
    title="MiniLM, 20 bins, Alpaca-52k",
    question="How well does MiniLM classify Alpaca's lengths into 20 bins?",
    paper="length-aware Preble, appendix A.1, table 1",
    source="Alpaca",
    grid=Alpaca20Grid(),
    quick=Alpaca20Grid(),
    minutes=(1, 1),
    measure=measure,
    tables=tables,
    images=images,
    needs=_needs,
)
