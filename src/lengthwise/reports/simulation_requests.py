"""Figures of what requests and engines went through, at the highest level of a grid and with its first predictor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.reports.interactive import Figure, axes, axis, panel
from lengthwise.reports.simulation import NAMES
from lengthwise.reports.simulation_figures import colour
from lengthwise.simulator.grid_result import latencies
from lengthwise.simulator.metrics import Spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.simulator.grid_result import Cell, Grid, Measure
    from lengthwise.simulator.outcome import Outcome

    Floats = NDArray[np.float64]

__all__ = ["cdfs", "length_heatmap", "over_time", "who_waited"]

_POINTS: Final = 300
_BINS: Final = 32
_GROUPS: Final = 10
_COLUMNS: Final = 3
_SHADES: Final = ((0.0, "#e3eef7"), (0.15, "#9cc4e4"), (0.4, "#4a90c4"), (1.0, "#08306b"))
"""The more requests the darker; most cells hold few, so these get most of the shades."""
_MEASURES: Final[tuple[Measure, ...]] = ("ttft_s", "e2e_s", "per_token_s")


def cdfs(grid: Grid) -> Figure:
    """The share of requests that had at most a latency."""
    cells = _shown(grid)
    shares = np.linspace(0, 1, _POINTS)
    data: list[dict[str, Any]] = []
    panels = []
    for i, measure in enumerate(_MEASURES):
        lines = []
        for cell in cells:
            values = np.concatenate([latencies(outcome)[measure] for outcome in cell.outcomes])
            known = values[~np.isnan(values)]
            lines.append(np.quantile(known, shares) if len(known) else np.array([]))
            data.append({**_line(grid, cell, i), "x": lines[-1], "y": shares})
        panels.append((_log_axis("seconds", np.concatenate(lines)), {"range": [0, 1], "tickformat": ".0%"}))
    layout = axes(panels, columns=len(_MEASURES), titles=[NAMES[measure] for measure in _MEASURES])
    return Figure("How latency is spread", f"{_where(grid)} All seeds together.", data, layout)


def over_time(grid: Grid) -> Figure:
    """Requests that wait, requests that run, and KV memory, all engines together."""
    data: list[dict[str, Any]] = []
    for cell in _shown(grid):
        times, waiting, running, kv = _timeline(cell.outcomes[0])
        for i, values in enumerate((waiting, running, kv)):
            data.append({**_line(grid, cell, i), "x": times, "y": values})
    time = axis("seconds")
    layout = axes(
        [
            (time, {"rangemode": "tozero"}),
            (time, {"rangemode": "tozero"}),
            (time, {"tickformat": ".2~%", "rangemode": "tozero"}),
        ],
        columns=3,
        titles=["waiting", "running", "KV blocks held"],
    )
    return Figure("Queue and KV memory over time", f"{_where(grid)} Seed {grid.seeds[0]}.", data, layout)


def length_heatmap(grid: Grid) -> Figure:
    """Where requests lie by output length and completion time, a panel per policy."""
    cells = _shown(grid)
    x = np.concatenate([np.log10(outcome.output_tokens) for cell in cells for outcome in cell.outcomes])
    y = np.concatenate([_log_e2e(outcome) for cell in cells for outcome in cell.outcomes])
    x_edges, y_edges = _edges(x), _edges(y)
    data: list[dict[str, Any]] = []
    for i, cell in enumerate(cells):
        tokens = np.concatenate([np.log10(outcome.output_tokens) for outcome in cell.outcomes])
        taken = np.concatenate([_log_e2e(outcome) for outcome in cell.outcomes])
        known = np.isfinite(taken)
        counts = np.histogram2d(tokens[known], taken[known], bins=(x_edges, y_edges))[0]
        share = counts.T / max(1.0, counts.sum())
        data.append(
            {
                "type": "heatmap",
                "x": 10**x_edges,
                "y": 10**y_edges,
                "z": np.where(share > 0, share, np.nan),
                "coloraxis": "coloraxis",
                "hovertemplate": "%{x:.0f} tokens<br>%{y:.2f} s<br>%{z:.2%} of requests<extra></extra>",
                **panel(i),
            }
        )
    both = (_log_axis("output tokens", 10**x_edges), _log_axis("E2E (s)", 10**y_edges))
    layout = axes([both] * len(cells), columns=min(_COLUMNS, len(cells)), titles=[cell.who for cell in cells])
    layout["coloraxis"] = {"colorscale": _SHADES, "cmin": 0, "colorbar": {"tickformat": ".1%"}}
    says = f"{_where(grid)} The share of requests in each cell. What lies far above the lower edge has waited."
    height = 120 + 330 * -(-len(cells) // _COLUMNS)
    return Figure("Completion time against output length", says, data, layout, height=height)


def who_waited(grid: Grid) -> Figure:
    """Time in the queue by predicted length, in groups of about as many requests each."""
    first = next(iter(grid.predictions))
    expected = np.concatenate([predictions.expected_and_tail()[0] for predictions in grid.predictions[first]])
    edges = np.unique(np.quantile(expected, np.linspace(0, 1, _GROUPS + 1)))
    group = np.clip(np.searchsorted(edges, expected, side="right") - 1, 0, max(0, len(edges) - 2))
    groups = np.unique(group)
    middle = [float(np.median(expected[group == each])) for each in groups]
    data: list[dict[str, Any]] = []
    for cell in _shown(grid):
        waited = np.concatenate([outcome.started - outcome.arrival for outcome in cell.outcomes])
        spreads = [Spread.of(waited[group == each]) for each in groups]
        for i, y in enumerate(([each.mean for each in spreads], [each.p99 for each in spreads])):
            data.append({**_line(grid, cell, i), "mode": "lines+markers", "x": middle, "y": y})
    both = (axis("predicted tokens", type="log"), axis("seconds", rangemode="tozero"))
    layout = axes([both] * 2, columns=2, titles=["waited, mean", "waited, p99"])
    return Figure("Who waited", f"{_where(grid)} Queueing time by predicted length.", data, layout)


def _shown(grid: Grid) -> list[Cell]:
    """The cells of the highest level: FCFS, and the others with the first predictor."""
    top = max(grid.levels, key=lambda level: level.load)
    first = next(iter(grid.predictions))
    return [cell for cell in grid.cells if cell.level == top and cell.predictor in (None, first)]


def _where(grid: Grid) -> str:
    load = _shown(grid)[0].level.load
    return f"{f'At load {load:.2f}' if math.isfinite(load) else 'All at once'}, predictions {next(iter(grid.predictions))}."


def _line(grid: Grid, cell: Cell, place: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": cell.who,
        "legendgroup": cell.who,
        "line": {"color": colour(grid, cell), "width": 1.8},
        **panel(place),
        "showlegend": place == 0,
    }


def _log_axis(title: str, values: Floats) -> dict[str, Any]:
    """Over two decades and more only these are named."""
    wide = len(values) > 0 and values.min() > 0 and values.max() >= 100 * values.min()
    return axis(title, type="log", **({"dtick": 1} if wide else {}))


def _timeline(outcome: Outcome) -> tuple[Floats, Floats, Floats, Floats]:
    """Waiting and running of all engines, and their mean KV use, at moments equally far apart."""
    lines = [engine.timeline for engine in outcome.engines if len(engine.timeline.time)]
    end = max((float(line.time[-1]) for line in lines), default=0.0)
    times = np.linspace(0.0, end, _POINTS)
    columns: Sequence[Floats] = [
        np.sum([_held(times, line.time, getattr(line, name)) for line in lines], axis=0)
        for name in ("waiting", "running", "kv_use")
    ]
    return times, columns[0], columns[1], columns[2] / max(1, len(outcome.engines))


def _held(times: Floats, at: Floats, values: NDArray[Any]) -> Floats:
    """The last value that was seen at each moment; 0 before the first, and after the last."""
    place = np.searchsorted(at, times, side="right") - 1
    return np.where((place >= 0) & (times <= at[-1]), values[np.maximum(place, 0)], 0.0)


def _log_e2e(outcome: Outcome) -> Floats:
    return np.asarray(np.log10(outcome.finish - outcome.arrival), np.float64)


def _edges(values: Floats) -> Floats:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return np.linspace(low, max(high, low + 1e-3), _BINS + 1)
