"""How good predictions were in production, as tables, figures and one HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from lengthwise.predictors.traffic_evaluation import HISTORY, SERVED, TrafficEvaluation, TrafficScores
from lengthwise.reports.evaluation import draw_calibration, draw_predicted
from lengthwise.reports.figures import COLOURS, GREY, describe, figure, png
from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table, number, share

SCORE_COLUMNS: Final = ("requests", "tau", "log error", "in 50 %", "in 90 %", "log score")
_NOTES: Final = (
    "tau: Kendall's tau-b of predicted median and length, within a model, averaged. log error: the median factor.",
    "in 50 %, 90 %: share of lengths inside the central interval. log score: mean log density of log lengths, in nats.",
    "history: what the model's earlier lengths alone predict.",
    "An answer cut by max_tokens has that length; one that its client or an error ended is not scored.",
)


def score_cells(scores: TrafficScores) -> list[str]:
    """Return the cells of SCORE_COLUMNS."""
    return [
        f"{scores.requests:,}",
        number(scores.tau, 3),
        f"x{number(math.exp(scores.log_error), 2)}",
        share(scores.coverage_50),
        share(scores.coverage_90),
        number(scores.log_score, 3),
    ]


def tables(found: TrafficEvaluation) -> list[Table]:
    """Return all requests, then each kind of group beside the history."""
    first, last = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (found.first, found.last))
    notes = [
        f"{found.scored:,} of {found.requests:,} requests scored, {first} to {last} UTC.",
        f"Ended: {_counts(found.finish_reasons)}. Ordered by: {_counts(found.sources)}.",
        *_NOTES,
    ]
    rows = [[name, *score_cells(scores)] for name, scores in found.overall.items()]
    return [
        Table(f"Predictions in {found.origin}", ["", *SCORE_COLUMNS], rows, notes),
        *(_group_table(kind, values) for kind, values in found.groups.items()),
    ]


def _group_table(kind: str, values: Mapping[str, Mapping[str, TrafficScores]]) -> Table:
    rows = [[value, *score_cells(kinds[SERVED]), *score_cells(kinds[HISTORY])[2:]] for value, kinds in values.items()]
    columns = ["", *SCORE_COLUMNS, *(f"history: {name}" for name in SCORE_COLUMNS[2:])]
    return Table(f"By {kind}", columns, rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def html_report(found: TrafficEvaluation) -> str:
    """Return one page with embedded pictures."""
    with figure(1, 2, size=(13, 5.6), title=f"{found.scored:,} requests") as (drawing, axes):
        draw_predicted(axes[0], found)
        draw_calibration(axes[1], found)
        pictures = {"Predicted against true, and calibration": png(drawing)}
    pictures["By day"] = _by_day(found)
    return html_page("How good predictions were", tables(found), pictures=pictures)


def _by_day(found: TrafficEvaluation) -> str:
    days = found.groups["day"]
    places = range(len(days))
    with figure(1, 3, size=(14, 4.2), title="By day (UTC)") as (drawing, axes):
        panels = (
            ("Kendall's tau", "tau"),
            ("median |log(length / predicted)|", "log_error"),
            ("in 90 %", "coverage_90"),
        )
        for panel, (title, name) in zip(axes, panels, strict=True):
            for kind, colour in ((SERVED, COLOURS[0]), (HISTORY, GREY)):
                values = [getattr(scores[kind], name) for scores in days.values()]
                panel.plot(places, values, color=colour, marker="o", markersize=4, label=kind)
            panel.set_xticks(list(places), list(days), rotation=45, ha="right")
            describe(panel, title, legend_at="best")
        return png(drawing)
