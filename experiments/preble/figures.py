"""Figures of the Preble study: interactive ones for its page, a static one for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.preble import paper
from experiments.preble.study import Cell, Measure, PrebleResult, Routing, find, places
from experiments.preble.tables import E2, E2_TRUE, OURS_TRUE, by_true_lengths, length_name, overheads
from lengthwise.reports.figures import COLOURS as STATIC_COLOURS
from lengthwise.reports.figures import figure, legend, log_tokens, save
from lengthwise.reports.page import COLOURS, Figure, axes, axis, panel

_LOG: Final[dict[str, Any]] = {"type": "log"}


def figures(found: PrebleResult) -> list[Figure]:
    """The paper's three figures, and CASTILLO."""
    return [
        _rates_figure(found, "per_token_s", "Figure 1A: normalized latency over the rate"),
        _rates_figure(found, "e2e_s", "Mean E2E over the rate"),
        _over_engines(found),
        _overhead_figure(found),
        _variance_figure(found),
        _figure_2_figure(found),
        _figure_3_figure(found),
        _shared_figure(found),
    ]


def _runs(cells: Sequence[Cell]) -> list[Routing]:
    return list(dict.fromkeys(cell.run for cell in cells))


def _line(run: Routing, number: int, *, first: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": str(run),
        "legendgroup": str(run),
        "showlegend": first,
        "line": {"color": COLOURS[number % len(COLOURS)], "dash": "dot" if run.predictor == "none" else "solid"},
    }


def _rates_figure(found: PrebleResult, measure: Measure, title: str) -> Figure:
    data: list[dict[str, Any]] = []
    for place, engines in enumerate(found.grid.engines):
        cells = [cell for cell in found.react if cell.place.engines == engines]
        for number, run in enumerate(_runs(cells)):
            here = [cell for cell in cells if cell.run == run]
            x, y = [cell.place.at for cell in here], [cell.mean(measure) for cell in here]
            data.append({**_line(run, number, first=place == 0), "x": x, "y": y, **panel(place)})
    both = (axis("requests/s", **_LOG), axis("seconds", **_LOG))
    titles = [f"{engines} engines" for engines in found.grid.engines]
    caption = f"Lengths 1 or 300, mean over {found.grid.seeds} seeds. Lower is better."
    return Figure(title, caption, data, axes([both] * len(titles), columns=2, titles=titles), height=820)


def _over_engines(found: PrebleResult) -> Figure:
    rates = [rate for rate in found.grid.rates if rate >= 16.0] or list(found.grid.rates)
    data: list[dict[str, Any]] = []
    for place, rate in enumerate(rates):
        cells = [cell for cell in found.react if cell.place.at == rate]
        for number, run in enumerate(_runs(cells)):
            here = [cell for cell in cells if cell.run == run]
            x, y = [cell.place.engines for cell in here], [cell.mean("per_token_s") for cell in here]
            data.append({**_line(run, number, first=place == 0), "x": x, "y": y, **panel(place)})
    both = (axis("engines", **_LOG), axis("seconds per token", **_LOG))
    titles = [f"{rate:g} requests/s" for rate in rates]
    layout = axes([both] * len(rates), columns=2, titles=titles)
    return Figure("Figure 1B: normalized latency over engines", "Lower is better.", data, layout, height=820)


def _overhead_figure(found: PrebleResult) -> Figure:
    counts = found.grid.engines
    data: list[dict[str, Any]] = []
    for number, (router, ours, _) in enumerate(overheads(counts)):
        data.append({**_line(Routing(router), number, first=True), "x": list(counts), "y": ours, **panel(0)})
    for router, symbol in (("e2", "x"), ("least_outstanding", "cross")):
        for rate, size in ((8.0, 8), (128.0, 13)):
            at = [count for count, of in paper.OVERHEAD_S.items() if rate in of[router]]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": f"paper: {router}, {rate:g}/s",
                    "marker": {"symbol": symbol, "size": size, "color": "#23292e"},
                    "x": at,
                    "y": [1e6 * paper.OVERHEAD_S[count][router][rate] for count in at],
                    **panel(0),
                }
            )
    layout = axes([(axis("engines", **_LOG), axis("microseconds", **_LOG))], columns=1, titles=["of a request"])
    caption = "Time of a router per request. Ours as measured on ReAct traffic; crosses: the paper's, the choice only."
    return Figure("Figure 1C: routing time", caption, data, layout, height=520)


def _variance_figure(found: PrebleResult) -> Figure:
    grid = found.grid
    both = (*found.varied, *found.react)
    spots = [(engines, rate) for engines in grid.varied_engines for rate in grid.varied_rates]
    data: list[dict[str, Any]] = []
    for place, (engines, rate) in enumerate(spots):
        cells = [cell for cell in both if (cell.place.engines, cell.place.at) == (engines, rate)]
        for number, run in enumerate(_runs(found.varied)):
            here = [cell for cell in cells if cell.run == run]
            x, y = [length_name(cell.place.workload) for cell in here], [cell.mean("per_token_s") for cell in here]
            data.append({**_line(run, number, first=place == 0), "x": x, "y": y, **panel(place)})
    each = (axis("lengths, of the same mean"), axis("seconds per token", rangemode="tozero"))
    titles = [f"{engines} engines, {rate:g} requests/s" for engines, rate in spots]
    layout = axes([each] * len(spots), columns=2, titles=titles)
    return Figure("Figure 1D: variance of lengths", "Normalized latency. Lower is better.", data, layout, height=820)


