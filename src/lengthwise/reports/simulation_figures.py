"""Figures of a grid over its levels: one line or point per policy and predictor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lengthwise.reports.interactive import COLOURS, Figure, axes, axis, panel
from lengthwise.reports.simulation import NAMES
from lengthwise.simulator.cells import TRUTH

if TYPE_CHECKING:
    from lengthwise.simulator.cells import Cell, Grid, Measure, Statistic

__all__ = ["colour", "label", "latency_against_load", "mean_against_tail"]

_SHOWN: Final[tuple[tuple[Measure, Statistic], ...]] = (("e2e_s", "mean"), ("e2e_s", "p99"), ("per_token_s", "mean"))
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")


def latency_against_load(grid: Grid) -> Figure:
    """Mean and p99 of E2E, and per-token latency, over load."""
    names = [f"{NAMES[measure]} {statistic} (s)" for measure, statistic in _SHOWN]
    layout = axes([(axis("load"), {"rangemode": "tozero"})] * len(_SHOWN), columns=len(_SHOWN), titles=names)
    data = []
    lines = dict.fromkeys((cell.policy, cell.predictor) for cell in grid.cells)
    for policy, predictor in lines:
        cells = sorted(
            (cell for cell in grid.cells if (cell.policy, cell.predictor) == (policy, predictor)),
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
        [(axis(f"E2E mean {unit}"), axis(f"E2E p99 {unit}"))] * len(levels),
        columns=min(3, len(levels)),
        titles=[f"load {level.load:.2f}" for level in levels],
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
    says = "Down and to the left is better: a policy that lowers the mean should not pay for it in the tail."
    return Figure("Mean against p99", says, data, layout, height=120 + 360 * -(-len(levels) // 3))


def _absolute(cell: Cell) -> dict[str, Any]:
    return {"x": [cell.latency("e2e_s", "mean")], "y": [cell.latency("e2e_s", "p99")]}


def _ratios(grid: Grid, cell: Cell) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side, statistic in (("x", "mean"), ("y", "p99")):
        ratio = grid.ratio(cell, "e2e_s", "mean" if statistic == "mean" else "p99")
        found[side] = [ratio.ratio]
        found[f"error_{side}"] = {
            "type": "data",
            "symmetric": False,
            "array": [ratio.high - ratio.ratio],
            "arrayminus": [ratio.ratio - ratio.low],
            "thickness": 1,
        }
    return found


def label(grid: Grid, cell: Cell) -> str:
    """The policy, and the predictor where several are compared."""
    return cell.policy if cell.predictor is None or len(grid.beliefs) == 1 else f"{cell.policy}, {cell.predictor}"


def colour(grid: Grid, cell: Cell) -> str:
    """Of a policy: the same in every figure, grey for the first."""
    policies = list(dict.fromkeys(each.policy for each in grid.cells))
    return COLOURS[policies.index(cell.policy) % len(COLOURS)]


def _look(grid: Grid, cell: Cell) -> dict[str, Any]:
    """A colour per policy, a dash per predictor; true lengths have open marks."""
    place = 0 if cell.predictor is None else list(grid.beliefs).index(cell.predictor)
    mark = "circle-open" if cell.predictor == TRUTH and len(grid.beliefs) > 1 else "circle"
    name = label(grid, cell)
    return {
        "type": "scatter",
        "name": name,
        "legendgroup": name,
        "line": {"color": colour(grid, cell), "dash": _DASHES[place % len(_DASHES)]},
        "marker": {"color": colour(grid, cell), "size": 9, "symbol": mark},
    }
