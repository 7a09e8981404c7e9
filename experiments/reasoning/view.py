"""`ReasoningStudy` as tables and as one HTML page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from experiments.reasoning.holding import ASKED, Asked, Holding
from experiments.reasoning.study import ReasoningStudy
from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table, share

__all__ = ["CALLED", "html_report", "tables", "write_html"]

CALLED: Final[dict[Asked, str]] = {"plain": "plain", "steps": "step by step"}


def tables(found: ReasoningStudy) -> list[Table]:
    """Lengths, how they change, and how predictions hold."""
    return [_lengths(found), _ratios(found), _holdings(found)]


def _lengths(found: ReasoningStudy) -> Table:
    rows = []
    for asked in ASKED:
        half = found.halves[asked]
        pairs = (half.mean, half.predicted_mean, half.median, half.predicted_median)
        interval = f"{_number(half.tau_low)} to {_number(half.tau_high)}"
        taus = (_number(half.tau), interval, _number(half.tau_of_halves))
        rows.append((CALLED[asked], *(f"{value:,.0f}" for value in pairs), *taus))
    title = f"{found.predictor} on {found.prompts:,} prompts x {found.samples} answers of {found.llm}"
    notes = [
        f"Rows: {found.origin}. Answers and predictions are cut at {found.max_tokens:,} tokens.",
        "tau: Kendall's tau-b of the prediction's median and the mean of the answers, within one LLM.",
        "tau of halves: one half of a prompt's answers against the other; noisier than tau, and no bound to it.",
        "Intervals are those of resampled prompts.",
    ]
    columns = ("asked", "mean", "predicted mean", "median", "predicted median", "tau", "90 % interval", "tau of halves")
    return Table(title, columns, rows, notes)


def _ratios(found: ReasoningStudy) -> Table:
    rows = [
        (
            corpus,
            f"{ratio.prompts:,}",
            f"{ratio.seen:.2f}",
            f"{ratio.low:.2f} to {ratio.high:.2f}",
            f"{ratio.predicted:.2f}",
            share(ratio.cut["plain"]),
            share(ratio.cut["steps"]),
        )
        for corpus, ratio in found.ratios.items()
    ]
    columns = ("", "prompts", "ratio", "90 % interval", "predicted ratio", "cut, plain", "cut, step by step")
    note = "ratio: length with the sentence over length without, geometric mean over prompts of their mean lengths."
    return Table("How much longer answers become", columns, rows, [note], frozenset({1}))


def _holdings(found: ReasoningStudy) -> Table:
    rows = [
        (
            CALLED[each.asked],
            _seen(each),
            f"x {each.shift:.2f}",
            _pair(each.covered[0.5], each.covered_predicted[0.5]),
            _pair(each.covered[0.9], each.covered_predicted[0.9]),
            _pair(each.above_tail, each.above_tail_predicted),
            _pair(each.cut, each.cut_predicted),
        )
        for each in found.holdings
    ]
    columns = ("asked", "has seen", "medians", "in 50 %", "in 90 %", "above 95 %", "at the limit")
    notes = [
        "has seen: answers that online calibration was shown before, to other prompts than it is judged on.",
        "In each pair: what is seen / what the predictions expect; where an interval ends at the limit, more than nominal.",
        "above 95 %: answers longer than the prediction's 95 % quantile. at the limit: answers that reach it.",
    ]
    begins = frozenset(i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0])
    return Table("How predictions hold", columns, rows, notes, begins)


def _seen(each: Holding) -> str:
    return "nothing" if each.seen is None else f"{each.observations:,} {CALLED[each.seen]}"


def _pair(seen: float, predicted: float) -> str:
    return f"{100 * seen:.1f} / {100 * predicted:.1f} %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def write_html(found: ReasoningStudy, path: Path) -> None:
    """Write the page, pictures inside."""
    path.write_text(html_report(found), encoding="utf-8")


def html_report(found: ReasoningStudy) -> str:
    """One page: the picture and the tables."""
    from experiments.reasoning.plot import pictures  # Matplotlib takes half a second to load

    return html_page(f"{found.predictor}: asked to think step by step", pictures(found), tables(found))
