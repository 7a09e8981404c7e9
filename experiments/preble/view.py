"""`PrebleStudy` as tables, as one HTML page and for programs."""

from __future__ import annotations

from typing import Any, Final

from experiments.preble import paper
from experiments.preble.cells import COMPARED, Cell, Measure, find, places
from experiments.preble.plot import figures
from experiments.preble.said import (
    E2,
    E2_TOLD,
    OURS_TOLD,
    behind_naive,
    by_true_lengths,
    length_name,
    ours_over_e2_length,
    ours_over_others,
    overheads,
)
from experiments.preble.study import LLM, SHARED_ENGINE, PrebleStudy
from lengthwise.reports.interactive import interactive_page
from lengthwise.reports.simulation import multiple, seconds
from lengthwise.reports.tables import Table, share
from lengthwise.simulator.paired import Ratio
from lengthwise.simulator.routing_times import routing_times

__all__ = ["html_report", "plain", "tables"]


def tables(found: PrebleStudy) -> list[Table]:
    """Figure by figure, then what was to be reached, and CASTILLO."""
    return [
        *(_over_rates(found, engines, measure) for measure in COMPARED for engines in found.effort.engines),
        _claims(found),
        _overhead(found),
        _variance(found),
        _figure_2(found),
        _why(found),
        _figure_3(found),
        _against_e2_length(found),
        _shared(found),
    ]


def html_report(found: PrebleStudy) -> str:
    """Figures, then the tables."""
    return interactive_page("Preble and lengths: routing among engines", figures(found), tables(found))


def plain(found: PrebleStudy) -> dict[str, Any]:
    """Ready for `to_json`."""
    return {
        "effort": found.effort,
        "predictor": found.predictor,
        "origin": found.origin,
        "engine_per_s": found.engine_per_s,
        "routing_times": routing_times(),
        "paper": {"latency_s": paper.LATENCY_S, "overhead_s": paper.OVERHEAD_S},
        "react": [_facts(cell) for cell in found.react],
        "varied": [_facts(cell) for cell in found.varied],
        "castillo": [_facts(cell) for cell in found.shared],
        "true_lengths_in_e2": {f"{rate:g}": ratio for rate, ratio in by_true_lengths(found).items()},
        "why": {f"{rate:g}": why for rate, why in found.why.items()},
        "lengths_drawn": found.drawn,
        "from_cache": found.found,
        "computed": found.computed,
    }


_FACTS: Final[tuple[tuple[Measure, str], ...]] = (
    ("per_token_s", "mean"), ("e2e_s", "mean"), ("ttft_s", "mean"), ("ttft_s", "p99"),
)  # fmt: skip
_CALLED = {"per_token_s": "normalized latency (E2E over output tokens), mean", "e2e_s": "mean E2E"}


def _facts(cell: Cell) -> dict[str, Any]:
    by_seed = {f"{measure}_{statistic}": cell.values(measure, statistic) for measure, statistic in _FACTS}
    return {"place": cell.place, "router": cell.run.router, "predictor": cell.run.predictor, **by_seed}


def _how(found: PrebleStudy) -> str:
    effort = found.effort
    return (
        f"ReAct, {paper.WORKLOADS} workloads, {paper.EXAMPLES} examples, {paper.ENGINE}, FCFS inside engines, Poisson; "
        f"{effort.seconds:g} s of arrivals, at least {effort.least} requests, to drain; {effort.seeds} seeds; "
        "seconds are simulated."
    )


def _over_rates(found: PrebleStudy, engines: int, measure: Measure) -> Table:
    cells = [cell for cell in found.react if cell.place.engines == engines]
    rates = [place.at for place in places(cells)]
    runs = list(dict.fromkeys(cell.run for cell in cells))
    rows = [["load", *(f"{rate / (engines * found.engine_per_s):.2f}" for rate in rates)]]
    for run in runs:
        here = [cell for cell in cells if cell.run == run]
        rows.append([str(run), *(seconds(cell.mean(measure)) for cell in here)])
    what = "Figure 1A" if measure == "per_token_s" else "Beside figure 1A"
    notes = [
        f"Lengths 1 or 300, a coin each. {_how(found)} Routers are charged their measured time.",
        f"load: over what the engines can do under backlog, {found.engine_per_s:.3g} requests/s each.",
    ]
    title = f"{what}: {_CALLED[measure]}, {engines} engines"
    return Table(title, ("requests/s", *(f"{rate:g}" for rate in rates)), rows, notes, frozenset({1}))


def _claims(found: PrebleStudy) -> Table:
    rows = [
        [claim, "–" if said is None else f"{said:g}", *(multiple(ratio) for ratio in ratios.values())]
        for claim, said, ratios in behind_naive(found)
    ]
    notes = ["E2's mean normalized latency over each one's: above 1 it is behind. Brackets: 95 % interval over seeds."]
    columns = ("the paper says", "paper", *(f"/ {name}" for name in paper.NAIVE))
    return Table("Figures 1A and 1B in words", columns, rows, notes)


def _overhead(found: PrebleStudy) -> Table:
    counts = found.effort.engines
    rows = [[router, *(f"{us:,.1f}" for us in ours), theirs] for router, ours, theirs in overheads(counts)]
    kept = routing_times()
    notes = [
        f"Ours: {kept['command']} on {kept['processor']}; {kept['traffic']}. The choice and all events of a request.",
        "The paper's: the choice alone, in its simulator, at 8 and at 128 requests/s; 4, 8 and 32 engines.",
    ]
    columns = ("router", *(f"{count} engines" for count in counts), "paper")
    return Table("Figure 1C: microseconds of a router for a request", columns, rows, notes)


