"""A grid of simulations as one HTML page with Plotly figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.reports.page import COLOURS, Figure, axes, axis, interactive_page, interval_bars, panel
from lengthwise.reports.simulation import NAMES, predictor_label, tables
from lengthwise.simulator.grid_result import TRUTH, Cell, Grid, Level, Measure, Statistic, latencies
from lengthwise.simulator.metrics import Spread
from lengthwise.simulator.outcome import Outcome

_SHOWN: Final[tuple[tuple[Measure, Statistic], ...]] = (("e2e_s", "mean"), ("e2e_s", "p99"), ("per_token_s", "mean"))
_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")


def latency_against_load(grid: Grid) -> Figure:
    """Mean and p99 of E2E, and per-token latency, over load."""
    names = [f"{NAMES[measure]} {statistic} (s)" for measure, statistic in _SHOWN]
    layout = axes([(axis("load"), {"rangemode": "tozero"})] * len(_SHOWN), columns=len(_SHOWN), titles=names)
    data = []
    lines = dict.fromkeys((cell.label, cell.predictor) for cell in grid.cells)
    for compared, predictor in lines:
        cells = sorted(
            (cell for cell in grid.cells if (cell.label, cell.predictor) == (compared, predictor)),
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
    text = f"Averaged over seeds ({len(grid.seeds)}). Click a name to hide it, double-click to show it alone."
    return Figure("Latency against load", text, data, layout)


def mean_against_tail(grid: Grid) -> Figure:
    """Mean E2E against p99, a panel per level, with the intervals of the ratios to FCFS where FCFS was run."""
    levels = grid.levels
    compared = any(grid.baseline(level) for level in levels)
    unit = "over FCFS" if compared else "(s)"
    layout = axes(
        [(axis(f"E2E mean {unit}", **_range(grid, level, "mean")), _range(grid, level, "p99")) for level in levels],
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
    text = (
        "Down and to the left is better: a policy that lowers the mean should not pay for it in the tail. "
        "An interval cut by its panel needs more seeds."
    )
    return Figure("Mean against p99", text, data, layout, height=120 + 360 * -(-len(levels) // 3))


def _range(grid: Grid, level: Level, statistic: Statistic) -> dict[str, Any]:
    """An axis range that holds every point; an interval far wider than the points is cut."""
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
    return (
        cell.label
        if cell.predictor is None or len(grid.predictions) == 1
        else f"{cell.label}, {predictor_label(cell.predictor)}"
    )


def colour(grid: Grid, cell: Cell) -> str:
    """Return the colour of a policy and router: the same in every figure, grey for the first."""
    compared = list(dict.fromkeys(each.label for each in grid.cells))
    return COLOURS[compared.index(cell.label) % len(COLOURS)]


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


Floats = NDArray[np.float64]

_POINTS: Final = 300
_BINS: Final = 32
_GROUPS: Final = 10
_COLUMNS: Final = 3
_SHADES: Final = ((0.0, "#e3eef7"), (0.15, "#9cc4e4"), (0.4, "#4a90c4"), (1.0, "#08306b"))
"""Darker for more requests; most cells have few, so low shares get most of the shades."""
_MEASURES: Final[tuple[Measure, ...]] = ("ttft_s", "e2e_s", "per_token_s")


def cdfs(grid: Grid) -> Figure:
    """The cumulative distribution of each latency."""
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
    return Figure("Distribution of latency", f"{_where(grid)} All seeds together.", data, layout)


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
        titles=["waiting", "running", "KV blocks in use"],
    )
    return Figure("Queue and KV memory over time", f"{_where(grid)} Seed {grid.seeds[0]}.", data, layout)


def length_heatmap(grid: Grid) -> Figure:
    """Distribution of requests over output length and completion time, a panel per policy."""
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
    layout = axes([both] * len(cells), columns=min(_COLUMNS, len(cells)), titles=[cell.label for cell in cells])
    layout["coloraxis"] = {"colorscale": _SHADES, "cmin": 0, "colorbar": {"tickformat": ".1%"}}
    text = f"{_where(grid)} The share of requests in each cell. Requests far above the lower edge waited."
    height = 120 + 330 * -(-len(cells) // _COLUMNS)
    return Figure("Completion time against output length", text, data, layout, height=height)


def waiting_by_length(grid: Grid) -> Figure:
    """Time in the queue by predicted length, in groups of about equal size."""
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
    layout = axes([both] * 2, columns=2, titles=["mean", "p99"])
    return Figure(
        "Waiting time by predicted length", f"{_where(grid)} Requests in ten groups of equal size.", data, layout
    )


def _shown(grid: Grid) -> list[Cell]:
    """The cells of the highest level: FCFS, and the others with the first predictor."""
    top = max(grid.levels, key=lambda level: level.load)
    first = next(iter(grid.predictions))
    return [cell for cell in grid.cells if cell.level == top and cell.predictor in (None, first)]


def _where(grid: Grid) -> str:
    load = _shown(grid)[0].level.load
    return (
        f"{f'At load {load:.2f}' if math.isfinite(load) else 'All at once'}, predictions "
        f"{predictor_label(next(iter(grid.predictions)))}."
    )


def _line(grid: Grid, cell: Cell, place: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": cell.label,
        "legendgroup": cell.label,
        "line": {"color": colour(grid, cell), "width": 1.8},
        **panel(place),
        "showlegend": place == 0,
    }


def _log_axis(title: str, values: Floats) -> dict[str, Any]:
    """A log axis; over two decades and more only powers of ten are labelled."""
    wide = len(values) > 0 and values.min() > 0 and values.max() >= 100 * values.min()
    return axis(title, type="log", **({"dtick": 1} if wide else {}))


def _timeline(outcome: Outcome) -> tuple[Floats, Floats, Floats, Floats]:
    """Waiting and running of all engines, and their mean KV use, at equally spaced times."""
    lines = [engine.timeline for engine in outcome.engines if len(engine.timeline.time)]
    end = max((float(line.time[-1]) for line in lines), default=0.0)
    times = np.linspace(0.0, end, _POINTS)
    columns: Sequence[Floats] = [
        np.sum([_last_value(times, line.time, getattr(line, name)) for line in lines], axis=0)
        for name in ("waiting", "running", "kv_use")
    ]
    return times, columns[0], columns[1], columns[2] / max(1, len(outcome.engines))


def _last_value(times: Floats, at: Floats, values: NDArray[Any]) -> Floats:
    """The latest value at each time; 0 before the first and after the last."""
    place = np.searchsorted(at, times, side="right") - 1
    return np.where((place >= 0) & (times <= at[-1]), values[np.maximum(place, 0)], 0.0)


def _log_e2e(outcome: Outcome) -> Floats:
    return np.asarray(np.log10(outcome.finish - outcome.arrival), np.float64)


def _edges(values: Floats) -> Floats:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return np.linspace(low, max(high, low + 1e-3), _BINS + 1)


def html_report(grid: Grid) -> str:
    """One page: latency over load, then the distribution over requests at the highest load, then the tables."""
    figures = [
        latency_against_load(grid),
        mean_against_tail(grid),
        cdfs(grid),
        over_time(grid),
        length_heatmap(grid),
        waiting_by_length(grid),
    ]
    return interactive_page(f"{grid.workload.name} on {grid.fleet}", figures, tables(grid))
