"""Preble's routing and its length-aware extension: every router on the same requests, FCFS inside engines.

Figure 2: normalized latency and mean E2E over rates and engines, lengths of the most variance, to drain. Figures 1A to
1D, with the paper's 150 tokens and its rule for the end of a run, are in `experiments.preble_figures`. Lengths drawn at
random cannot be predicted: routers get the true ones or none. The value of a predictor is measured on CASTILLO's test
prompts behind ten shared system prompts, at shares of capacity. Routers are charged the time that was measured for
their choice (`simulator/routing.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from experiments.figures import COLOURS, figure, legend, log_tokens, save
from experiments.routing import (
    ENGINE,
    EXAMPLES,
    LATENCY_S,
    PAPER,
    PAPER_ENGINES,
    SECONDS,
    VARIED,
    WORKLOADS,
    Cell,
    Place,
    React,
    Routing,
    Shared,
    castillo_prompts,
    find,
    places,
    routing_task,
)
from experiments.study import Call, Claim, Run, SeededGrid, Study, sections
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.tables import Table, multiple, seconds, share
from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.simulator.tasks import CapacityTask, SeedResults, Setting
from lengthwise.workloads.datasets import PACKAGED
from lengthwise.workloads.traces import SAMPLE_ONLY

LENGTH_UNAWARE: Final = ("random", "round_robin", "least_outstanding", "least_load", "cache_aware", "dynamo", "e2")
PREDICTING: Final = ("e2_length", "lengthwise")
E2, E2_TRUE, OURS_TRUE = Routing("e2"), Routing("e2_length", "oracle"), Routing("lengthwise", "oracle")
LLM: Final = "llama-3.1-8b"
SHARED_ENGINE: Final = "llama-3-8b@a100"
HIGH: Final = 32.0
"""Requests per second from which `lengthwise` is compared with `e2_length`."""
MEASURES: Final = {"per_token_s": "normalized latency (E2E over output tokens), mean", "e2e_s": "mean E2E"}
"""Normalized latency as in the paper, and end-to-end latency."""


@dataclass(frozen=True)
class PrebleGrid(SeededGrid):
    """What is simulated. A rate is offered for `seconds`, with at least `least` requests."""

    seeds: int = 5
    engines: tuple[int, ...] = (4, 8, 16, 32)
    rates: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    seconds: float = SECONDS
    least: int = 300
    loads: tuple[float, ...] = (0.7, 0.9, 1.1)
    shared_engines: int = 8
    shared_slots: int = 32
    shared_requests: int = 3000
    predictor: str = "fast"
    """Predictions for CASTILLO's prompts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least, values in (("engines", 1, self.engines), ("rates", 1e-3, self.rates)):
            if not values or min(values) < least:
                given = ",".join(f"{value:g}" for value in values)
                raise InputError(f"'{given}'", field=name, hint=f"give numbers of at least {least:g}, commas between")

    def react(self, fleet: Fleet, rate: float, seed: int) -> Setting:
        """ReAct traffic of a run at a rate."""
        return Setting(React(VARIED, max(self.least, round(self.seconds * rate))), fleet, seed, own_arrivals=False)


@dataclass(frozen=True)
class PrebleResult:
    """Everything measured."""

    grid: PrebleGrid
    origin: str
    engine_per_s: float
    """Capacity of one engine for the paper's requests under backlog, in requests/s."""
    react: tuple[Cell, ...]
    """Lengths of the most variance, all engines and rates."""
    shared: tuple[Cell, ...]
    diagnosis: Mapping[float, Mapping[str, float]]
    """By requests per second, on the engines of figure 2: what `diagnosis` returns, mean over seeds."""


def diagnosis(where: Setting, rate: float) -> dict[str, Any]:
    """Return why true lengths change little in E2: both variants on the same requests, without routing time.

    E2 compares loads only where several engines hold the longest known prefix, or where a prefix is new. Elsewhere the
    only holder gets the request whatever its length, until balancing moves the prefix. And a load counts live requests:
    of two lengths the short ones are seldom among them, so the number of live requests already implies their lengths.
    """
    workload = where.workload_at(rate)
    plain, with_lengths = (
        simulate(workload, where.fleet, "fcfs", router=router, predictor="oracle", explain=True)
        for router in ("e2", "e2_length")
    )
    tenants = np.array(workload.table["tenant"].to_pylist())
    stay = plain.finished_s - plain.arrival_s
    counts = np.bincount(plain.engine, minlength=len(where.fleet))
    return {
        "decided_by_load": _decided_by_load(plain),
        "moved": float((plain.engine != with_lengths.engine).mean()),
        "short_live": float(stay[workload.output_tokens == 1].sum() / stay.sum()),
        "busiest": float(counts.max() / counts.mean()),
        "moves": _moves(plain, tenants),
        "moves_true_lengths": _moves(with_lengths, tenants),
    }


