"""Pictures of an `Evaluation`. Loads Matplotlib: import it only to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.reports.figures import COLOURS, GREY, dots, figure, legend, log_tokens, percent_axis, png, short_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lengthwise.predictors.evaluation import Breakdown, Evaluation, EvaluationScores

__all__ = ["pictures"]

_TICKS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
_MARKS: Final = (*COLOURS[:3], GREY)


def pictures(found: Evaluation) -> dict[str, str]:
    """Title -> PNG in base64."""
    with figure(1, 2, size=(13, 5.6), title=f"{found.predictor}: {found.rows:,} rows") as (drawing, axes):
        _predicted_against_true(axes[0], found)
        _calibration(axes[1], found)
        prediction = png(drawing)
    return {
        "Predicted against true, and calibration": prediction,
        "By LLM": _bars(found, "by LLM", lambda subject: subject.by_llm),
        "By corpus": _bars(found, "by corpus", lambda subject: subject.by_corpus),
    }


def _predicted_against_true(axes: Axes, found: Evaluation) -> None:
    known = np.isfinite(found.true) & np.isfinite(found.predicted)
    true, said = np.maximum(found.true[known], 1.0), np.maximum(found.predicted[known], 1.0)
    ends = (float(min(true.min(), said.min())) / 1.2, float(max(true.max(), said.max())) * 1.2)
    low, high = np.log10(ends)
    # The same span on both axes, so that cells are cells even where a predictor says one length only.
    axes.hexbin(
        true,
        said,
        xscale="log",
        yscale="log",
        gridsize=55,
        bins="log",
        mincnt=1,
        cmap="Blues",
        extent=(low, high, low, high),
    )
    axes.plot(ends, ends, color=COLOURS[1], linewidth=1.2, label="equal")
    ticks = [tick for tick in _TICKS if ends[0] <= tick <= ends[1]]
    log_tokens(axes, ticks)
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel("mean of the clean samples (tokens)")
    axes.set_ylabel("predicted (tokens)")
    axes.set_title("Predicted against true, prompts per cell (log)")
    legend(axes, loc="upper left")


def _calibration(axes: Axes, found: Evaluation) -> None:
    nominal = [100 * level for level in found.calibration]
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1.2, label="calibrated")
    actual = [100 * level for level in found.calibration.values()]
    axes.plot(nominal, actual, color=COLOURS[0], marker="o", markersize=4, label=found.predictor)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("nominal share of the central interval (%)")
    axes.set_ylabel("single clean samples inside (%)")
    axes.set_title("Calibration: below the line is overconfident")
    legend(axes, loc="upper left")


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
