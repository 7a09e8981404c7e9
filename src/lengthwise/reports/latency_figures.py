"""Figures of compared runs: latency by output length, over time and by load, and ratios with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from lengthwise.reports.page import (
    BASELINE_COLOUR,
    Figure,
    axes,
    axis,
    colours,
    interval_bars,
    panel,
    ratio_axis,
    tokens_axis,
)
from lengthwise.reports.runs import NAMES, SHOWN, ReportedRun, at_highest_load
from lengthwise.simulator.grid import BASELINE, figure_name
from lengthwise.simulator.metrics import TRUTH, LatencyProfile

_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")
_MAX_ROWS: Final = 24


def figures(runs: Sequence[ReportedRun]) -> list[Figure]:
    """Return the figures of each place; latency by load only if there are several loads."""
    found = []
    places = list(dict.fromkeys(run.place for run in runs))
    for place in places:
        here = [run for run in runs if run.place == place]
        suffix = f" ({place})" if len(places) > 1 else ""
        shown = at_highest_load(here)
        drawn = [latency_by_length(shown), latency_over_time(shown), ratio_intervals(here), latency_by_load(here)]
        found += [
            Figure(each.title + suffix, each.text, each.data, each.layout, each.height) for each in drawn if each.data
        ]
    return found


def latency_by_length(runs: Sequence[ReportedRun]) -> Figure:
    """E2E by tenth of output length: in seconds, and over the baseline's where there is one."""
    known = [run for run in runs if run.profile is not None and run.profile.tokens]
    base = next((run for run in known if run.is_baseline), None)
    data: list[dict[str, Any]] = []
    ratios: list[float] = []
    for run in known:
        profile = _profile(run)
        data.append({**trace(run, known, 0, "lines+markers"), "x": profile.tokens, "y": profile.e2e_s})
        if base is not None and len(profile.e2e_s) == len(_profile(base).e2e_s):
            over = np.divide(profile.e2e_s, _profile(base).e2e_s).tolist()
            ratios += over
            data.append({**trace(run, known, 1, "lines+markers"), "x": profile.tokens, "y": over})
    tokens = tokens_axis("output tokens (median of each tenth)")
    panels = [(tokens, axis("seconds", rangemode="tozero"))]
    titles = ["mean E2E"]
    if ratios:
        panels.append((tokens, ratio_axis("", ratios)))
        titles.append(f"over {base.name if base else BASELINE}: below 1 is faster, above 1 slower")
    text = f"{_where(runs)}Requests in ten groups of equal size by output length."
    if len(known) > 1:
        text += " Click a name to hide it."
    return Figure("Latency by output length", text, data, axes(panels, columns=len(panels), titles=titles))


def latency_over_time(runs: Sequence[ReportedRun]) -> Figure:
    """Waiting requests and mean E2E over time."""
    known = [run for run in runs if run.profile is not None and run.profile.time_s]
    data: list[dict[str, Any]] = []
    for run in known:
        profile = _profile(run)
        data.append({**trace(run, known, 0), "x": profile.time_s, "y": profile.waiting})
        data.append({**trace(run, known, 1), "x": profile.time_s, "y": profile.window_e2e_s, "connectgaps": True})
    time = axis("seconds since the start", rangemode="tozero")
    panels = [(time, axis("requests", rangemode="tozero")), (time, axis("seconds", rangemode="tozero"))]
    titles = ["waiting for the first token", "mean E2E by time of sending"]
    text = f"{_where(runs)}{'' if len(known) == 1 else 'The first seed, or the first block.'}"
    return Figure("Queue and latency over time", text, data, axes(panels, columns=2, titles=titles))