def _moves(outcome: Outcome, tenants: NDArray[np.str_]) -> float:
    engines = [outcome.engine[tenants == tenant] for tenant in np.unique(tenants)]
    return float(sum((each[1:] != each[:-1]).sum() for each in engines))


def _decided_by_load(outcome: Outcome) -> float:
    weighed = outcome.trace.costs if outcome.trace is not None else ()
    choices = [terms for each in weighed if each is not None for terms in each.values()]
    return float(np.mean([terms.get("cost", 0.0) > 0.0 or terms.get("exploit") == 0.0 for terms in choices]))


def measure(run: Run, grid: PrebleGrid) -> PrebleResult:
    """Run everything that the cache does not have."""
    if castillo_prompts().origin == PACKAGED:
        run.note(SAMPLE_ONLY)
    fleets = {count: Fleet.parse(f"{count}*{ENGINE}") for count in {1, PAPER_ENGINES, *grid.engines}}

    def react(place: Place, seed: int) -> tuple[Setting, float]:
        return grid.react(fleets[place.engines], place.at, seed), place.at

    on_react = [Place(VARIED, count, rate) for rate in grid.rates for count in grid.engines]
    in_paper = [rate for rate in grid.rates if rate in LATENCY_S]
    why = run.by_seed(
        "diagnosis",
        in_paper,
        grid.seeds,
        lambda rate, seed: Call(diagnosis, react(Place(VARIED, PAPER_ENGINES, rate), seed)),
    )
    return PrebleResult(
        grid,
        castillo_prompts().origin,
        float(np.mean(_capacity(run, [grid.react(fleets[1], max(grid.rates), seed) for seed in range(grid.seeds)]))),
        _cells(run, "react", grid, on_react, react, ["oracle", "none"]),
        _shared_cells(run, grid),
        {rate: {name: SeedResults(seeds=each).mean(name) for name in each[0]} for rate, each in why.items()},
    )


def _capacity(run: Run, settings: Sequence[Setting]) -> list[float]:
    return [found["requests_per_s"] for found in run.results("capacity", [CapacityTask(each) for each in settings])]


def _shared_cells(run: Run, grid: PrebleGrid) -> tuple[Cell, ...]:
    fleet = Fleet.parse(f"{grid.shared_engines}*{SHARED_ENGINE}").limited_to(max_num_seqs=grid.shared_slots)
    source = Shared(LLM, grid.shared_requests)
    settings = [Setting(source, fleet, seed, own_arrivals=False) for seed in range(grid.seeds)]
    capacity = _capacity(run, settings)
    return _cells(
        run,
        "castillo",
        grid,
        [Place(source.name, len(fleet), load, "load") for load in grid.loads],
        lambda place, seed: (settings[seed], place.at * capacity[seed]),
        ["oracle", grid.predictor, "none"],
    )


def _cells(
    run: Run,
    what: str,
    grid: PrebleGrid,
    where: Sequence[Place],
    setting: Callable[[Place, int], tuple[Setting, float]],
    predictors: Sequence[str],
) -> tuple[Cell, ...]:
    """Every router in every place; length-aware ones with each predictor."""
    routings = [Routing(router) for router in LENGTH_UNAWARE]
    routings += [Routing(router, each) for router in PREDICTING for each in dict.fromkeys(predictors)]
    names = [(place, routing) for place in where for routing in routings]
    found = run.by_seed(what, names, grid.seeds, lambda name, seed: routing_task(*setting(name[0], seed), name[1]))
    return tuple(Cell(*name, seeds=each) for name, each in found.items())


def by_true_lengths(found: PrebleResult) -> dict[float, Ratio]:
    """E2 with true lengths over E2 on figure 2's engines, by requests per second."""
    rates = [place.at for place in places(found.react) if place.engines == PAPER_ENGINES]
    pairs = {rate: [find(found.react, run, PAPER_ENGINES, rate) for run in (E2_TRUE, E2)] for rate in rates}
    return {rate: true.over(plain, "per_token_s", "mean") for rate, (true, plain) in pairs.items()}


def ours_over_e2_length(found: PrebleResult) -> Iterator[tuple[Place, list[Ratio]]]:
    """Normalized latency and E2E with true lengths, then without, at high rates."""
    for place in sorted(places(found.react), key=lambda place: place.engines):
        if place.at >= HIGH:
            pairs = [
                [find(found.react, Routing(router, predictor), place.engines, place.at) for router in PREDICTING]
                for predictor in ("oracle", "none")
            ]
            yield place, [ours.over(theirs, measure, "mean") for theirs, ours in pairs for measure in MEASURES]


