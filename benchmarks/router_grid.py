"""Routers over a grid of traffic, load and fleet: `python -m benchmarks.router_grid [--quick] [--json]`.

ReAct (lengths 1 or 300), Mooncake's and Azure's conversations and CASTILLO's test prompts behind ten shared system
prompts, at loads 0.5 to 1.1 of the capacity (FCFS, round robin), on 4, 8 and 16 engines of 16 sequences. FCFS inside
engines; each router is charged its measured time. Five seeds, paired: ReAct and CASTILLO are drawn with each seed; of a
trace each seed has other consecutive requests, with their arrivals scaled to the load.

Routers that use lengths get predictions of the shipped `fast` on CASTILLO and of `history` on the others (traces have
no prompts, and ReAct's lengths are random).

Of every cell: mean E2E of `lengthwise`, the best other router, and ours over it with its 95 % interval over seeds;
below 1 is better. Then the targets. Results are stored in the cache of `lengthwise sweep`: a second run computes
nothing, an interrupted one continues where it stopped. Traces are read from LENGTHWISE_DATA.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from experiments.preble.study import VARIED, Cell, Place, React, Routing, Shared, group_by_seed, places
from lengthwise.cli.sweep import cache_folder
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.simulator import Fleet
from lengthwise.simulator.paired import Ratio
from lengthwise.simulator.routing import routing_time_s
from lengthwise.simulator.tasks import (
    CapacityTask,
    CellTask,
    ResultCache,
    Setting,
    TaskRunner,
    WorkloadSource,
    in_processes,
)
from lengthwise.workloads import Workload, load_trace
from lengthwise.workloads.arrivals import rescale

NAMES = ("castillo", "react", "mooncake", "azure")
OURS = "lengthwise"
BASELINES = ("round_robin", "least_outstanding", "least_load", "cache_aware", "dynamo", "e2", "e2_length")
ON_CASTILLO = ("e2", "least_load", "cache_aware", "dynamo")
"""Routers that `lengthwise` should beat on CASTILLO from load 0.7 on."""
SLOTS = 16
MOST_BEHIND = 1.02
MOST_TTFT = 1.05


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive requests of a trace, other ones for each seed, with their own arrivals."""

    name: str
    requests: int

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """Return a function from seed to workload, at one request per second with the bursts of the trace."""
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

    source: WorkloadSource
    engine: str
    predictor: str


def traffics(requests: int) -> dict[str, Traffic]:
    """Return the four workloads by name."""
    return {
        "castillo": Traffic(Shared("llama-3.1-8b", requests), "llama-3-8b@a100", "fast"),
        "react": Traffic(React(VARIED, requests), "mistral-7b@a6000", "history"),
        "mooncake": Traffic(Window("mooncake_conversation", requests), "llama-3-8b@h100", "history"),
        "azure": Traffic(Window("azure2023_conv", requests), "llama-3-8b@a100", "history"),
    }


@dataclass(frozen=True)
class Effort:
    """How much is simulated; QUICK is only a check that everything runs."""

    requests: int = 600
    loads: tuple[float, ...] = (0.5, 0.7, 0.9, 1.1)
    engines: tuple[int, ...] = (4, 8, 16)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)


QUICK = Effort(300, (0.7, 1.1), (4,), (0, 1))


def run(
    pieces: TaskRunner, effort: Effort, traffic: Mapping[str, Traffic], routers: Sequence[str] = (*BASELINES, OURS)
) -> tuple[Cell, ...]:
    """Return a cell for each place and router."""
    settings = {
        (name, engines, seed): Setting(each.source, fleet(each, engines), seed, own_arrivals=False)
        for name, each in traffic.items()
        for engines in effort.engines
        for seed in effort.seeds
    }
    found = pieces.results("capacity", [CapacityTask(setting) for setting in settings.values()])
    tasks: list[CellTask] = []
    names: list[tuple[Place, Routing]] = []
    for ((name, engines, _), setting), capacity in zip(settings.items(), found, strict=True):
        for load in effort.loads:  # loads and routers last: they share a workload and its predictions
            for router in routers:
                names.append((Place(name, engines, load, "load"), Routing(router)))
                tasks.append(
                    CellTask(
                        setting,
                        load * capacity["requests_per_s"],
                        policy="fcfs",
                        router=router,
                        predictor=traffic[name].predictor,
                        prediction_delay_s=0.0,
                        decision_s=0.0,
                        routing_s=routing_time_s(router, engines),
                        fleet_events=(),
                    )
                )
    return group_by_seed(names, pieces.results("simulate", tasks))


def fleet(traffic: Traffic, engines: int) -> Fleet:
    return Fleet.parse(f"{engines}*{traffic.engine}").limited_to(max_num_seqs=SLOTS)


