"""An Evaluation of a predictor as tables, figures and one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from lengthwise.llm_names import short_name
from lengthwise.predictors.evaluation import CEILING, PER_LLM, Breakdown, Evaluation
from lengthwise.predictors.traffic_evaluation import TrafficEvaluation
from lengthwise.reports.page import (
    BASELINE_COLOUR,
    COLOURS,
    Document,
    Figure,
    Origin,
    axes,
    axis,
    panel,
    ratio_axis,
    tokens_axis,
)
from lengthwise.reports.tables import Table, number, share
from lengthwise.reports.verdict import on_evaluation
from lengthwise.traffic.scores import PredictionScores

Scatter = Evaluation | TrafficEvaluation
"""Predicted and true lengths, and the calibration of the predictions."""

_COLUMNS: Final[tuple[tuple[str, Callable[[PredictionScores], str]], ...]] = (
    ("rows", lambda s: f"{s.rows:,}"),
    ("tau", lambda s: number(s.tau, 3)),
    ("MAE mean", lambda s: number(s.mae_mean, 1)),
    ("MSE mean", lambda s: number(s.mse_mean, 0)),
    ("MAE median", lambda s: number(s.mae_median, 1)),
    ("MAE std", lambda s: number(s.mae_std, 1)),
    ("MSE std", lambda s: number(s.mse_std, 0)),
    ("MAE sample", lambda s: number(s.mae, 1)),
    ("R² log", lambda s: number(s.r2_log, 3)),
    ("CRPS", lambda s: number(s.crps, 1)),
    ("in 50 %", lambda s: share(s.coverage_50)),
    ("in 90 %", lambda s: share(s.coverage_90)),
    ("width 50 %", lambda s: number(s.width_50, 2)),
    ("width 90 %", lambda s: number(s.width_90, 2)),
    ("MAE mean, raw", lambda s: number(s.raw_mae_mean, 1)),
)
_IN_GROUPS: Final = (
    "rows",
    "tau",
    "MAE mean",
    "MAE std",
    "R² log",
    "CRPS",
    "in 50 %",
    "in 90 %",
    "width 90 %",
    "MAE mean, raw",
)
"""Columns that fit beside the baselines on a terminal."""
_NOTES: Final = (
    "tau: Kendall's tau-b of the prediction's median and the mean of the clean samples, within one LLM, averaged.",
    (
        "mean: the sampling mean where the predictor gives one, else the prediction's median. MAE, MSE "
        "and CRPS are in tokens."
    ),
    "in 50 %, 90 %: share of single clean samples inside the central interval; its width is log(high / low).",
    "raw: degenerate samples in; everywhere else they are out.",
    "Noise ceiling: half of a prompt's samples against the other half, a single sample against the rest.",
)


def tables(found: Evaluation) -> list[Table]:
    """All rows, then the predictor beside its baselines by LLM, corpus and predicted median."""
    notes = [
        f"Left out: {share(found.degenerate)} of samples (degenerate), {found.left_out:,} rows without a clean sample.",
        f"Constants are fitted to {found.constants_from}.",
        *_NOTES,
    ]
    rows = [(name, *(figure(subject.overall) for _, figure in _COLUMNS)) for name, subject in found.subjects.items()]
    title = f"{found.predictor} on {found.rows:,} rows of {found.origin}"
    return [
        Table(title, ("", *(name for name, _ in _COLUMNS)), rows, notes),
        _groups("By LLM", found.predictor, found.subjects, lambda subject: subject.by_llm),
        _groups("By corpus", found.predictor, found.subjects, lambda subject: subject.by_corpus),
        _groups("By predicted median", found.predictor, found.subjects, lambda subject: subject.by_predicted),
    ]


def _groups(
    title: str,
    predictor: str,
    subjects: Mapping[str, Breakdown],
    of: Callable[[Breakdown], Mapping[str, PredictionScores]],
) -> Table:
    others = [name for name in subjects if name != predictor]
    columns = [(name, figure) for name, figure in _COLUMNS if name in _IN_GROUPS]
    rows = []
    for group, scores in of(subjects[predictor]).items():
        beside = [of(subjects[name])[group] for name in others]
        rows.append(
            (
                group,
                *(figure(scores) for _, figure in columns),
                *(f"{number(s.tau, 3)} / {number(s.mae_mean, 1)}" for s in beside),
            )
        )
    note = "Baselines: tau / MAE mean."
    return Table(title, ("", *(name for name, _ in columns), *others), rows, [note])


def evaluation_document(found: Evaluation, origin: Origin | None = None) -> Document:
    """Return the document: which LLMs and lengths are predicted well, how wide the intervals are, where they fail."""
    ours, constant, ceiling = (found.subjects[name].overall for name in (found.predictor, PER_LLM, CEILING))
    return Document(
        f"{found.predictor} on {found.rows:,} rows of {found.origin}",
        tables(found),
        found.to_dict(),
        on_evaluation(found.predictor, ours=ours, constant=constant, ceiling=ceiling),
        lambda: [by_length(found), calibration(found), _groups_figure(found)],
        origin,
    )


_BINS: Final = 36
_TENTHS: Final = 10


def by_length(found: Scatter) -> Figure:
    """Predicted against true length as a density, and the error by tenth of true length."""
    known = np.isfinite(found.true) & np.isfinite(found.predicted)
    true, predicted = np.maximum(found.true[known], 1.0), np.maximum(found.predicted[known], 1.0)
    ends = float(min(true.min(), predicted.min())) / 1.2, float(max(true.max(), predicted.max())) * 1.2
    edges = np.geomspace(*ends, _BINS + 1)
    counts = np.histogram2d(true, predicted, bins=(edges, edges))[0].T
    both = {"type": "log", "range": np.log10(ends).tolist()}
    line = {"type": "scatter", "mode": "lines", "line": {"color": BASELINE_COLOUR}, "hoverinfo": "skip"}
    tenths = [part for part in np.array_split(np.argsort(true, kind="stable"), _TENTHS) if len(part)]
    middle = [float(np.median(true[part])) for part in tenths]
    over = [float(np.median(predicted[part] / true[part])) for part in tenths]
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": edges,
            "y": edges,
            "z": np.where(counts > 0, np.log10(np.maximum(counts, 1.0)), np.nan),
            "customdata": counts,
            "colorscale": [[0.0, "#a9cdee"], [1.0, "#0b4a86"]],
            "showscale": False,
            "hovertemplate": "true %{x:.0f}<br>predicted %{y:.0f}<br>%{customdata} requests<extra></extra>",
            **panel(0),
        },
        {**line, "name": "equal", "x": list(ends), "y": list(ends), "showlegend": False, **panel(0)},
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": found.predictor,
            "x": middle,
            "y": over,
            "line": {"color": COLOURS[1]},
            "showlegend": False,
            **panel(1),
        },
        {**line, "name": "exact", "x": [middle[0], middle[-1]], "y": [1, 1], "showlegend": False, **panel(1)},
    ]
    panels = [
        (axis("true (tokens)", **both), axis("predicted (tokens)", **both)),
        (tokens_axis("true (tokens)"), ratio_axis("predicted over true", over)),
    ]
    titles = ["requests by true and predicted length", "median of predicted over true, by tenth"]
    text = "On the line the prediction is exact. Darker cells hold more requests (log scale)."
    return Figure("Which answers are predicted well", text, data, axes(panels, columns=2, titles=titles), height=460)


def calibration(found: Scatter) -> Figure:
    """The share of lengths inside the central intervals."""
    both = {"range": [0, 1], "tickformat": ".0%"}
    line = {"type": "scatter", "mode": "lines", "name": "calibrated", "x": [0, 1], "y": [0, 1]}
    ours = {"type": "scatter", "mode": "lines+markers", "name": found.predictor, "line": {"color": COLOURS[1]}}
    data: list[dict[str, Any]] = [
        {**line, "line": {"color": BASELINE_COLOUR}, **panel(0)},
        {**ours, "x": list(found.calibration), "y": list(found.calibration.values()), **panel(0)},
    ]
    panels = [(axis("nominal share of the central interval", **both), axis("answers inside", **both))]
    text = "Below the line the predictor is overconfident: fewer answers lie inside an interval than it claims."
    return Figure("Calibration of the intervals", text, data, axes(panels, columns=1, titles=["calibration"]))


_PANELS: Final[tuple[tuple[str, Callable[[PredictionScores], float]], ...]] = (
    ("Kendall's tau", lambda scores: scores.tau),
    ("MAE of the mean (tokens)", lambda scores: scores.mae_mean),
    ("samples in the 90 % interval", lambda scores: scores.coverage_90),
)


def _groups_figure(found: Evaluation) -> Figure:
    """A row per LLM and per corpus, a mark per subject."""
    marks = dict(zip(found.subjects, (COLOURS[1], BASELINE_COLOUR, COLOURS[4], COLOURS[3]), strict=False))
    ours = found.subjects[found.predictor]
    groups = [(short_name(name), "by_llm", name) for name in ours.by_llm]
    groups += [(name, "by_corpus", name) for name in ours.by_corpus]
    names = [shown for shown, _, _ in groups]
    data: list[dict[str, Any]] = []
    for place, (_, value) in enumerate(_PANELS):
        for name, subject in found.subjects.items():
            values = [value(getattr(subject, by)[group]) for _, by, group in groups]
            if np.isfinite(values).any():
                mark = {"type": "scatter", "mode": "markers", "name": name, "legendgroup": name}
                shown = {"x": values, "y": names, "marker": {"color": marks[name], "size": 9}}
                data.append({**mark, **shown, "showlegend": place == 1, **panel(place)})
    rows = {"type": "category", "categoryorder": "array", "categoryarray": names[::-1]}
    ends: list[dict[str, Any]] = [{"range": [0, 1]}, {"rangemode": "tozero"}, {"range": [0, 1], "tickformat": ".0%"}]
    panels = [(axis("", **end), axis("", **rows, showticklabels=not place)) for place, end in enumerate(ends)]
    layout = axes(panels, columns=3, titles=[title for title, _ in _PANELS])
    text = "Every LLM and every corpus; a constant has no tau."
    return Figure("Scores by LLM and corpus", text, data, layout, height=160 + 24 * len(groups))