def _figure_2_figure(found: PrebleResult) -> Figure:
    rates = list(by_true_lengths(found))
    data: list[dict[str, Any]] = []
    for number, run in enumerate((E2, E2_TRUE, OURS_TRUE)):
        y = [find(found.react, run, paper.COMPARED, rate).mean("per_token_s") for rate in rates]
        data.append({**_line(run, number, first=True), "x": rates, "y": y, **panel(0)})
    for number, name in enumerate(("paper: Preble", "paper: with true lengths")):
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "marker": {"symbol": "x", "size": 11, "color": COLOURS[number]},
                "x": list(paper.LATENCY_S),
                "y": [both[number] for both in paper.LATENCY_S.values()],
                **panel(0),
            }
        )
    layout = axes([(axis("requests/s", **_LOG), axis("seconds per token", **_LOG))], columns=1, titles=[""])
    return Figure(
        f"Figure 2: {paper.COMPARED} engines", "Normalized latency. Lower is better.", data, layout, height=480
    )


def _figure_3_figure(found: PrebleResult) -> Figure:
    bars = {"type": "bar", "x": [f"{length}" for length in found.drawn], "y": list(found.drawn.values()), **panel(0)}
    layout = axes([(axis("output tokens", type="category"), axis("share of requests"))], columns=1, titles=[""])
    return Figure("Figure 3: lengths of the most variance", "As drawn, first seed.", [bars], layout, height=320)


def _shared_figure(found: PrebleResult) -> Figure:
    data: list[dict[str, Any]] = []
    measures: tuple[tuple[Measure, str], ...] = (("e2e_s", "mean"), ("ttft_s", "p99"))
    for place, what in enumerate(measures):
        for number, run in enumerate(_runs(found.shared)):
            here = [cell for cell in found.shared if cell.run == run]
            x, y = [cell.place.at for cell in here], [cell.mean(*what) for cell in here]
            data.append({**_line(run, number, first=place == 0), "x": x, "y": y, **panel(place)})
    both = (axis("load"), axis("seconds", rangemode="tozero"))
    layout = axes([both] * 2, columns=2, titles=["mean E2E", "p99 TTFT"])
    return Figure("CASTILLO behind ten shared prefixes", "Lower is better.", data, layout, height=520)


_OURS: Final = "#23292e"
_SHOWN: Final = (
    Routing("random"),
    Routing("round_robin"),
    Routing("least_outstanding"),
    Routing("e2"),
    Routing("e2_length", "oracle"),
    Routing("lengthwise", "none"),
    Routing("lengthwise", "oracle"),
)
"""More lines are not distinguishable."""
_ON_CASTILLO: Final = tuple(
    Routing(name) for name in ("least_outstanding", "least_load", "cache_aware", "dynamo", "e2")
)


def draw(found: PrebleResult, path: Path) -> None:
    """Normalized latency and E2E over the rate on figure 2's engines, and E2E over the load of CASTILLO."""
    on = [cell for cell in found.react if cell.place.engines == paper.COMPARED]
    with figure(1, 3, size=(13.5, 4.6), title="Routers, FCFS inside engines") as (drawing, panels):
        _lines(panels[0], on, "per_token_s", _SHOWN)
        _lines(panels[1], on, "e2e_s", _SHOWN)
        _lines(panels[2], found.shared, "e2e_s", (*_ON_CASTILLO, Routing("lengthwise", found.grid.predictor)))
        panels[0].set_title(f"ReAct, {paper.COMPARED} engines: latency per token")
        panels[1].set_title(f"ReAct, {paper.COMPARED} engines: mean E2E")
        panels[2].set_title("CASTILLO, shared prefixes: mean E2E")
        save(drawing, path)


def _lines(axes: Axes, cells: Sequence[Cell], measure: Measure, runs: Sequence[Routing]) -> None:
    by_rate = any(place.unit == "requests/s" for place in places(cells))
    for number, run in enumerate(runs):
        here = [cell for cell in cells if cell.run == run]
        x = [cell.place.at for cell in here]
        y = [cell.mean(measure) for cell in here]
        colour = _OURS if run.router == "lengthwise" else STATIC_COLOURS[number % len(STATIC_COLOURS)]
        style = "--" if run.predictor == "none" else "-"
        axes.plot(x, y, style, marker="o", markersize=3.5, color=colour, label=str(run))
    axes.set_ylabel("seconds")
    axes.set_xlabel("requests/s" if by_rate else "load")
    if by_rate:
        log_tokens(axes, [place.at for place in places(cells)])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xticks([place.at for place in places(cells)])
        axes.set_ylim(bottom=0.0)
    legend(axes)
