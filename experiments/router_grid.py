"""Routers over a grid of traffic, load and fleet.

ReAct (lengths 1 or 300), Mooncake's and Azure's conversations and CASTILLO's test prompts behind ten shared system
prompts, at loads 0.5 to 1.1 of the capacity (FCFS, round robin), on 4, 8 and 16 engines of 16 sequences. FCFS inside
engines; each router is charged its measured time. Paired over seeds: ReAct and CASTILLO are drawn with each seed; of a
trace each seed has other consecutive requests, with their arrivals scaled to the load.

Routers that use lengths get predictions of the shipped `fast` on CASTILLO and of `history` on the others (traces have
no prompts, and ReAct's lengths are random).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from experiments.routing import VARIED, Cell, Place, React, Routing, Shared, routing_task
from experiments.study import Run, SeededGrid, Study, sections
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.tables import Table, multiple, seconds
from lengthwise.simulator import Fleet
from lengthwise.simulator.tasks import CapacityTask, Setting, SimulationTask, WorkloadSource
from lengthwise.workloads import Workload, load_trace
from lengthwise.workloads.arrivals import rescale
from lengthwise.workloads.traces import find_trace

OURS: Final = "lengthwise"
BASELINES: Final = ("round_robin", "least_outstanding", "least_load", "cache_aware", "dynamo", "e2", "e2_length")
ON_CASTILLO: Final = ("e2", "least_load", "cache_aware", "dynamo")
"""Routers that `lengthwise` should beat on CASTILLO from load 0.7 on."""
SLOTS: Final = 16
MAX_BEHIND: Final = 1.02
MAX_TTFT: Final = 1.05


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive requests of a trace, other ones for each seed, with their own arrivals."""

    name: str
    requests: int

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """From seed to workload, at one request per second with the bursts of the trace."""
        trace = load_trace(self.name)

        def draw(seed: int) -> Workload:
            rows = np.arange(seed * self.requests, (seed + 1) * self.requests)
            if rows[-1] >= len(trace):
                hint = f"{len(trace)} requests are {len(trace) // self.requests} seeds"
                raise InputError(f"no requests {rows[0]} to {rows[-1]}", source=self.name, hint=hint)
            return rescale(trace.take(rows, arrival_s=trace.arrival_s[rows]), 1.0)

        return draw


@dataclass(frozen=True)
class Traffic:
    """A workload, the engine that serves it, and the predictor of its lengths."""

    source: Callable[[int], WorkloadSource]
    """By number of requests."""
    engine: str
    predictor: str


TRAFFIC: Final = {
    "castillo": Traffic(lambda requests: Shared("llama-3.1-8b", requests), "llama-3-8b@a100", "fast"),
    "react": Traffic(lambda requests: React(VARIED, requests), "mistral-7b@a6000", "history"),
    "mooncake": Traffic(lambda requests: Window("mooncake_conversation", requests), "llama-3-8b@h100", "history"),
    "azure": Traffic(lambda requests: Window("azure2023_conv", requests), "llama-3-8b@a100", "history"),
}


@dataclass(frozen=True)
class RouterGrid(SeededGrid):
    """What is simulated; a run has at least two requests for each sequence of its engines."""

    seeds: int = 5
    requests: int = 600
    loads: tuple[float, ...] = (0.5, 0.7, 0.9, 1.1)
    engines: tuple[int, ...] = (4, 8, 16)
    workloads: tuple[str, ...] = tuple(TRAFFIC)


@dataclass(frozen=True)
class Compared:
    """`lengthwise` and the other routers in one place."""

    place: Place
    ours: Cell
    others: Mapping[str, Cell]

    @property
    def best(self) -> str:
        """The other router with the least mean E2E."""
        return min(self.others, key=lambda router: self.others[router].mean("e2e_s", "mean"))

    def e2e(self, router: str) -> Ratio:
        """Our mean E2E over another router's."""
        return self.ours.over(self.others[router], "e2e_s", "mean")

    @property
    def ttft(self) -> Ratio:
        """Our p99 TTFT over least_load's."""
        return self.ours.over(self.others["least_load"], "ttft_s", "p99")

    def __str__(self) -> str:
        return f"{self.place.workload} load {self.place.at:g} engines {self.place.engines}"


