"""Claims and tables of the Preble study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from experiments.preble import paper
from experiments.preble.study import (
    COMPARED,
    LLM,
    SHARED_ENGINE,
    Cell,
    Measure,
    Place,
    PrebleResult,
    Routing,
    find,
    places,
)
from experiments.study import Claim
from lengthwise.reports.runs import multiple, seconds
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.paired import Ratio
from lengthwise.simulator.routing import routing_time_s, routing_times

E2: Final = Routing("e2")
E2_TRUE: Final = Routing("e2_length", "oracle")
OURS_TRUE: Final = Routing("lengthwise", "oracle")
HIGH: Final = 32.0
"""Requests per second from which `lengthwise` is compared with `e2_length`."""


def by_true_lengths(found: PrebleResult) -> dict[float, Ratio]:
    """E2 with true lengths over E2 on figure 2's engines, by requests per second."""
    rates = [place.at for place in places(found.react) if place.engines == paper.COMPARED]
    with_lengths = {rate: find(found.react, E2_TRUE, paper.COMPARED, rate) for rate in rates}
    return {
        rate: cell.over(find(found.react, E2, paper.COMPARED, rate), "per_token_s")
        for rate, cell in with_lengths.items()
    }


def overheads(engines: Sequence[int]) -> Iterator[tuple[str, list[float], str]]:
    """Microseconds per request of each router by number of engines, and the paper's values."""
    for router in routing_times()["us"]:
        theirs = [
            f"{count}: " + " to ".join(f"{1e6 * of[router][rate]:,.0f}" for rate in (min(of[router]), max(of[router])))
            for count, of in paper.OVERHEAD_S.items()
            if router in of
        ]
        yield router, [1e6 * routing_time_s(router, count) for count in engines], "; ".join(theirs) or "–"


def ours_over_e2_length(found: PrebleResult) -> Iterator[tuple[Place, list[Ratio]]]:
    """Normalized latency and E2E with true lengths, then without, at high rates."""
    for place in sorted(places(found.react), key=lambda place: place.engines):
        if place.at >= HIGH:
            pairs = [
                [
                    find(found.react, Routing(router, predictor), place.engines, place.at)
                    for router in ("lengthwise", "e2_length")
                ]
                for predictor in ("oracle", "none")
            ]
            yield place, [ours.over(theirs, measure) for ours, theirs in pairs for measure in COMPARED]


def ours_over_others(found: PrebleResult) -> Iterator[tuple[Place, list[tuple[Cell, Ratio, Ratio]]]]:
    """At each load of CASTILLO: every router, with mean E2E and p99 TTFT of ours with predictions over its own."""
    for place in places(found.shared):
        here = [cell for cell in found.shared if cell.place == place]
        ours = find(here, Routing("lengthwise", found.grid.predictor), place.engines, place.at)
        yield place, [(cell, ours.over(cell, "e2e_s"), ours.over(cell, "ttft_s", "p99")) for cell in here]


def tables(found: PrebleResult) -> list[Table]:
    """One table per figure, the comparison with E2, and CASTILLO."""
    return [
        *(_over_rates(found, engines, measure) for measure in COMPARED for engines in found.grid.engines),
        _overhead(found),
        _figure_2(found),
        _diagnosis(found),
        _figure_3(found),
        _against_e2_length(found),
        _shared(found),
    ]


_MEASURE_NAMES: Final = {"per_token_s": "normalized latency (E2E over output tokens), mean", "e2e_s": "mean E2E"}


def _setting(found: PrebleResult) -> str:
    grid = found.grid
    return (
        f"ReAct, {paper.WORKLOADS} workloads, {paper.EXAMPLES} examples, {paper.ENGINE}, FCFS inside engines, Poisson; "
        f"{grid.seconds:g} s of arrivals, at least {grid.least} requests, to drain; {grid.seeds} seeds; "
        "seconds are simulated."
    )


def _over_rates(found: PrebleResult, engines: int, measure: Measure) -> Table:
    cells = [cell for cell in found.react if cell.place.engines == engines]
    rates = [place.at for place in places(cells)]
    runs = list(dict.fromkeys(cell.run for cell in cells))
    rows = [["load", *(f"{rate / (engines * found.engine_per_s):.2f}" for rate in rates)]]
    for run in runs:
        here = [cell for cell in cells if cell.run == run]
        rows.append([str(run), *(seconds(cell.mean(measure)) for cell in here)])
    notes = [
        f"Lengths 1 or 300, equally likely. {_setting(found)} Routers are charged their measured time.",
        f"load: over the capacity under backlog, {found.engine_per_s:.3g} requests/s each.",
    ]
    title = f"As figure 1A, with figure 2's lengths: {_MEASURE_NAMES[measure]}, {engines} engines"
    return Table(title, ("requests/s", *(f"{rate:g}" for rate in rates)), rows, notes, frozenset({1}))


def _overhead(found: PrebleResult) -> Table:
    counts = found.grid.engines
    rows = [[router, *(f"{us:,.1f}" for us in ours), theirs] for router, ours, theirs in overheads(counts)]
    times = routing_times()
    notes = [
        (
            f"Ours: {times['command']} on {times['processor']}; {times['traffic']}. The choice and all "
            "events of a request."
        ),
        "The paper's: the choice only, in its simulator, at 8 and at 128 requests/s; 4, 8 and 32 engines.",
    ]
    columns = ("router", *(f"{count} engines" for count in counts), "paper")
    return Table("Figure 1C: microseconds of a router for a request", columns, rows, notes)


