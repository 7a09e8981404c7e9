"""Pictures of a `ReasoningStudy`. Loads Matplotlib: import it only to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.reasoning.holding import ASKED, SEEN, Asked
from experiments.reasoning.study import ReasoningStudy
from experiments.reasoning.view import CALLED
from lengthwise.reports.figures import COLOURS, GREY, figure, legend, log_tokens, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["pictures"]

_TICKS: Final = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)


def pictures(found: ReasoningStudy) -> dict[str, str]:
    """Title -> PNG in base64."""
    title = f"{found.llm}, {found.prompts:,} prompts with and without a request to reason"
    with figure(1, 3, size=(15.5, 5.0), title=title) as (drawing, axes):
        _change(axes[0], found)
        for panel, asked in zip(axes[1:], ASKED, strict=True):
            _calibration(panel, found, asked)
        return {title: png(drawing)}


def _change(axes: Axes, found: ReasoningStudy) -> None:
    for values, name, colour in (
        (found.prompt_means, "answers", COLOURS[0]),
        (found.predicted_means, "predictions as shipped", COLOURS[1]),
    ):
        axes.scatter(values["plain"], values["steps"], s=18, color=colour, alpha=0.7, label=name, linewidth=0)
    means = [values[asked] for values in (found.prompt_means, found.predicted_means) for asked in ASKED]
    ends = (min(float(each.min()) for each in means) / 1.2, max(float(each.max()) for each in means) * 1.2)
    axes.plot(ends, ends, color=GREY, linewidth=1.2)
    ticks = [tick for tick in _TICKS if ends[0] <= tick <= ends[1]]
    log_tokens(axes, ticks)
    axes.set_yscale("log")
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("mean length, plain (tokens)")
    axes.set_ylabel("mean length, step by step (tokens)")
    axes.set_title("One dot per prompt; above the line is longer")
    legend(axes, loc="upper left")


def _calibration(axes: Axes, found: ReasoningStudy, asked: Asked) -> None:
    axes.plot([0, 100], [0, 100], color=GREY, linewidth=1.2)
    for seen, colour in zip(SEEN, COLOURS, strict=False):
        each = found.holding(asked, seen)
        predicted, actual = (100 * np.array(list(column.values())) for column in (each.covered_predicted, each.covered))
        name = "as shipped" if seen is None else f"has seen {each.observations:,} {CALLED[seen]}"
        axes.plot(predicted, actual, color=colour, marker="o", markersize=4, label=name)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("share that predictions expect inside the interval (%)")
    axes.set_ylabel("answers inside (%)")
    axes.set_title(f"Calibration, asked {CALLED[asked]}")
    legend(axes, loc="upper left")
