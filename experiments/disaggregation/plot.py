"""Figures of a `Study` for its page."""

from __future__ import annotations

from typing import Any, Final

from experiments.disaggregation.study import Arrangement, Study, What
from lengthwise.reports.interactive import COLOURS, Figure, axes, axis, interval_bars, panel

__all__ = ["figures"]

_SHOWN: Final[dict[What, str]] = {
    ("ttft_s", "mean"): "mean TTFT",
    ("tpot_s", "mean"): "mean TPOT",
    ("e2e_s", "mean"): "mean E2E",
    ("e2e_s", "p99"): "p99 E2E",
    ("per_token_s", "mean"): "mean per-token latency",
}


def figures(found: Study) -> list[Figure]:
    """Every figure over load, a panel per workload."""
    return [_over_load(found, what, name) for what, name in _SHOWN.items()]


def _over_load(found: Study, what: What, name: str) -> Figure:
    """A split's multiple of the mixed fleet, with intervals."""
    data: list[dict[str, Any]] = []
    for place, case in enumerate(found.sources):
        for number, prefill in enumerate(found.effort.prefills):
            some = [one for one in found.split if (one.case, one.prefill) == (case, prefill)]
            apart = f"{prefill}:{found.effort.engines - prefill}"
            line = {
                "type": "scatter",
                "mode": "lines+markers",
                "name": apart,
                "legendgroup": apart,
                "showlegend": place == 0,
                "line": {"color": COLOURS[number + 1]},
                "x": [one.load for one in some],
            }
            data.append({**line, **_with_interval(some, what), **panel(place)})
    both = (axis("load of the mixed fleet"), axis("split over mixed", type="log"))
    layout = axes([both] * len(found.sources), columns=2, titles=list(found.sources.values()))
    says = "Below 1 the split fleet is better. Bars: 95 % intervals over seeds. Logarithmic."
    return Figure(f"{name}, split over mixed".capitalize(), says, data, layout, height=760)


def _with_interval(some: list[Arrangement], what: What) -> dict[str, Any]:
    ratios = [one.ratios[what] for one in some]
    return {"y": [ratio.ratio for ratio in ratios], "error_y": interval_bars(ratios)}