def _figure_2(found: PrebleResult) -> Table:
    rows = []
    for rate, ratio in by_true_lengths(found).items():
        plain_e2, with_lengths, ours = (
            find(found.react, run, paper.COMPARED, rate) for run in (E2, E2_TRUE, OURS_TRUE)
        )
        theirs = paper.LATENCY_S.get(rate)
        rows.append(
            [
                f"{rate:g}",
                "–" if theirs is None else f"{theirs[0]:.4f} s",
                "–" if theirs is None else f"{theirs[1]:.4f} s",
                "–" if theirs is None else _change(theirs[1] / theirs[0]),
                seconds(plain_e2.mean("per_token_s")),
                seconds(with_lengths.mean("per_token_s")),
                _changes(ratio),
                _changes(with_lengths.over(plain_e2, "e2e_s")),
                seconds(ours.mean("per_token_s")),
            ]
        )
    columns = (
        "requests/s", "paper: E2", "true lengths", "change", "ours: E2", "true lengths", "change", "change of E2E",
        "lengthwise (oracle)",
    )  # fmt: skip
    notes = ["Mean normalized latency. The paper has one run each; our brackets: 95 % interval over seeds, paired."]
    return Table(f"Figure 2: E2 with true lengths, {paper.COMPARED} engines", columns, rows, notes)


def _diagnosis(found: PrebleResult) -> Table:
    rows = [
        [
            f"{rate:g}",
            share(each.decided_by_load),
            share(each.moved),
            share(each.short_live),
            f"{each.busiest:.2f}",
            f"{each.moves:.1f}",
            f"{each.moves_true_lengths:.1f}",
        ]
        for rate, each in found.diagnosis.items()
    ]
    columns = (
        "requests/s", "decided by load", "sent elsewhere", "short among live", "busiest / mean", "moves",
        "moves, true lengths",
    )  # fmt: skip
    notes = [
        "decided by load: choices of E2 with several engines to compare; else the only holder of the prefix gets it.",
        "sent elsewhere: requests routed to another engine with true lengths. short among live: one-token answers.",
        "moves: how often a workload continues on another engine, per run.",
    ]
    return Table(f"Why true lengths change little in E2, {paper.COMPARED} engines", columns, rows, notes)


def _figure_3(found: PrebleResult) -> Table:
    rows = [[f"{length:,}", "50.0 %", share(part)] for length, part in found.drawn.items()]
    return Table("Figure 3: lengths of the most variance", ("output tokens", "paper", "drawn, first seed"), rows)


def _against_e2_length(found: PrebleResult) -> Table:
    rows = [
        [f"{place.engines}", f"{place.at:g}", *(multiple(ratio) for ratio in ratios)]
        for place, ratios in ours_over_e2_length(found)
    ]
    columns = ("engines", "requests/s", "normalized latency", "mean E2E", "none: normalized", "none: mean E2E")
    notes = ["`lengthwise` over `e2_length`, both with true lengths, then both without: below 1 is better."]
    begins = frozenset(i for i, row in enumerate(rows) if i and row[0] != rows[i - 1][0])
    return Table("lengthwise beside E2 with the same lengths", columns, rows, notes, begins)


def _shared(found: PrebleResult) -> Table:
    rows: list[list[str]] = []
    begins: set[int] = set()
    for place, others in ours_over_others(found):
        begins |= {len(rows)} if rows else set()
        for cell, e2e, ttft in others:
            rows.append(
                [
                    f"{place.at:g}",
                    str(cell.run),
                    seconds(cell.mean("e2e_s")),
                    seconds(cell.mean("per_token_s")),
                    seconds(cell.mean("ttft_s", "p99")),
                    multiple(e2e),
                    multiple(ttft),
                ]
            )
    grid = found.grid
    notes = [
        (
            f"CASTILLO test prompts of {LLM} ({found.origin}) behind ten system prompts of 512 tokens (Zipf), "
            f"{grid.shared_engines}*{SHARED_ENGINE}, {grid.shared_slots} slots each, FCFS inside; "
            f"n {grid.shared_requests:,} to drain, Poisson; load over capacity under backlog (FCFS, round robin); "
            f"{grid.seeds} seeds; seconds are simulated."
        ),
        (
            f"Last two columns: `lengthwise ({found.grid.predictor})` over this router, paired, 95 % "
            "interval; below 1 is better."
        ),
    ]
    columns = ("load", "router", "E2E", "normalized", "TTFT p99", "ours / this, E2E", "ours / this, TTFT p99")
    return Table("CASTILLO behind shared prefixes", columns, rows, notes, frozenset(begins))


def _change(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # + 0.0: no "-0.0"


def _changes(ratio: Ratio) -> str:
    return f"{_change(ratio.ratio)} [{_change(ratio.low)}, {_change(ratio.high)}]"


def claims(found: PrebleResult) -> list[Claim]:
    """The change by true lengths in figure 2; the statements on figures 1A and 1B are in `preble_figures`."""
    rows = []
    for rate, ratio in by_true_lengths(found).items():
        if rate in paper.LATENCY_S:
            without, with_lengths = paper.LATENCY_S[rate]
            rows.append(Claim(f"E2 with true lengths over E2, {rate:g}/s", with_lengths / without, ratio, "to drain"))
    return rows