def measure(run: Run, grid: RouterGrid) -> list[Compared]:
    """Simulate every router in every place; by workload, load and number of engines."""
    settings = {
        (name, engines, seed): Setting(
            TRAFFIC[name].source(grid.requests),
            Fleet.parse(f"{engines}*{TRAFFIC[name].engine}").limited_to(max_num_seqs=SLOTS),
            seed,
            own_arrivals=False,
        )
        for name in grid.workloads
        for engines in grid.engines
        for seed in range(grid.seeds)
    }
    found = run.results("capacity", [CapacityTask(setting) for setting in settings.values()])
    capacity = {where: each["requests_per_s"] for where, each in zip(settings, found, strict=True)}

    def task(name: tuple[Place, str], seed: int) -> SimulationTask:
        place, router = name
        where = place.workload, place.engines, seed
        return routing_task(
            settings[where], place.at * capacity[where], Routing(router, TRAFFIC[place.workload].predictor)
        )

    # Loads and routers last: they share a workload and its predictions.
    places = [Place(*where, load, "load") for where in product(grid.workloads, grid.engines) for load in grid.loads]
    results = run.by_seed("simulate", list(product(places, (*BASELINES, OURS))), grid.seeds, task)
    cells = {name: Cell(name[0], Routing(name[1]), seeds=each) for name, each in results.items()}
    places.sort(key=lambda place: (grid.workloads.index(place.workload), place.at, place.engines))
    return [
        Compared(place, cells[place, OURS], {router: cells[place, router] for router in BASELINES}) for place in places
    ]


def verdicts(found: Sequence[Compared]) -> list[str]:
    """The targets and whether they are reached."""
    pairs = [
        (each, router)
        for each in found
        for router in ON_CASTILLO
        if each.place.workload == "castillo" and each.place.at >= 0.7
    ]
    beaten = [pair for pair in pairs if pair[0].e2e(pair[1]).ratio < 1]
    surely = sum(each.e2e(router).high < 1 for each, router in beaten)
    missed = [_named(*pair) for pair in pairs if pair not in beaten]
    behind = [(each, router) for each in found for router in each.others if each.e2e(router).low > MAX_BEHIND]
    slow = sorted((each for each in found if each.ttft.ratio > MAX_TTFT), key=lambda each: -each.ttft.ratio)
    named = "; ".join(f"{each} {multiple(each.ttft)}" for each in slow)
    return [
        f"1. CASTILLO, load 0.7 and up, mean E2E below that of {', '.join(ON_CASTILLO)}: {_verdict(not missed)}; "
        f"{len(beaten)} of {len(pairs)} comparisons, {surely} with the whole interval. {'; '.join(missed)}".rstrip(),
        f"2. cells in which another router is ahead by more than 2 % (lower end): {_verdict(not behind)}; "
        f"{len({id(each) for each, _ in behind})} of {len(found)}. "
        f"{'; '.join(_named(*pair) for pair in behind)}".rstrip(),
        f"3. p99 TTFT at most {MAX_TTFT:g} of least_load's: {_verdict(not slow)}; {len(slow)} of {len(found)} cells "
        f"are above. {named}".rstrip(),
    ]


def _verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


def _named(each: Compared, router: str) -> str:
    return f"{each} {router} {multiple(each.e2e(router))}"


def tables(found: Sequence[Compared]) -> list[Table]:
    """One row per place, and the targets."""
    rows = [
        [
            each.place.workload,
            f"{each.place.at:g}",
            str(each.place.engines),
            seconds(each.ours.mean("e2e_s", "mean")),
            each.best,
            seconds(each.others[each.best].mean("e2e_s", "mean")),
            multiple(each.e2e(each.best)),
            multiple(each.ttft),
        ]
        for each in found
    ]
    columns = (
        "workload", "load", "engines", "ours, mean E2E", "best other", "its mean E2E", "ours over it",
        "p99 TTFT over least_load's",
    )  # fmt: skip
    notes = [f"{SLOTS} sequences an engine; below 1 is better; 95 % intervals over seeds.", *verdicts(found)]
    return [Table("lengthwise beside the best other router", columns, rows, notes, sections(rows))]


def _needs(grid: RouterGrid) -> str | None:
    sources = [TRAFFIC[name].source(grid.requests) for name in grid.workloads]
    missing = [each.name for each in sources if isinstance(each, Window) and find_trace(each.name).path is None]
    return f"needs {', '.join(missing)} in LENGTHWISE_DATA, or --set workloads=castillo,react" if missing else None


def answer(found: Sequence[Compared]) -> str:
    """In how many cells our router is ahead of the best other one, and behind it."""
    ratios = [each.e2e(each.best) for each in found]
    ahead, behind = sum(ratio.high < 1 for ratio in ratios), sum(ratio.low > 1 for ratio in ratios)
    return (
        f"Mean E2E of lengthwise is surely below that of the best other router in {ahead} of {len(found)} cells and "
        f"surely above it in {behind}."
    )


STUDY: Study[RouterGrid, list[Compared]] = Study(
    name="router_grid",
    title="Routers over traffic, load and fleet",
    question="Is there traffic, load or fleet size at which another router is ahead of lengthwise?",
    source="ReAct, Mooncake, Azure, CASTILLO",
    grid=RouterGrid(),
    quick=RouterGrid(requests=300, loads=(0.7, 1.1), engines=(4,), seeds=2),
    minutes=(30, 0.4),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
