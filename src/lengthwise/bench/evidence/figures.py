"""The measurement as plots: an interactive page, and one still figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lengthwise.bench.evidence.lines import said
from lengthwise.bench.evidence.plan import STOCK
from lengthwise.bench.evidence.store import under_load
from lengthwise.bench.evidence.view import TITLES, tables
from lengthwise.predictors.service import NO_PREDICTOR
from lengthwise.reports.page import COLOURS, Figure, axes, axis, html_page, interval_bars, panel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lengthwise.bench.evidence.lines import Evidence
    from lengthwise.bench.evidence.store import Result

    Curves = dict[tuple[str, str], list[Result]]

__all__ = ["html_report", "still_figure"]

_POINTS = 300
_STOCK = (STOCK, NO_PREDICTOR)
_DRAWN = ("default",)
"""Whose curves a still figure has beside the headline's: more cannot be told apart."""


def html_report(evidence: Evidence, results: Sequence[Result]) -> str:
    """The page."""
    figures = [_cdfs(results), _mean_against_tail(evidence), _by_repeat(evidence)]
    return html_page("Length-aware scheduling on a real vLLM", tables(evidence), figures=figures)


def _cdfs(results: Sequence[Result]) -> Figure:
    groups = _same_traffic(results)
    orders = sorted({_order(result) for result in results}, key=lambda order: (order[0] != STOCK, order))
    traces: list[dict[str, Any]] = []
    for place, curves in enumerate(groups.values()):
        for colour, (policy, predictor) in enumerate(orders):
            here = curves.get((policy, predictor))
            if here is None:
                continue
            x, y = _curve(np.concatenate([result.e2e_s for result in here]))
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": _name(policy, predictor),
                    "legendgroup": _name(policy, predictor),
                    "showlegend": not any(trace["name"] == _name(policy, predictor) for trace in traces),
                    "line": {"color": COLOURS[colour % len(COLOURS)], "width": 2 if policy == STOCK else 1.5},
                    "x": x,
                    "y": y,
                    **panel(place),
                }
            )
    panels = [(axis("E2E latency, s", type="log"), axis("share of requests", range=[0, 1]))] * len(groups)
    titles = [f"({setting}) load {load:g}, repeat {', '.join(map(str, repeats))}" for setting, load, repeats in groups]
    return Figure(
        "How long requests took",
        "Cumulative shares of E2E latency, orders of the same traffic together. The long end is what the tail pays.",
        traces,
        axes(panels, columns=min(2, max(1, len(panels))), titles=titles) if panels else {},
        height=420 * max(1, -(-len(panels) // 2)),
    )


def _mean_against_tail(evidence: Evidence) -> Figure:
    groups = sorted({(line.setting, line.load or 0.0) for line in evidence.lines})
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"({setting}) load {load:g}",
            "marker": {"size": 10, "color": COLOURS[1 + place]},
            "text": [line.name for line in lines],
            "x": [line.mean.ratio for line in lines],
            "y": [line.p99.ratio for line in lines],
            "error_x": interval_bars([line.mean for line in lines]),
            "error_y": interval_bars([line.p99 for line in lines]),
        }
        for place, (setting, load) in enumerate(groups)
        if (lines := [x for x in evidence.lines if (x.setting, x.load) == (setting, load) and not x.stock])
    ]
    layout = {"xaxis": axis("mean E2E over stock vLLM's"), "yaxis": axis("p99 E2E over stock vLLM's")}
    says = "Left of 1 the mean is better than first come, first served; above 1 the slowest of a hundred pay for it."
    return Figure("What the mean wins and the tail pays", says, traces, layout)


