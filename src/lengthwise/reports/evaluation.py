"""An Evaluation of a predictor as tables, figures and one HTML page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from lengthwise.predictors.evaluation import Breakdown, Evaluation, EvaluationScores
from lengthwise.reports.figures import COLOURS, GREY, describe, dots, figure, log_tokens, percent_axis, png, short_name
from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table, number, share

if TYPE_CHECKING:  # matplotlib is an extra
    from matplotlib.axes import Axes
    from numpy.typing import NDArray


class Scatter(Protocol):
    """Predicted and true lengths, and the calibration of the predictions."""

    @property
    def predictor(self) -> str: ...  # noqa: D102
    @property
    def predicted(self) -> NDArray[np.float64]: ...  # noqa: D102
    @property
    def true(self) -> NDArray[np.float64]: ...  # noqa: D102
    @property
    def calibration(self) -> Mapping[float, float]: ...  # noqa: D102


_COLUMNS: Final[tuple[tuple[str, Callable[[EvaluationScores], str]], ...]] = (
    ("rows", lambda s: f"{s.rows:,}"),
    ("tau", lambda s: number(s.tau, 3)),
    ("MAE mean", lambda s: number(s.mae_mean, 1)),
    ("MSE mean", lambda s: number(s.mse_mean, 0)),
    ("MAE median", lambda s: number(s.mae_median, 1)),
    ("MAE std", lambda s: number(s.mae_std, 1)),
    ("MSE std", lambda s: number(s.mse_std, 0)),
    ("MAE sample", lambda s: number(s.mae_sample, 1)),
    ("R² log", lambda s: number(s.r2_log, 3)),
    ("CRPS", lambda s: number(s.crps, 1)),
    ("in 50 %", lambda s: share(s.coverage_50)),
    ("in 90 %", lambda s: share(s.coverage_90)),
    ("width 50 %", lambda s: number(s.width_50, 2)),
    ("width 90 %", lambda s: number(s.width_90, 2)),
    ("MAE mean, raw", lambda s: number(s.raw_mae_mean, 1)),
)
_IN_GROUPS: Final = ("rows", "tau", "MAE mean", "MAE std", "R² log", "CRPS", "in 50 %", "in 90 %", "MAE mean, raw")
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
    """Everything over all rows, the classes, then the predictor beside its baselines by LLM and by corpus."""
    notes = [
        f"Left out: {share(found.degenerate)} of samples (degenerate), {found.left_out:,} rows without a clean sample.",
        f"Constants are fitted to {found.constants_from}.",
        *_NOTES,
    ]
    rows = [(name, *(figure(subject.overall) for _, figure in _COLUMNS)) for name, subject in found.subjects.items()]
    title = f"{found.predictor} on {found.rows:,} rows of {found.origin}"
    return [
        Table(title, ("", *(name for name, _ in _COLUMNS)), rows, notes),
        _class_table(found),
        _groups("By LLM", found.predictor, found.subjects, lambda subject: subject.by_llm),
        _groups("By corpus", found.predictor, found.subjects, lambda subject: subject.by_corpus),
    ]


def _class_table(found: Evaluation) -> Table:
    rows: list[tuple[str, ...]] = []
    begins = set()
    schemes = next(iter(found.subjects.values())).overall.classes
    for scheme in schemes:
        begins.add(len(rows))
        for i, (name, subject) in enumerate(found.subjects.items()):
            s = subject.overall.classes[scheme]
            figures = (s.precision, s.recall, s.f1, s.mcc, s.auroc)
            rows.append((scheme if i == 0 else "", name, share(s.accuracy), *(number(value, 3) for value in figures)))
    columns = ("classes", "", "accuracy", "precision", "recall", "F1", "MCC", "AUROC")
    note = (
        "Class of the mean of the clean samples; precision, recall, F1 and AUROC (one against the rest) are weighted."
    )
    return Table("Classes", columns, rows, [note], frozenset(begins - {0}))


def _groups(
    title: str,
    predictor: str,
    subjects: Mapping[str, Breakdown],
    of: Callable[[Breakdown], Mapping[str, EvaluationScores]],
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


def html_report(found: Evaluation) -> str:
    """Return one page with embedded pictures."""
    return html_page(f"{found.predictor}: how well it predicts lengths", tables(found), pictures=pictures(found))


_TICKS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
_MARKS: Final = (*COLOURS[:3], GREY)


def pictures(found: Evaluation) -> dict[str, str]:
    """Return PNGs in base64 by title."""
    with figure(1, 2, size=(13, 5.6), title=f"{found.predictor}: {found.rows:,} rows") as (drawing, axes):
        draw_predicted(axes[0], found)
        draw_calibration(axes[1], found)
        prediction = png(drawing)
    return {
        "Predicted against true, and calibration": prediction,
        "By LLM": _bars(found, "by LLM", lambda subject: subject.by_llm),
        "By corpus": _bars(found, "by corpus", lambda subject: subject.by_corpus),
    }


def draw_predicted(axes: Axes, found: Scatter) -> None:
    """Draw predicted against true lengths."""
    known = np.isfinite(found.true) & np.isfinite(found.predicted)
    true, predicted = np.maximum(found.true[known], 1.0), np.maximum(found.predicted[known], 1.0)
    ends = (float(min(true.min(), predicted.min())) / 1.2, float(max(true.max(), predicted.max())) * 1.2)
    low, high = np.log10(ends)
    # The same range on both axes: hexbin needs an extent even if a predictor always predicts the same length.
    axes.hexbin(
        true, predicted, xscale="log", yscale="log", gridsize=55, bins="log", mincnt=1, cmap="Blues",
        extent=(low, high, low, high),
    )  # fmt: skip
    axes.plot(ends, ends, color=COLOURS[1], linewidth=1.2, label="equal")
    ticks = [tick for tick in _TICKS if ends[0] <= tick <= ends[1]]
    log_tokens(axes, ticks)
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlim=ends, ylim=ends)
    title = "Predicted against true, prompts per cell (log)"
    describe(axes, title, x="mean of the clean samples (tokens)", y="predicted (tokens)", legend_at="upper left")


def draw_calibration(axes: Axes, found: Scatter) -> None:
    """Draw the share of lengths inside the central intervals."""
    nominal = [100 * level for level in found.calibration]
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1.2, label="calibrated")
    actual = [100 * level for level in found.calibration.values()]
    axes.plot(nominal, actual, color=COLOURS[0], marker="o", markersize=4, label=found.predictor)
    axes.set(xlim=(0, 100), ylim=(0, 100))
    x, y = "nominal share of the central interval (%)", "single clean samples inside (%)"
    describe(axes, "Calibration: below the line is overconfident", x=x, y=y, legend_at="upper left")


def _bars(found: Evaluation, by: str, of: Callable[[Breakdown], Mapping[str, EvaluationScores]]) -> str:
    groups = list(of(found.subjects[found.predictor]))
    height = 1.8 + 0.36 * len(groups)
    with figure(1, 3, size=(14, height), title=f"{found.predictor} {by}") as (drawing, axes):
        for panel, (title, value) in zip(axes, _PANELS, strict=True):
            series = [
                (name, [value(of(subject)[group]) for group in groups]) for name, subject in found.subjects.items()
            ]
            shown = [(name, values) for name, values in series if np.isfinite(values).any()]
            colours = [_MARKS[i % len(_MARKS)] for i, (_, values) in enumerate(series) if np.isfinite(values).any()]
            dots(panel, [short_name(group) for group in groups], shown, colours=colours)
            panel.set_title(title)
        percent_axis(axes[2])
        handles, labels = axes[1].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        return png(drawing)


_PANELS: Final[tuple[tuple[str, Callable[[EvaluationScores], float]], ...]] = (
    ("Kendall's tau", lambda scores: scores.tau),
    ("MAE of the mean (tokens)", lambda scores: scores.mae_mean),
    ("samples in the 90 % interval", lambda scores: scores.coverage_90),
)
