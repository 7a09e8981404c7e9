"""Figures of a grid over its levels: one line or point per policy and predictor."""

from __future__ import annotations

import math
from typing import Any, Final

from lengthwise.reports.interactive import COLOURS, Figure, axes, axis, interval_bars, panel
from lengthwise.reports.simulation import NAMES
from lengthwise.simulator.grid_result import TRUTH, Cell, Grid, Level, Measure, Statistic

__all__ = ["colour", "label", "latency_against_load", "mean_against_tail"]

_SHOWN: Final[tuple[tuple[Measure, Statistic], ...]] = (("e2e_s", "mean"), ("e2e_s", "p99"), ("per_token_s", "mean"))
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")


def latency_against_load(grid: Grid) -> Figure:
    """Mean and p99 of E2E, and per-token latency, over load."""
    names = [f"{NAMES[measure]} {statistic} (s)" for measure, statistic in _SHOWN]
    layout = axes([(axis("load"), {"rangemode": "tozero"})] * len(_SHOWN), columns=len(_SHOWN), titles=names)
    data = []
    lines = dict.fromkeys((cell.who, cell.predictor) for cell in grid.cells)
    for who, predictor in lines:
        cells = sorted(
            (cell for cell in grid.cells if (cell.who, cell.predictor) == (who, predictor)),
            key=lambda cell: cell.level.load,
        )
        data += [
            {
                **_look(grid, cells[0]),
                "mode": "lines+markers",
                "x": [cell.level.load for cell in cells],
                "y": [cell.latency(measure, statistic) for cell in cells],
                **panel(i),
                "showlegend": i == 0,
            }
            for i, (measure, statistic) in enumerate(_SHOWN)
        ]
    says = f"Averaged over seeds ({len(grid.seeds)}). Click a name to hide it, double-click to see it alone."
    return Figure("Latency against load", says, data, layout)


def mean_against_tail(grid: Grid) -> Figure:
    """Mean E2E against p99, a panel per level, with the intervals of the ratios to FCFS where FCFS was run."""
    levels = grid.levels
    compared = any(grid.baseline(level) for level in levels)
    unit = "over FCFS" if compared else "(s)"
    layout = axes(
        [(axis(f"E2E mean {unit}", **_room(grid, level, "mean")), _room(grid, level, "p99")) for level in levels],
        columns=min(3, len(levels)),
        titles=[f"load {level.load:.2f}: E2E p99 {unit}" for level in levels],
    )
    data = []
    for cell in grid.cells:
        place = levels.index(cell.level)
        data.append(
            {
                **_look(grid, cell),
                **(_ratios(grid, cell) if compared else _absolute(cell)),
                "mode": "markers",
                **panel(place),
                "showlegend": place == 0,
            }
        )
    says = (
        "Down and to the left is better: a policy that lowers the mean should not pay for it in the tail. "
        "Where an interval runs out of its panel, more seeds are needed."
    )
    return Figure("Mean against p99", says, data, layout, height=120 + 360 * -(-len(levels) // 3))


def _room(grid: Grid, level: Level, statistic: Statistic) -> dict[str, Any]:
    """A range with room for all points; an interval that is far wider than they lie apart runs out of it."""
    if grid.baseline(level) is None:
        return {}
    ratios = [grid.ratio(cell, "e2e_s", statistic) for cell in grid.cells if cell.level == level]
    known = [ratio for ratio in ratios if math.isfinite(ratio.ratio)]
    low, high = min(ratio.ratio for ratio in known), max(ratio.ratio for ratio in known)
    reach = max(high - low, 0.02 * high)
    ends = (max(low - reach, min(ratio.low for ratio in known)), min(high + reach, max(ratio.high for ratio in known)))
    return {"range": [ends[0] - 0.1 * reach, ends[1] + 0.1 * reach]}


def _absolute(cell: Cell) -> dict[str, Any]:
    return {"x": [cell.latency("e2e_s", "mean")], "y": [cell.latency("e2e_s", "p99")]}


def _ratios(grid: Grid, cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side, statistic in (("x", "mean"), ("y", "p99")):
        ratio = grid.ratio(cell, "e2e_s", "mean" if statistic == "mean" else "p99")
        found[side] = [ratio.ratio]
        found[f"error_{side}"] = interval_bars([ratio])
    return found


def label(grid: Grid, cell: Cell) -> str:
    """The policy and router, and the predictor where several are compared."""
    return cell.who if cell.predictor is None or len(grid.predictions) == 1 else f"{cell.who}, {cell.predictor}"


def colour(grid: Grid, cell: Cell) -> str:
    """Of a policy and router: the same in every figure, grey for the first."""
    compared = list(dict.fromkeys(each.who for each in grid.cells))
    return COLOURS[compared.index(cell.who) % len(COLOURS)]


def _look(grid: Grid, cell: Cell) -> dict[str, Any]:
    """A colour per policy, a dash per predictor; true lengths have open marks."""
    place = 0 if cell.predictor is None else list(grid.predictions).index(cell.predictor)
    mark = "circle-open" if cell.predictor == TRUTH and len(grid.predictions) > 1 else "circle"
    name = label(grid, cell)
    return {
        "type": "scatter",
        "name": name,
        "legendgroup": name,
        "line": {"color": colour(grid, cell), "dash": _DASHES[place % len(_DASHES)]},
        "marker": {"color": colour(grid, cell), "size": 9, "symbol": mark},
    }
