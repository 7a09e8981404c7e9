"""Figures of a `PrebleStudy` for its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from experiments.preble import paper
from experiments.preble.cells import Cell, Measure, Run, find
from experiments.preble.said import E2, E2_TOLD, OURS_TOLD, by_true_lengths, length_name, overheads
from experiments.preble.study import PrebleStudy
from lengthwise.reports.interactive import COLOURS, Figure, axes, axis, panel

__all__ = ["figures"]

_LOG: Final[dict[str, Any]] = {"type": "log"}


def figures(found: PrebleStudy) -> list[Figure]:
    """The paper's three figures, and CASTILLO."""
    return [
        _over_rates(found, "per_token_s", "Figure 1A: normalized latency over the rate"),
        _over_rates(found, "e2e_s", "Mean E2E over the rate"),
        _over_engines(found),
        _overhead(found),
        _variance(found),
        _figure_2(found),
        _figure_3(found),
        _shared(found),
    ]


def _runs(cells: Sequence[Cell]) -> list[Run]:
    return list(dict.fromkeys(cell.run for cell in cells))


def _line(run: Run, number: int, *, first: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": str(run),
        "legendgroup": str(run),
        "showlegend": first,
        "line": {"color": COLOURS[number % len(COLOURS)], "dash": "dot" if run.predictor == "none" else "solid"},
    }


def _over_rates(found: PrebleStudy, measure: Measure, title: str) -> Figure:
    data: list[dict[str, Any]] = []
    for place, engines in enumerate(found.effort.engines):
        cells = [cell for cell in found.react if cell.place.engines == engines]
        for number, run in enumerate(_runs(cells)):
            here = [cell for cell in cells if cell.run == run]
            x, y = [cell.place.at for cell in here], [cell.mean(measure) for cell in here]
            data.append({**_line(run, number, first=place == 0), "x": x, "y": y, **panel(place)})
    both = (axis("requests/s", **_LOG), axis("seconds", **_LOG))
    titles = [f"{engines} engines" for engines in found.effort.engines]
    says = f"Lengths 1 or 300, mean over {found.effort.seeds} seeds. Lower is better."
    return Figure(title, says, data, axes([both] * len(titles), columns=2, titles=titles), height=820)


def _over_engines(found: PrebleStudy) -> Figure:
    rates = [rate for rate in found.effort.rates if rate >= 16.0] or list(found.effort.rates)
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


def _overhead(found: PrebleStudy) -> Figure:
    counts = found.effort.engines
    data: list[dict[str, Any]] = []
    for number, (router, ours, _) in enumerate(overheads(counts)):
        data.append({**_line(Run(router), number, first=True), "x": list(counts), "y": ours, **panel(0)})
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
    says = (
        "What a router takes for a request. Ours as measured on ReAct traffic; crosses: the paper's, the choice alone."
    )
    return Figure("Figure 1C: the router's own time", says, data, layout, height=520)


def _variance(found: PrebleStudy) -> Figure:
    effort = found.effort
    both = (*found.varied, *found.react)
    spots = [(engines, rate) for engines in effort.varied_engines for rate in effort.varied_rates]
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


def _figure_2(found: PrebleStudy) -> Figure:
    rates = list(by_true_lengths(found))
    data: list[dict[str, Any]] = []
    for number, run in enumerate((E2, E2_TOLD, OURS_TOLD)):
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


def _figure_3(found: PrebleStudy) -> Figure:
    bars = {"type": "bar", "x": [f"{length}" for length in found.drawn], "y": list(found.drawn.values()), **panel(0)}
    layout = axes([(axis("output tokens", type="category"), axis("share of requests"))], columns=1, titles=[""])
    return Figure("Figure 3: lengths of the most variance", "As drawn, first seed.", [bars], layout, height=320)


def _shared(found: PrebleStudy) -> Figure:
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