def ratio_intervals(runs: Sequence[ReportedRun]) -> Figure:
    """The ratios to the baseline with their intervals, a panel per figure."""
    known = [run for run in runs if not run.is_baseline and not math.isnan(run.ratio("e2e_mean").ratio)]
    if len(known) > _MAX_ROWS:
        known = at_highest_load(known)
    base = next((run.name for run in runs if run.is_baseline), BASELINE)
    several = len({run.offered for run in known}) > 1
    names = [f"{run.label}, {run.offered}" if several else run.label for run in known]
    titles = {figure_name(*what): title for what, title in SHOWN.items()}
    shown = [name for name in titles if any(not math.isnan(run.ratio(name).ratio) for run in known)]
    data: list[dict[str, Any]] = []
    panels = []
    for place, figure in enumerate(shown):
        ratios = [run.ratio(figure) for run in known]
        for run, name, ratio in zip(known, names, ratios, strict=True):
            bars = {} if math.isnan(ratio.low) else {"error_x": interval_bars([ratio])}
            data.append(
                {**trace(run, runs, place, "markers"), "x": [ratio.ratio], "y": [name], "showlegend": False, **bars}
            )
        ends = [end for ratio in ratios for end in (ratio.low, ratio.ratio, ratio.high)]
        order = {"categoryorder": "array", "categoryarray": names[::-1], "showticklabels": place % 2 == 0}
        panels.append((ratio_axis("", ends), axis("", type="category", **order)))
    layout = axes(panels, columns=min(2, len(panels)) or 1, titles=[f"{titles[name]} over {base}" for name in shown])
    row = 80 + 28 * len(known)
    layout["grid"]["ygap"] = 60 / row
    line = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "line": {"width": 1, "color": BASELINE_COLOUR}}
    sides = [panel(place) for place in range(len(panels))]
    layout["shapes"] = [{**line, "xref": each["xaxis"], "yref": f"{each['yaxis']} domain"} for each in sides]
    text = f"Left of 1 is better than {base}. Bars: 95 % intervals, paired; without a bar there is none."
    return Figure("Ratios with their intervals", text, data, layout, height=60 + -(-len(panels) // 2) * row)


def latency_by_load(runs: Sequence[ReportedRun]) -> Figure:
    """Mean and p99 of E2E, and TTFT, over load; empty for a single load."""
    known = [run for run in runs if not math.isnan(run.load)]
    data: list[dict[str, Any]] = []
    shown = (("e2e_s", "mean"), ("e2e_s", "p99"), ("ttft_s", "mean"))
    if len({run.load for run in known}) > 1:
        for label in dict.fromkeys(run.label for run in known):
            line = sorted((run for run in known if run.label == label), key=lambda run: run.load)
            for place, (metric, statistic) in enumerate(shown):
                y = [run.latency[metric][statistic] for run in line]
                x = [run.load for run in line]
                data.append({**trace(line[0], known, place, "lines+markers"), "x": x, "y": y})
    unit = "requests/s" if known and known[0].offered.endswith("/s") else "load"
    panels = [(axis(unit), axis("seconds", rangemode="tozero"))] * len(shown)
    titles = [f"{statistic} {NAMES[metric]}" for metric, statistic in shown]
    return Figure(
        "Latency by load",
        "Averaged over seeds, where there are several.",
        data,
        axes(panels, columns=len(shown), titles=titles),
    )


def trace(run: ReportedRun, among: Iterable[ReportedRun], place: int, mode: str = "lines") -> dict[str, Any]:
    """A run in one panel: a colour per policy and router, a dash per predictor; true lengths have open marks.

    What the others are compared with is grey.
    """
    together = list(among)
    base = next((each.name for each in together if each.is_baseline), BASELINE)
    colour = colours((each.name for each in together), base)[run.name]
    sources = list(dict.fromkeys(each.predictor for each in together if each.predictor is not None))
    dash = sources.index(run.predictor) if run.predictor in sources else 0
    return {
        "type": "scatter",
        "mode": mode,
        "name": run.label,
        "legendgroup": run.label,
        "line": {"color": colour, "dash": _DASHES[dash % len(_DASHES)]},
        "marker": {"color": colour, "size": 8, "symbol": "circle-open" if run.predictor == TRUTH else "circle"},
        **panel(place),
        "showlegend": place == 0,
    }


def _profile(run: ReportedRun) -> LatencyProfile:
    assert run.profile is not None  # noqa: S101  (callers select runs that have one)
    return run.profile


def _where(runs: Sequence[ReportedRun]) -> str:
    return f"At {runs[0].offered}. " if runs and runs[0].offered else ""
