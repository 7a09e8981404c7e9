"""`Alpaca20` as a table, for programs, and as one HTML page with pictures."""

from __future__ import annotations

from typing import Any, Final

from experiments.alpaca20.run import BINNINGS
from experiments.alpaca20.study import FIGURES, PAPER, Alpaca20, Binned
from lengthwise.predictors.scores import ClassScores
from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table

__all__ = ["html_report", "plain", "tables"]

_HEADINGS: Final = ("accuracy", "F1", "precision", "recall", "AUROC", "MCC")


def tables(found: Alpaca20) -> list[Table]:
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
    said = f"{what}: cut after {edges} tokens"
    about = binned.about
    if "trained_on" in about:
        said += f"; trained on {about['trained_on']:,} prompts"
    if "held_out" in about:
        told = [each["accuracy"] for each in about.get("each", [about["held_out"]])]
        said += f", held-out accuracy of one network {sum(told) / len(told):.3f}"
    if len(about.get("tried", ())) > 1:
        said += f", the best of {len(about['tried'])} settings on held-out prompts ({about['kept']})"
    return said + "."


def plain(found: Alpaca20) -> dict[str, Any]:
    """The same for programs."""
    return {
        "origin": found.origin,
        "test_prompts": found.test_prompts,
        "paper": dict(PAPER),
        "binned": dict(found.binned),
        "beaten": {name: list(binned.beaten) for name, binned in found.binned.items() if name == "equal_mass"},
    }


def html_report(found: Alpaca20) -> str:
    """One page: who is taken for whom, and the loss curves."""
    from experiments.alpaca20.plot import pictures  # Matplotlib takes half a second to load

    return html_page("MiniLM, 20 bins, Alpaca-52k", pictures(found), tables(found))
