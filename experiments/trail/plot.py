"""Figures of a `TrailStudy` for its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.trail import paper
from experiments.trail.study import KINDS, Run, TrailStudy
from lengthwise.reports.interactive import COLOURS, Figure, axes, axis, interval_bars, panel
from lengthwise.simulator.paired import Ratio

__all__ = ["figures"]


def figures(found: TrailStudy) -> list[Figure]:
    """The poster's figure, the same as gains, and where preemption pays."""
    return [_poster(found), _gains(found), _where(found)]


def _poster(found: TrailStudy) -> Figure:
    """Mean latency and TTFT over c, with and without a prefix cache."""
    data: list[dict[str, Any]] = []
    panels = [(caching, what) for caching in (False, True) for what in ("E2E", "TTFT")]
    for place, (caching, what) in enumerate(panels):
        for number, kind in enumerate(KINDS):
            runs = _of(found, kind, caching)
            y = [run.e2e_s if what == "E2E" else run.ttft_s for run in runs]
            data.append({**_line(kind, number, runs, first=place == 0), "y": y, **panel(place)})
    both = (axis("c"), axis("seconds", rangemode="tozero"))
    titles = [f"mean {what}, {'' if caching else 'no '}prefix cache" for caching, what in panels]
    says = f"The poster's figure: mean latency and TTFT over c at {paper.RATE:g} requests/s. Lower is better."
    layout = axes([both] * len(panels), columns=2, titles=titles)
    return Figure("Over c", says, data, layout, height=760)


def _gains(found: TrailStudy) -> Figure:
    """What preemption adds to the order: c = 0 over each c, with intervals."""
    data: list[dict[str, Any]] = []
    for place, caching in enumerate((False, True)):
        for number, kind in enumerate(KINDS):
            runs = _of(found, kind, caching)
            line = _line(kind, number, runs, first=place == 0)
            data.append({**line, **_with_interval(runs, lambda run: run.over_none), **panel(place)})
    both = (axis("c"), axis("mean E2E, c = 0 over this c"))
    layout = axes([both] * 2, columns=2, titles=["no prefix cache", "prefix cache"])
    return Figure("Does preemption pay?", "Above 1 it does. Bars: 95 % intervals over seeds.", data, layout)


def _where(found: TrailStudy) -> Figure:
    """What preemption adds, by slots and load."""
    data: list[dict[str, Any]] = []
    preempting = found.where[1::2]
    for place, caching in enumerate((False, True)):
        for number, slots in enumerate(found.effort.slots):
            runs = [run for run in preempting if run.setting.slots == slots and run.setting.caching == caching]
            line = {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{slots} slots",
                "legendgroup": str(slots),
                "showlegend": place == 0,
                "line": {"color": COLOURS[number + 1]},
                "x": [run.setting.load for run in runs],
            }
            data.append({**line, **_with_interval(runs, lambda run: run.over_none), **panel(place)})
    both = (axis("load"), axis(f"mean E2E, c = 0 over c = {paper.C:g}"))
    layout = axes([both] * 2, columns=2, titles=["no prefix cache", "prefix cache"])
    return Figure("Where preemption pays", "Few slots: a place is seldom free by itself.", data, layout)


def _of(found: TrailStudy, kind: str, caching: bool) -> list[Run]:
    return [run for run in found.over_c if run.predictions == kind and run.setting.caching == caching]


def _line(name: str, number: int, runs: list[Run], *, first: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "legendgroup": name,
        "showlegend": first,
        "line": {"color": COLOURS[number + 1], "dash": "dot" if "stand-in" in name else "solid"},
        "x": [run.c for run in runs],
    }


def _with_interval(runs: list[Run], measure: Callable[[Run], Ratio]) -> dict[str, Any]:
    ratios = [measure(run) for run in runs]
    return {"y": [ratio.ratio for ratio in ratios], "error_y": interval_bars(ratios)}
