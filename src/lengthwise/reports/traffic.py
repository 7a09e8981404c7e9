"""How good predictions were in production, as tables, figures and one HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from lengthwise.predictors.traffic_evaluation import ALONE, HISTORY, SERVED, TrafficEvaluation, Window
from lengthwise.reports.evaluation import by_length, calibration
from lengthwise.reports.page import BASELINE_COLOUR, COLOURS, Document, Figure, Origin, axes, axis, panel
from lengthwise.reports.tables import Table, number, share
from lengthwise.reports.verdict import on_traffic
from lengthwise.traffic.scores import PredictionScores

SCORE_COLUMNS: Final = ("requests", "tau", "log error", "in 50 %", "in 90 %", "log score")
_BESIDE: Final = ("log error", "log score")
"""Columns of the history beside a group."""
_NOTES: Final = (
    "tau: Kendall's tau-b of predicted median and length, within a model, averaged. log error: the median factor.",
    "in 50 %, 90 %: share of lengths inside the central interval. log score: mean log density of log lengths, in nats.",
    "history: what the model's earlier lengths alone predict.",
    "An answer cut by max_tokens has that length; one that its client or an error ended is not scored.",
)


def score_cells(scores: PredictionScores) -> list[str]:
    """Return the cells of SCORE_COLUMNS."""
    return [
        f"{scores.rows:,}",
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
        _time_table(found.windows),
        *(_group_table(kind, values) for kind, values in found.groups.items()),
    ]


def _time_table(windows: Sequence[Window]) -> Table:
    """Return tau over time: what learning brings as answers end."""
    rows = []
    for window in windows:
        served, alone, history = (window.scores[kind] for kind in (SERVED, ALONE, HISTORY))
        taus = [number(each.tau, 3) for each in (served, alone, history)]
        until = f"{datetime.fromtimestamp(window.until, UTC):%Y-%m-%d %H:%M}"
        rows.append([f"{window.first:,} to {window.last:,}", until, *taus, share(served.coverage_90)])
    columns = ["answers", "until (UTC)", "tau as served", "predictor alone", "history", "in 90 %"]
    return Table("Over time, in the order in which answers ended", columns, rows)


def _group_table(kind: str, values: Mapping[str, Mapping[str, PredictionScores]]) -> Table:
    rows = []
    for value, kinds in values.items():
        history = dict(zip(SCORE_COLUMNS, score_cells(kinds[HISTORY]), strict=True))
        rows.append([value, *score_cells(kinds[SERVED]), *(history[name] for name in _BESIDE)])
    return Table(f"By {kind}", ["", *SCORE_COLUMNS, *(f"history: {name}" for name in _BESIDE)], rows)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def traffic_document(found: TrafficEvaluation, origin: Origin | None = None) -> Document:
    """Return the document: which answers are predicted well, how sure the predictions are, and how they were by day."""
    return Document(
        f"Predictions in {found.origin}",
        tables(found),
        found.to_dict(),
        on_traffic(found.scored, found.overall[SERVED], found.overall[HISTORY]),
        lambda: [by_length(found), calibration(found), _over_time(found), _by_day(found)],
        origin,
    )


_PANELS: Final = {"tau": "Kendall's tau", "log_error": "median |log(length / predicted)|", "coverage_90": "in 90 %"}


def _over_time(found: TrafficEvaluation) -> Figure:
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": kind,
            "x": [window.last for window in found.windows],
            "y": [window.scores[kind].tau for window in found.windows],
            "line": {"color": colour},
        }
        for kind, colour in ((SERVED, COLOURS[1]), (ALONE, COLOURS[0]), (HISTORY, BASELINE_COLOUR))
    ]
    layout = {"xaxis": axis("answers"), "yaxis": axis("Kendall's tau")}
    caption = "Windows of equally many answers, in the order in which they ended."
    return Figure("Tau while the gateway learns", caption, data, layout)


def _by_day(found: TrafficEvaluation) -> Figure:
    days = found.groups["day"]
    data: list[dict[str, Any]] = []
    for place, name in enumerate(_PANELS):
        for kind, colour in ((SERVED, COLOURS[1]), (HISTORY, BASELINE_COLOUR)):
            line = {"type": "scatter", "mode": "lines+markers", "name": kind, "legendgroup": kind}
            values = [getattr(scores[kind], name) for scores in days.values()]
            shown = {"x": list(days), "y": values, "line": {"color": colour}, "showlegend": place == 0}
            data.append({**line, **shown, **panel(place)})
    ends: list[dict[str, Any]] = [{"range": [0, 1]}, {"rangemode": "tozero"}, {"range": [0, 1], "tickformat": ".0%"}]
    panels = [(axis("", type="category"), axis("", **end)) for end in ends]
    layout = axes(panels, columns=3, titles=list(_PANELS.values()))
    return Figure("Scores by day (UTC)", "The served predictions beside the history of each model.", data, layout)
