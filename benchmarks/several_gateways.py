"""What is lost when several gateways stand before one fleet, each with a router of its own.

    python -m benchmarks.several_gateways [--seeds 6] [--routers lengthwise,least_load]

A simulation: requests are spread over the gateways in turn. A gateway's router receives the events of its own requests
only, and from the engines the numbers of running and waiting requests once a second (`--scrape`), as `lengthwise serve`
reads them in /metrics; there is no other exchange. Ratios are several gateways / one gateway on the same requests,
above 1 is worse: geometric means over seeds with a 95 % interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from benchmarks import options
from lengthwise.intervals import over_seeds
from lengthwise.policies import Job
from lengthwise.reports.runs import multiple
from lengthwise.routers import Admitted, Decision, EngineInfo, Event, Finished, Router, Scraped, make_router
from lengthwise.routers.base import EngineId
from lengthwise.simulator import Fleet, Outcome, measure_capacity, simulate
from lengthwise.simulator.cluster import as_workload, at_rate
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.workloads import Workload
from lengthwise.workloads.generators import DiscreteLengths, react_workload

FLEET: Final = "8*llama-3-8b@a100"
SLOTS: Final = 32
REACT_LENGTHS: Final = DiscreteLengths.parse("30:0.5,150:0.3,600:0.2")
GATEWAYS: Final = (2, 4, 8)
FIGURES: Final[dict[str, Callable[[Outcome], float]]] = {
    "mean TTFT": lambda outcome: float(np.nanmean(outcome.first_token - outcome.arrival)),
    "mean E2E": lambda outcome: float(np.nanmean(outcome.finish - outcome.arrival)),
    "p99 E2E": lambda outcome: float(np.nanquantile(outcome.finish - outcome.arrival, 0.99)),
}


class SeparateRouters:
    """Routers that know only their own requests and, every `scrape_s`, the load that engines report."""

    uses_predictions = True

    def __init__(self, spec: str, gateways: int, scrape_s: float) -> None:
        self.name = spec
        self._routers: list[Router] = [make_router(spec) for _ in range(gateways)]
        self._scrape_s = scrape_s
        self._next_scrape_s = [scrape_s * number / gateways if number else 0.0 for number in range(gateways)]
        self._running: Counter[EngineId] = Counter()
        self._waiting: Counter[EngineId] = Counter()
        self._admitted: set[str] = set()
        self._engines: list[EngineId] = []

    def _owner(self, job: str) -> Router:
        return self._routers[int(job) % len(self._routers)]

    def engine_up(self, engine: EngineInfo) -> None:
        self._engines.append(engine.id)
        for router in self._routers:
            router.engine_up(engine)

    def engine_down(self, engine: EngineId) -> None:
        self._engines.remove(engine)
        for router in self._routers:
            router.engine_down(engine)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        for number, router in enumerate(self._routers):
            if now >= self._next_scrape_s[number]:
                self._next_scrape_s[number] = now + self._scrape_s
                for engine in self._engines:
                    router.observe(Scraped(engine, now, self._running[engine], self._waiting[engine]))
        decision = self._owner(job.id).choose(job, now, among)
        self._waiting[decision.engine] += 1
        return decision

    def observe(self, event: Event) -> None:
        if not isinstance(event, (Admitted, Finished)):
            return
        if isinstance(event, Finished):
            self._running[event.engine] -= 1
        elif event.job not in self._admitted:  # else admitted again after a preemption
            self._admitted.add(event.job)
            self._waiting[event.engine] -= 1
            self._running[event.engine] += 1
        self._owner(event.job).observe(event)


def traffic(fleet: Fleet, name: str, seed: int, n: int, load: float) -> Workload:
    if name == "castillo":
        return as_workload("castillo", fleet, load=load, requests=n, seed=seed)
    drawn = react_workload(workloads=24, examples=4, requests=n, rate=1.0, lengths=REACT_LENGTHS, seed=seed)
    return at_rate(drawn, load * measure_capacity(drawn, fleet).requests_per_s)


def main() -> None:
    given = options(
        __doc__,
        seeds=6,
        requests=4000,
        load=0.9,
        routers=("lengthwise",),
        policy="lengthwise",
        workloads=("castillo", "react"),
        scrape=1.0,
    )
    fleet = Fleet.parse(FLEET).limited_to(max_num_seqs=SLOTS)
    for name in given.workloads:
        drawn: list[tuple[Workload, RequestPredictions]] = []
        for seed in range(given.seeds):
            workload = traffic(fleet, name, seed, given.requests, given.load)
            drawn.append((workload, predict_workload(workload, "fast" if name == "castillo" else "history")))
        for spec in given.routers:
            cells = [(1, given.scrape), *((count, given.scrape) for count in GATEWAYS), (4, math.inf)]
            results: dict[tuple[int, float], list[Outcome]] = {
                cell: [
                    simulate(workload, fleet, given.policy, router=SeparateRouters(spec, *cell), predictor=predictions)
                    for workload, predictions in drawn
                ]
                for cell in cells
            }
            for cell in cells[1:]:
                ratios = []
                for figure, of in FIGURES.items():
                    here, one = ([of(outcome) for outcome in results[each]] for each in (cell, cells[0]))
                    ratios.append(f"{figure} {multiple(over_seeds(here, one))}")
                known = "no load" if cell[1] == math.inf else f"load every {cell[1]:g} s"
                print(f"{name:10} {spec:12} {cell[0]} gateways, {known:15}  " + "  ".join(ratios), flush=True)


if __name__ == "__main__":
    main()
