"""Figures of the TIE study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.study import Line, line_figure
from experiments.tie import paper
from experiments.tie.study import POLICIES, TieResult, find, over, top
from experiments.tie.tables import claims
from experiments.tie.traffic import AS_IN_PAPER
from lengthwise.reports.page import COLOURS, Figure, axes, axis, interval_bars, panel
from lengthwise.reports.runs import against_load, how_sure, predictor_label
from lengthwise.reports.simulation import runs_of
from lengthwise.simulator.grid import Cell, Grid

_POINTS = 200
_BINS = 32
_COLUMNS = 3
_SHADES = ((0.0, "#e3eef7"), (0.15, "#9cc4e4"), (0.4, "#4a90c4"), (1.0, "#08306b"))
"""Darker for more requests; most cells have few, so low shares get most of the shades."""


def figures(found: TieResult) -> list[Figure]:
    """Online, the paper beside ours, offline, and the paper's heatmap (its figure 5)."""
    online = _main(found.online, found.predictor)
    return [
        against_load(runs_of(online)),
        _beside_the_paper(found),
        _ablation(found),
        how_sure(runs_of(online)),
        _offline(found),
        replace(length_heatmap(found.offline), title="Offline: completion time against output length (figure 5)"),
        replace(length_heatmap(online), title="Online: completion time against output length"),
    ]


def _main(grid: Grid, predictor: str) -> Grid:
    """The grid without the ablation and the weaker predictions."""
    names = tuple(dict.fromkeys((predictor, "oracle")))
    cells = tuple(cell for cell in grid.cells if cell.policy in POLICIES and cell.predictor in (None, *names))
    return replace(grid, cells=cells, predictions={name: grid.predictions[name] for name in names})


def _beside_the_paper(found: TieResult) -> Figure:
    """Latency per token over FCFS's, the paper's four settings and our two."""
    policies = [name for name in POLICIES if name != "fcfs"]
    bars: list[dict[str, Any]] = [
        _bars(f"paper, {name}", policies, [given.get(policy, np.nan) / given["fcfs"] for policy in policies], grey)
        for (name, given), grey in zip(paper.ONLINE.items(), ("#3d4850", "#6f7b84", "#9aa3ab", "#c3c9ce"), strict=True)
    ]
    for name, grid, predictor, colour in (
        (f"ours, CASTILLO, {found.predictor}", found.online, found.predictor, COLOURS[1]),
        ("ours, synthetic", found.synthetic, AS_IN_PAPER, COLOURS[4]),
    ):
        ratios = [over(find(grid, policy, predictor), find(grid, "fcfs", "")) for policy in policies]
        bars.append(
            {
                **_bars(name, policies, [ratio.ratio for ratio in ratios], colour),
                "error_y": interval_bars(ratios),
            }
        )
    layout = axes([({}, axis("over FCFS", rangemode="tozero"))], columns=1, titles=["latency per token over FCFS's"])
    layout["barmode"] = "group"
    caption = f"At load {top(found.online).load:g}; below 1 is better. The paper has no `lengthwise`."
    return Figure("Ours beside the paper's", caption, bars, layout)


def _ablation(found: TieResult) -> Figure:
    rows = [row for row in claims(found) if row.statement.endswith("full TIE, mean")]
    names = [row.statement.split(" over")[0] for row in rows if row.setting == "CASTILLO"]
    theirs = [row.paper or np.nan for row in rows if row.setting == "CASTILLO"]
    bars = [_bars("paper", names, theirs, COLOURS[0])]
    for setting, colour in (("CASTILLO", COLOURS[1]), ("synthetic", COLOURS[4])):
        ours = [row.ours.ratio for row in rows if row.setting == setting]
        bars.append(_bars(f"ours, {setting}", names, ours, colour))
    layout = axes([({}, axis("over full TIE", rangemode="tozero"))], columns=1, titles=["latency per token, mean"])
    layout["barmode"] = "group"
    return Figure("Ablation", "Above 1: the part that is left out helps. Below 1: it hurts.", bars, layout)


def _bars(name: str, x: list[str], y: list[float], colour: str) -> dict[str, Any]:
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}, **panel(0)}


def _offline(found: TieResult) -> Figure:
    """Samples over time, first seed."""
    panels: dict[str, list[Line]] = {}
    for predictor in dict.fromkeys((found.predictor, "oracle")):
        for policy in POLICIES:
            finish = np.sort(find(found.offline, policy, predictor).outcomes[0].finish)
            shown = np.unique(np.linspace(0, len(finish) - 1, _POINTS).astype(int))
            dash = "dot" if policy == "ltr" else "solid"
            line = Line(policy, finish[shown].tolist(), (shown + 1).tolist(), dash=dash, mode="lines")
            panels.setdefault(f"predictions {predictor}", []).append(line)
    both = axis("seconds", rangemode="tozero"), axis("samples", rangemode="tozero")
    caption = "Finished samples over time. A line further up and to the left is better; all end together."
    return line_figure("Offline: all at once", caption, panels, *both)


def length_heatmap(grid: Grid) -> Figure:
    """Distribution of requests over output length and completion time, a panel per policy."""
    cells = _shown(grid)
    points = []
    for cell in cells:
        tokens = np.concatenate([outcome.output_tokens for outcome in cell.outcomes])
        e2e_s = np.concatenate([outcome.finish - outcome.arrival for outcome in cell.outcomes])
        points.append(np.log10([tokens, e2e_s]))
    x_edges, y_edges = (_edges(values) for values in np.concatenate(points, axis=1))
    data: list[dict[str, Any]] = []
    for i, (tokens, taken) in enumerate(points):
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
    load = cells[0].level.load
    where = f"At load {load:.2f}" if np.isfinite(load) else "All at once"
    source = predictor_label(next(iter(grid.predictions)))
    text = f"{where}, predictions {source}. The share of requests in each cell: far above the lower edge, they waited."
    height = 120 + 330 * -(-len(cells) // _COLUMNS)
    return Figure("Completion time against output length", text, data, layout, height=height)


def _shown(grid: Grid) -> list[Cell]:
    """The cells of the highest level: FCFS, and the others with the first predictor."""
    top = max(grid.levels, key=lambda level: level.load)
    first = next(iter(grid.predictions))
    return [cell for cell in grid.cells if cell.level == top and cell.predictor in (None, first)]


def _log_axis(title: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """A log axis; over two decades and more only powers of ten are labelled."""
    wide = len(values) > 0 and values.min() > 0 and values.max() >= 100 * values.min()
    return axis(title, type="log", **({"dtick": 1} if wide else {}))


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return np.linspace(low, max(high, low + 1e-3), _BINS + 1)