def ours_over_others(found: PrebleResult) -> Iterator[tuple[Cell, Ratio, Ratio]]:
    """Every router at each load of CASTILLO, with mean E2E and p99 TTFT of ours with predictions over its own."""
    for cell in found.shared:
        ours = find(found.shared, Routing("lengthwise", found.grid.predictor), found.grid.shared_engines, cell.place.at)
        yield cell, ours.over(cell, "e2e_s", "mean"), ours.over(cell, "ttft_s", "p99")


def tables(found: PrebleResult) -> list[Table]:
    """Latency over the rates, figure 2 and its diagnosis, the comparison with E2, and CASTILLO."""
    return [
        *(_over_rates(found, engines, measure) for measure in MEASURES for engines in found.grid.engines),
        _figure_2(found),
        _diagnosis(found),
        _against_e2_length(found),
        _shared(found),
    ]


def _over_rates(found: PrebleResult, engines: int, measure: str) -> Table:
    grid = found.grid
    cells = [cell for cell in found.react if cell.place.engines == engines]
    rates = [place.at for place in places(cells)]
    rows = [["load", *(f"{rate / (engines * found.engine_per_s):.2f}" for rate in rates)]]
    rows += [
        [str(run), *(seconds(cell.mean(measure, "mean")) for cell in cells if cell.run == run)]
        for run in dict.fromkeys(cell.run for cell in cells)
    ]
    notes = [
        (
            f"Lengths 1 or 300, equally likely. ReAct, {WORKLOADS} workloads, {EXAMPLES} examples, {ENGINE}, FCFS "
            f"inside engines, Poisson; {grid.seconds:g} s of arrivals, at least {grid.least} requests, to drain; "
            f"{grid.seeds} seeds; seconds are simulated. Routers are charged their measured time."
        ),
        f"load: over the capacity under backlog, {found.engine_per_s:.3g} requests/s each.",
    ]
    title = f"As figure 1A, with figure 2's lengths: {MEASURES[measure]}, {engines} engines"
    return Table(title, ("requests/s", *(f"{rate:g}" for rate in rates)), rows, notes, frozenset({1}))


def _figure_2(found: PrebleResult) -> Table:
    rows = []
    for rate, ratio in by_true_lengths(found).items():
        plain, true, ours = (find(found.react, run, PAPER_ENGINES, rate) for run in (E2, E2_TRUE, OURS_TRUE))
        theirs = LATENCY_S.get(rate)
        paper = ["–"] * 3
        if theirs is not None:
            paper = [*(f"{value:.4f} s" for value in theirs), _change(theirs[1] / theirs[0])]
        mean = [seconds(cell.mean("per_token_s", "mean")) for cell in (plain, true, ours)]
        changes = [_changes(ratio), _changes(true.over(plain, "e2e_s", "mean"))]
        rows.append([f"{rate:g}", *paper, *mean[:2], *changes, mean[2]])
    columns = (
        "requests/s", "paper: E2", "true lengths", "change", "ours: E2", "true lengths", "change", "change of E2E",
        "lengthwise (oracle)",
    )  # fmt: skip
    notes = ["Mean normalized latency. The paper has one run each; our brackets: 95 % interval over seeds, paired."]
    return Table(f"Figure 2: E2 with true lengths, {PAPER_ENGINES} engines", columns, rows, notes)


def _diagnosis(found: PrebleResult) -> Table:
    shown: dict[str, Callable[[float], str]] = {
        "decided_by_load": share,
        "moved": share,
        "short_live": share,
        "busiest": "{:.2f}".format,
        "moves": "{:.1f}".format,
        "moves_true_lengths": "{:.1f}".format,
    }
    rows = [[f"{rate:g}", *(form(why[name]) for name, form in shown.items())] for rate, why in found.diagnosis.items()]
    columns = (
        "requests/s", "decided by load", "sent elsewhere", "short among live", "busiest / mean", "moves",
        "moves, true lengths",
    )  # fmt: skip
    notes = [
        "decided by load: choices of E2 with several engines to compare; else the only holder of the prefix gets it.",
        "sent elsewhere: requests routed to another engine with true lengths. short among live: one-token answers.",
        "moves: how often a workload continues on another engine, per run.",
    ]
    return Table(f"Why true lengths change little in E2, {PAPER_ENGINES} engines", columns, rows, notes)


