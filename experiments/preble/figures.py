"""Figures of the Preble study: interactive ones for its page, a static one for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from experiments.preble import paper
from experiments.preble.study import Cell, Measure, PrebleResult, Routing, find, places
from experiments.preble.tables import E2, E2_TRUE, OURS_TRUE, by_true_lengths, overheads
from experiments.study import Line, line_figure
from lengthwise.reports.figures import COLOURS, figure, legend, log_tokens, save
from lengthwise.reports.page import Figure, axes, axis, panel

_LOG: Final[dict[str, Any]] = {"type": "log"}
_PER_TOKEN: Final = axis("seconds per token", **_LOG)
_LOWER: Final = "Lower is better."


def figures(found: PrebleResult) -> list[Figure]:
    """The paper's three figures, and CASTILLO."""
    react = found.react
    by_engines = {f"{n} engines": [cell for cell in react if cell.place.engines == n] for n in found.grid.engines}
    high = [rate for rate in found.grid.rates if rate >= 16.0] or found.grid.rates
    by_rate = {f"{rate:g} requests/s": [cell for cell in react if cell.place.at == rate] for rate in high}
    lengths = f"Lengths 1 or 300, mean over {found.grid.seeds} seeds. {_LOWER}"
    rate, seconds, loads = axis("requests/s", **_LOG), axis("seconds", **_LOG), axis("load")
    return [
        line_figure("As figure 1A, lengths 1 or 300", lengths, _by_run(by_engines), rate, seconds, 820),
        line_figure("Mean E2E over the rate", lengths, _by_run(by_engines, measure="e2e_s"), rate, seconds, 820),
        line_figure(
            "As figure 1B, lengths 1 or 300",
            _LOWER,
            _by_run(by_rate, lambda cell: cell.place.engines),
            axis("engines", **_LOG),
            _PER_TOKEN,
            820,
        ),
        _overhead_figure(found),
        _figure_2_figure(found),
        _figure_3_figure(found),
        line_figure(
            "CASTILLO behind ten shared prefixes",
            _LOWER,
            {
                **_by_run({"mean E2E": found.shared}, measure="e2e_s"),
                **_by_run({"p99 TTFT": found.shared}, measure="ttft_s", statistic="p99"),
            },
            loads,
            axis("seconds", rangemode="tozero"),
            520,
        ),
    ]


def _by_run(
    panels: Mapping[str, Sequence[Cell]],
    x: Callable[[Cell], float | str] = lambda cell: cell.place.at,
    measure: Measure = "per_token_s",
    statistic: str = "mean",
) -> dict[str, list[Line]]:
    """A line for each router in each panel; dotted without a prediction."""
    return {
        title: [
            Line(
                str(run),
                [x(cell) for cell in cells if cell.run == run],
                [cell.mean(measure, statistic) for cell in cells if cell.run == run],
                dash="dot" if run.predictor == "none" else "solid",
            )
            for run in dict.fromkeys(cell.run for cell in cells)
        ]
        for title, cells in panels.items()
    }


def _overhead_figure(found: PrebleResult) -> Figure:
    counts = found.grid.engines
    lines = [Line(router, counts, ours) for router, ours, _ in overheads(counts)]
    for router in ("e2", "least_outstanding"):
        for rate in (8.0, 128.0):
            at = [count for count, of in paper.OVERHEAD_S.items() if rate in of[router]]
            theirs = [1e6 * paper.OVERHEAD_S[count][router][rate] for count in at]
            lines.append(Line(f"paper: {router}, {rate:g}/s", at, theirs, mode="markers"))
    caption = "Time of a router per request. Ours as measured on ReAct traffic; crosses: the paper's, the choice only."
    both = axis("engines", **_LOG), axis("microseconds", **_LOG)
    return line_figure("Figure 1C: routing time", caption, {"of a request": lines}, *both, 520)


def _figure_2_figure(found: PrebleResult) -> Figure:
    rates = list(by_true_lengths(found))
    at = {run: [find(found.react, run, paper.COMPARED, rate) for rate in rates] for run in (E2, E2_TRUE, OURS_TRUE)}
    lines = [Line(str(run), rates, [cell.mean("per_token_s") for cell in cells]) for run, cells in at.items()]
    for number, name in enumerate(("paper: Preble", "paper: with true lengths")):
        theirs = [both[number] for both in paper.LATENCY_S.values()]
        lines.append(Line(name, list(paper.LATENCY_S), theirs, mode="markers"))
    title, text = f"Figure 2: {paper.COMPARED} engines", f"Normalized latency. {_LOWER}"
    return line_figure(title, text, {"": lines}, axis("requests/s", **_LOG), _PER_TOKEN, 480)


def _figure_3_figure(found: PrebleResult) -> Figure:
    bars = {"type": "bar", "x": [f"{length}" for length in found.drawn], "y": list(found.drawn.values()), **panel(0)}
    layout = axes([(axis("output tokens", type="category"), axis("share of requests"))], columns=1, titles=[""])
    return Figure("Figure 3: lengths of the most variance", "As drawn, first seed.", [bars], layout, height=320)


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
        colour = _OURS if run.router == "lengthwise" else COLOURS[number % len(COLOURS)]
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
