"""One picture of a `PrebleStudy`. Loads Matplotlib: import it only to draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.preble import paper
from experiments.preble.cells import Cell, Measure, Run, places
from experiments.preble.study import PrebleStudy
from lengthwise.reports.figures import COLOURS, figure, legend, log_tokens, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

_OURS: Final = "#23292e"
_SHOWN: Final = (
    Run("random"),
    Run("round_robin"),
    Run("least_outstanding"),
    Run("e2"),
    Run("e2_length", "oracle"),
    Run("lengthwise", "none"),
    Run("lengthwise", "oracle"),
)
"""More lines cannot be told apart."""
_ON_CASTILLO: Final = tuple(Run(name) for name in ("least_outstanding", "least_load", "cache_aware", "dynamo", "e2"))


def draw(found: PrebleStudy, path: Path) -> None:
    """Normalized latency and E2E over the rate on figure 2's engines, and E2E over the load of CASTILLO."""
    on = [cell for cell in found.react if cell.place.engines == paper.COMPARED]
    with figure(1, 3, size=(13.5, 4.6), title="Routers, FCFS inside engines") as (drawing, panels):
        _lines(panels[0], on, "per_token_s", _SHOWN)
        _lines(panels[1], on, "e2e_s", _SHOWN)
        _lines(panels[2], found.shared, "e2e_s", (*_ON_CASTILLO, Run("lengthwise", found.predictor)))
        panels[0].set_title(f"ReAct, {paper.COMPARED} engines: latency per token")
        panels[1].set_title(f"ReAct, {paper.COMPARED} engines: mean E2E")
        panels[2].set_title("CASTILLO, shared prefixes: mean E2E")
        save(drawing, path)


def _lines(axes: Axes, cells: Sequence[Cell], measure: Measure, runs: Sequence[Run]) -> None:
    by_rate = any(place.unit == "requests/s" for place in places(cells))
    for number, run in enumerate(runs):
        here = [cell for cell in cells if cell.run == run]
        x = [cell.place.at for cell in here]
        y = [cell.mean(measure) for cell in here]
        colour = _OURS if run.router == "lengthwise" else COLOURS[number % len(COLOURS)]
        style = "--" if run.predictor == "none" else "-"
        axes.plot(x, y, style, marker="o", markersize=3.5, color=colour, label=str(run))
    axes.set_ylabel("seconds")
    axes.set_xlabel("requests/s" if by_rate else "load")
    if by_rate:
        log_tokens(axes, [place.at for place in places(cells)])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xticks([place.at for place in places(cells)])
        axes.set_ylim(bottom=0.0)
    legend(axes)