@dataclass(frozen=True)
class Compared:
    """`lengthwise` and the other routers in one place."""

    place: Place
    ours: Cell
    others: Mapping[str, Cell]

    @property
    def best(self) -> str:
        """The other router with the least mean E2E."""
        return min(self.others, key=lambda router: self.others[router].mean("e2e_s"))

    def e2e(self, router: str) -> Ratio:
        """Return the ratio of mean E2E to another router."""
        return self.ours.over(self.others[router], "e2e_s")

    @property
    def ttft(self) -> Ratio:
        """The ratio of p99 TTFT to least_load."""
        return self.ours.over(self.others["least_load"], "ttft_s", "p99")

    def __str__(self) -> str:
        return f"{self.place.workload} load {self.place.at:g} engines {self.place.engines}"

    def facts(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        cells = {**self.others, OURS: self.ours}
        return {
            **asdict(self.place),
            "e2e_s": {router: cell.values("e2e_s") for router, cell in cells.items()},
            "ttft_p99_s": {router: cell.values("ttft_s", "p99") for router, cell in cells.items()},
            "ours_over": {router: asdict(self.e2e(router)) for router in self.others},
            "ttft_p99_over_least_load": asdict(self.ttft),
        }


def compared(cells: Sequence[Cell]) -> list[Compared]:
    """Return comparisons by place, in the order of workloads, loads and engines."""
    found = []
    order = list(dict.fromkeys(place.workload for place in places(cells)))
    for place in sorted(places(cells), key=lambda each: (order.index(each.workload), each.at, each.engines)):
        here = {cell.run.router: cell for cell in cells if cell.place == place}
        found.append(Compared(place, here.pop(OURS), here))
    return found


def verdicts(found: Sequence[Compared]) -> list[str]:
    """Return the targets and whether they are reached."""
    pairs = [
        (each, router)
        for each in found
        for router in ON_CASTILLO
        if each.place.workload == "castillo" and each.place.at >= 0.7
    ]
    beaten = [pair for pair in pairs if pair[0].e2e(pair[1]).ratio < 1]
    surely = sum(each.e2e(router).high < 1 for each, router in beaten)
    missed = [_named(*pair) for pair in pairs if pair not in beaten]
    behind = [(each, router) for each in found for router in each.others if each.e2e(router).low > MOST_BEHIND]
    slow = sorted((each for each in found if each.ttft.ratio > MOST_TTFT), key=lambda each: -each.ttft.ratio)
    worst = max(found, key=lambda each: each.ttft.ratio)
    named = "; ".join(f"{each} {_interval(each.ttft)}" for each in slow)
    return [
        f"1. CASTILLO, load 0.7 and up, mean E2E below that of {', '.join(ON_CASTILLO)}: {_verdict(not missed)}; "
        f"{len(beaten)} of {len(pairs)} comparisons, {surely} with the whole interval. {'; '.join(missed)}".rstrip(),
        f"2. cells in which another router is ahead by more than 2 % (lower end): {_verdict(not behind)}; "
        f"{len({id(each) for each, _ in behind})} of {len(found)}. "
        f"{'; '.join(_named(*pair) for pair in behind)}".rstrip(),
        f"3. p99 TTFT at most {MOST_TTFT:g} of least_load's: {_verdict(not slow)}; {len(slow)} of {len(found)} cells "
        f"are above, the worst: {worst} {_interval(worst.ttft)}. {named}".rstrip(),
    ]


def _verdict(reached: bool) -> str:
    return "ok" if reached else "MISSED"


def _named(each: Compared, router: str) -> str:
    return f"{each} {router} {_interval(each.e2e(router))}"


def _interval(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def show(found: Sequence[Compared], effort: Effort) -> None:
    print(f"{effort.requests:,} requests a run, {len(effort.seeds)} seeds, {SLOTS} sequences an engine; mean E2E in s")
    print(
        f"{'workload':<10}{'load':>5}{'engines':>8}{'ours':>9}  {'best other':<18}{'its':>8}"
        f"  {'ours over it':<22}  p99 TTFT over least_load's"
    )
    for each in found:
        best = each.best
        print(
            f"{each.place.workload:<10}{each.place.at:>5g}{each.place.engines:>8}{each.ours.mean('e2e_s'):>9.3f}"
            f"  {best:<18}{each.others[best].mean('e2e_s'):>8.3f}  {_interval(each.e2e(best)):<22}"
            f"  {_interval(each.ttft)}"
        )
    print(*verdicts(found), sep="\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--jobs", type=int, default=2, help="processes")
    arguments.add_argument("--workload", nargs="+", choices=NAMES, default=NAMES, help="workloads to run")
    arguments.add_argument("--engines", nargs="+", type=int, help="sizes of fleets")
    arguments.add_argument("--requests", type=int, help=f"a run; at least 2 for each of {SLOTS} sequences an engine")
    asked = arguments.parse_args()
    effort = QUICK if asked.quick else Effort()
    effort = effort if asked.requests is None else replace(effort, requests=asked.requests)
    effort = effort if asked.engines is None else replace(effort, engines=tuple(asked.engines))
    known = traffics(effort.requests)
    chosen = {name: known[name] for name in asked.workload}
    with late_bar() as bar:
        pieces = TaskRunner(ResultCache(cache_folder(None)), in_processes(asked.jobs), bar)
        found = compared(run(pieces, effort, chosen))
    if asked.json:
        print(
            json.dumps(
                {
                    "effort": asdict(effort),
                    "cells": [each.facts() for each in found],
                    "verdicts": verdicts(found),
                    "from_cache": pieces.from_cache,
                    "computed": pieces.computed,
                }
            )
        )
        return
    show(found, effort)
    print(f"{pieces.from_cache} from the cache, {pieces.computed} computed")


if __name__ == "__main__":
    main()
