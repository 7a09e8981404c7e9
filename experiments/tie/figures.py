"""Figures of the TIE study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.study import Line, line_figure
from experiments.tie import paper
from experiments.tie.study import POLICIES, TieResult, find, over, top
from experiments.tie.tables import claims
from experiments.tie.traffic import AS_IN_PAPER
from lengthwise.reports.page import COLOURS, Figure, axes, axis, interval_bars, panel
from lengthwise.reports.simulation import latency_against_load, length_heatmap, mean_against_tail
from lengthwise.simulator.grid import Grid

_POINTS = 200


def figures(found: TieResult) -> list[Figure]:
    """Online, the paper beside ours, offline, and the paper's heatmap (its figure 5)."""
    online = _main(found.online, found.predictor)
    return [
        latency_against_load(online),
        _beside_the_paper(found),
        _ablation(found),
        mean_against_tail(online),
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