def _against_e2_length(found: PrebleResult) -> Table:
    rows = [
        [f"{place.engines}", f"{place.at:g}", *(multiple(ratio) for ratio in ratios)]
        for place, ratios in ours_over_e2_length(found)
    ]
    columns = ("engines", "requests/s", "normalized latency", "mean E2E", "none: normalized", "none: mean E2E")
    notes = ["`lengthwise` over `e2_length`, both with true lengths, then both without: below 1 is better."]
    return Table("lengthwise beside E2 with the same lengths", columns, rows, notes, sections(rows))


def _shared(found: PrebleResult) -> Table:
    rows = [
        [
            f"{cell.place.at:g}",
            str(cell.run),
            *(seconds(cell.mean(*path)) for path in (("e2e_s", "mean"), ("per_token_s", "mean"), ("ttft_s", "p99"))),
            multiple(e2e),
            multiple(ttft),
        ]
        for cell, e2e, ttft in ours_over_others(found)
    ]
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
    return Table("CASTILLO behind shared prefixes", columns, rows, notes, sections(rows))


def _change(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # + 0.0: no "-0.0"


def _changes(ratio: Ratio) -> str:
    return f"{_change(ratio.ratio)} [{_change(ratio.low)}, {_change(ratio.high)}]"


def claims(found: PrebleResult) -> list[Claim]:
    """The change by true lengths in figure 2; the statements on figures 1A and 1B are in `preble_figures`."""
    return [
        Claim(f"E2 with true lengths over E2, {rate:g}/s", LATENCY_S[rate][1] / LATENCY_S[rate][0], ratio, "to drain")
        for rate, ratio in by_true_lengths(found).items()
        if rate in LATENCY_S
    ]


_OURS: Final = "#23292e"
_DRAWN: Final = (
    *(Routing(name) for name in ("random", "round_robin", "least_outstanding", "e2")),
    E2_TRUE,
    Routing("lengthwise", "none"),
    OURS_TRUE,
)
"""More lines are not distinguishable."""


def draw(found: PrebleResult, path: Path) -> None:
    """Normalized latency and E2E over the rate on figure 2's engines, and E2E over the load of CASTILLO."""
    on_react = [cell for cell in found.react if cell.place.engines == PAPER_ENGINES]
    on_castillo = [Routing(name) for name in ("least_outstanding", "least_load", "cache_aware", "dynamo", "e2")]
    on_castillo.append(Routing("lengthwise", found.grid.predictor))
    with figure(1, 3, size=(13.5, 4.6), title="Routers, FCFS inside engines") as (drawing, panels):
        _lines(panels[0], on_react, "per_token_s", _DRAWN)
        _lines(panels[1], on_react, "e2e_s", _DRAWN)
        _lines(panels[2], found.shared, "e2e_s", on_castillo)
        panels[0].set_title(f"ReAct, {PAPER_ENGINES} engines: latency per token")
        panels[1].set_title(f"ReAct, {PAPER_ENGINES} engines: mean E2E")
        panels[2].set_title("CASTILLO, shared prefixes: mean E2E")
        save(drawing, path)


def _lines(axes: Axes, cells: Sequence[Cell], measure: str, runs: Sequence[Routing]) -> None:
    at = [place.at for place in places(cells)]
    by_rate = any(place.unit == "requests/s" for place in places(cells))
    for number, run in enumerate(runs):
        here = [cell for cell in cells if cell.run == run]
        x, y = [cell.place.at for cell in here], [cell.mean(measure, "mean") for cell in here]
        colour = _OURS if run.router == "lengthwise" else COLOURS[number % len(COLOURS)]
        style = "--" if run.predictor == "none" else "-"
        axes.plot(x, y, style, marker="o", markersize=3.5, color=colour, label=str(run))
    axes.set(ylabel="seconds", xlabel="requests/s" if by_rate else "load")
    if by_rate:
        log_tokens(axes, at)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xticks(at)
        axes.set_ylim(bottom=0.0)
    legend(axes)


STUDY: Study[PrebleGrid, PrebleResult] = Study(
    name="preble",
    title="Preble and lengths: routing among engines",
    question="How much do routers gain from prefixes and from predicted lengths?",
    paper=PAPER,
    source="ReAct, CASTILLO",
    grid=PrebleGrid(),
    quick=PrebleGrid(
        seeds=2,
        engines=(4, 8),
        rates=(8.0, 64.0, 128.0),
        seconds=5.0,
        least=100,
        loads=(0.9,),
        shared_requests=600,
    ),
    minutes=(60, 0.5),
    measure=measure,
    tables=tables,
    claims=claims,
    claim_notes=lambda _: ["Figures 1A to 1D, and figure 2 by the paper's rule: the study `preble_figures`."],
    draw=draw,
)