def _by_repeat(evidence: Evidence) -> Figure:
    lines = [line for line in evidence.lines if not line.stock]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"({line.setting}) {line.load:g} {line.name}",
            "marker": {"size": 9},
            "x": [run.mean for run in line.by_repeat],
            "y": [f"({line.setting}) {line.load:g} {line.name}"] * len(line.by_repeat),
            "showlegend": False,
        }
        for line in lines
    ]
    layout = {"xaxis": axis("mean E2E over stock vLLM's, each repeat"), "yaxis": axis(""), "margin": {"l": 260}}
    says = "Each dot is one pair of runs on the same traffic; left of 1 is better than first come, first served."
    return Figure("Repeat by repeat", says, traces, layout, height=max(420, 120 + 24 * len(lines)))


def still_figure(evidence: Evidence, results: Sequence[Result], path: Path) -> bool:
    """E2E latencies and what was won at the highest load of setting a, for a document; False where there is none."""
    from lengthwise.reports.figures import COLOURS as TOLD_APART
    from lengthwise.reports.figures import GREY, dots, figure, legend, save

    loads = [line.load for line in evidence.lines if line.setting == "a" and line.load is not None]
    if not loads:
        return False
    load = max(loads)
    groups = [each for key, each in _same_traffic(results).items() if key[:2] == ("a", load)]
    curves = max(groups, key=lambda each: sum(len(runs) for runs in each.values()))
    lines = [line for line in evidence.lines if (line.setting, line.load) == ("a", load) and not line.stock]
    size = (11.5, 4.6)
    with figure(1, 2, size=size, title=f"Setting (a): {TITLES['a']}, load {load:g}") as (drawing, (left, right)):
        told = [
            (order, runs)
            for order, runs in curves.items()
            if order == _STOCK or order[1] in _DRAWN or any(run.cell.headline for run in runs)
        ]
        for place, ((policy, predictor), runs) in enumerate(told):
            x, y = _curve(np.concatenate([run.e2e_s for run in runs]))
            colour = GREY if policy == STOCK else TOLD_APART[(place - 1) % len(TOLD_APART)]
            left.plot(x, y, color=colour, label=_name(policy, predictor), linewidth=2.4 if policy == STOCK else 1.5)
        left.set_xscale("log")
        left.set_xlabel("E2E latency, s")
        left.set_ylabel("share of requests")
        legend(left, loc="lower right")
        shown = [
            ("mean E2E", [1 / line.mean.ratio for line in lines]),
            ("per-token latency", [1 / line.per_token.ratio for line in lines]),
            ("p99 E2E", [1 / line.p99.ratio for line in lines]),
        ]
        if lines:
            dots(right, [line.name.replace("`", "") for line in lines], shown)
            right.axvline(1.0, color=GREY, linewidth=1)
            right.set_xlabel("times better than stock vLLM (below 1: worse)")
            legend(right, loc="best")
        save(drawing, path)
    return True


def _same_traffic(results: Sequence[Result]) -> dict[tuple[str, float, tuple[int, ...]], Curves]:
    """Runs under load by setting, load and repeats, stock vLLM first: latencies of other traffic are no comparison."""
    found: dict[tuple[str, float, tuple[int, ...]], Curves] = {}
    for (setting, load), orders in sorted(under_load(results).items()):
        stock = orders.pop(_STOCK, {})
        for order, runs in sorted((orders or {_STOCK: stock}).items()):
            repeats = tuple(sorted(runs))
            curves = found.setdefault((setting, load, repeats), {})
            beside = [stock[repeat] for repeat in repeats if repeat in stock]
            if beside:
                curves[_STOCK] = beside
            curves[order] = [runs[repeat] for repeat in repeats]
    return found


def _curve(values: NDArray[np.float64]) -> tuple[list[float], list[float]]:
    shares = np.linspace(0, 1, _POINTS)
    return np.quantile(values, shares).tolist(), shares.tolist()


def _order(result: Result) -> tuple[str, str]:
    return result.cell.policy, result.cell.predictor


def _name(policy: str, predictor: str) -> str:
    return "fcfs (stock vLLM)" if policy == STOCK else f"{policy}, {said(predictor).strip('`')}"