def _variance(found: PrebleStudy) -> Table:
    effort = found.effort
    both = (*found.varied, *found.react)
    at = [p for p in places(both) if p.engines in effort.varied_engines and p.at in effort.varied_rates]
    at.sort(key=lambda place: (place.engines, place.at))
    runs = list(dict.fromkeys(cell.run for cell in found.varied))
    rows = [
        [
            f"{place.engines} engines, {place.at:g}/s, {length_name(place.workload)}",
            *(seconds(next(c for c in both if c.place == place and c.run == run).mean("per_token_s")) for run in runs),
        ]
        for place in at
    ]
    begins = frozenset(i for i, place in enumerate(at) if i and place.at != at[i - 1].at)
    notes = ["The same mean length of 150 with more and more variance; mean normalized latency."]
    return Table("Figure 1D: variance of lengths", ("", *map(str, runs)), rows, notes, begins)


def _figure_2(found: PrebleStudy) -> Table:
    rows = []
    for rate, ratio in by_true_lengths(found).items():
        plain_e2, told, ours = (find(found.react, run, paper.COMPARED, rate) for run in (E2, E2_TOLD, OURS_TOLD))
        theirs = paper.LATENCY_S.get(rate)
        rows.append(
            [
                f"{rate:g}",
                "–" if theirs is None else f"{theirs[0]:.4f} s",
                "–" if theirs is None else f"{theirs[1]:.4f} s",
                "–" if theirs is None else _change(theirs[1] / theirs[0]),
                seconds(plain_e2.mean("per_token_s")),
                seconds(told.mean("per_token_s")),
                _changes(ratio),
                _changes(told.over(plain_e2, "e2e_s")),
                seconds(ours.mean("per_token_s")),
            ]
        )
    columns = (
        "requests/s", "paper: E2", "true lengths", "change", "ours: E2", "true lengths", "change", "change of E2E",
        "lengthwise (oracle)",
    )  # fmt: skip
    notes = ["Mean normalized latency. Theirs is one run each; our brackets: 95 % interval over seeds, paired."]
    return Table(f"Figure 2: E2 with true lengths, {paper.COMPARED} engines", columns, rows, notes)


def _why(found: PrebleStudy) -> Table:
    rows = [
        [
            f"{rate:g}",
            share(why.decided_by_load),
            share(why.moved),
            share(why.short_live),
            f"{why.busiest:.2f}",
            f"{why.moves:.1f}",
            f"{why.moves_told:.1f}",
        ]
        for rate, why in found.why.items()
    ]
    columns = (
        "requests/s", "decided by load", "sent elsewhere", "short among live", "busiest / mean", "moves",
        "moves, true lengths",
    )  # fmt: skip
    notes = [
        "decided by load: choices of E2 with several engines to compare; else the one holder of the prefix gets it.",
        "sent elsewhere: requests that true lengths send to another engine. short among live: one-token answers.",
        "moves: how often a workload went on at another engine, in a run.",
    ]
    return Table(f"Why true lengths change little in E2, {paper.COMPARED} engines", columns, rows, notes)


def _figure_3(found: PrebleStudy) -> Table:
    rows = [[f"{length:,}", "50.0 %", share(part)] for length, part in found.drawn.items()]
    return Table("Figure 3: lengths of the most variance", ("output tokens", "paper", "drawn, first seed"), rows)


def _against_e2_length(found: PrebleStudy) -> Table:
    rows = [
        [f"{place.engines}", f"{place.at:g}", *(multiple(ratio) for ratio in ratios)]
        for place, ratios in ours_over_e2_length(found)
    ]
    columns = ("engines", "requests/s", "normalized latency", "mean E2E", "none: normalized", "none: mean E2E")
    notes = ["`lengthwise` over `e2_length`, both with true lengths, then both with none: below 1 is better."]
    begins = frozenset(i for i, row in enumerate(rows) if i and row[0] != rows[i - 1][0])
    return Table("lengthwise beside E2 with the same lengths", columns, rows, notes, begins)


def _shared(found: PrebleStudy) -> Table:
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
    effort = found.effort
    notes = [
        (
            f"CASTILLO test prompts of {LLM} ({found.origin}) behind ten system prompts of 512 tokens (Zipf), "
            f"{effort.shared_engines}*{SHARED_ENGINE}, {effort.shared_slots} slots each, FCFS inside; "
            f"n {effort.shared_requests:,} to drain, Poisson; load over capacity under backlog (FCFS, round robin); "
            f"{effort.seeds} seeds; seconds are simulated."
        ),
        f"Last two columns: `lengthwise ({found.predictor})` over this one, paired, 95 % interval; below 1 is better.",
    ]
    columns = ("load", "router", "E2E", "normalized", "TTFT p99", "ours / this, E2E", "ours / this, TTFT p99")
    return Table("CASTILLO behind shared prefixes", columns, rows, notes, frozenset(begins))


def _change(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # + 0.0: no "-0.0"


def _changes(ratio: Ratio) -> str:
    return f"{_change(ratio.ratio)} [{_change(ratio.low)}, {_change(ratio.high)}]"
