"""A sweep: what the cache has is taken from there, the rest is computed and kept, each piece as soon as it is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lengthwise.simulator.sweep.task import CapacityTask, CellTask, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lengthwise.simulator.grid import Plan
    from lengthwise.simulator.sweep.cache import Cache
    from lengthwise.simulator.sweep.config import SweepConfig
    from lengthwise.simulator.sweep.task import Task
    from lengthwise.simulator.sweep.workers import Workers

    Report = Callable[[str, float], None]


@dataclass(frozen=True)
class Swept:
    """A row for each cell, in the order of the file, and how many pieces came from the cache."""

    rows: list[dict[str, Any]]
    found: int
    computed: int


@dataclass
class Pieces:
    """Runs tasks through the cache, and counts. Stopped half way and run again, it goes on where it was."""

    cache: Cache
    workers: Workers
    report: Report | None = None
    found: int = field(default=0)
    computed: int = field(default=0)

    def results(self, what: str, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """Of each task, in their order."""
        keys = [task.key for task in tasks]
        known = {key: self.cache.get(key) for key in dict.fromkeys(keys)}
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if known[key] is None}
        self.found += len(known) - len(missing)
        names = list(missing)
        for done, (number, result) in enumerate(self.workers(list(missing.values())) if missing else (), start=1):
            self.cache.put(names[number], result)
            known[names[number]] = result
            self.computed += 1
            if self.report is not None:
                self.report(what, done / len(missing))
        return [result for result in (known[key] for key in keys) if result is not None]


def run_sweep(config: SweepConfig, cache: Cache, workers: Workers, *, on_progress: Report | None = None) -> Swept:
    """Everything that the file asks for. Stopped half way and run again, it goes on where it was."""
    pieces = Pieces(cache, workers, on_progress)
    plans = config.plans()
    for source, plan in plans:
        source.draws(own_arrivals=plan.own_arrivals, slots=plan.fleet.slots, repeats=plan.repeats)  # or it is told now
    places = [
        (Where(source, plan.fleet, seed, plan.own_arrivals), plan) for source, plan in plans for seed in plan.seeds
    ]
    loaded = [CapacityTask(where) for where, plan in places if plan.loads]
    capacities = dict(zip(loaded, pieces.results("capacity", loaded), strict=True))
    cells: list[tuple[dict[str, Any], CellTask]] = []
    for where, plan in places:
        known = capacities.get(CapacityTask(where), {}).get("requests_per_s")
        cells += [cell for load, rate in _levels(plan, known) for cell in _cells(where, plan, load, rate)]
    results = pieces.results("simulate", [task for _, task in cells])
    rows = [{**name, **result} for (name, _), result in zip(cells, results, strict=True)]
    return Swept(rows, pieces.found, pieces.computed)


def _levels(plan: Plan, capacity_per_s: float | None) -> list[tuple[float | None, float | None]]:
    """Load, where that is what was asked for, and requests per second."""
    if plan.loads and capacity_per_s is not None:
        return [(load, load * capacity_per_s) for load in plan.loads]
    return [(None, rate) for rate in plan.rates] or [(None, None)]


def _cells(
    where: Where, plan: Plan, load: float | None, rate: float | None
) -> Iterator[tuple[dict[str, Any], CellTask]]:
    """What a row is called, and what is to be computed for it. Who asks no predictor has None."""
    for router, predictor, policy in plan.runs:
        name = {
            "workload": where.source.name,
            "fleet": str(where.fleet),
            "load": load,
            "rate": rate if load is None else None,
            "router": router,
            "predictor": predictor,
            "policy": policy,
            "seed": where.seed,
        }
        yield (
            name,
            CellTask(
                where,
                rate,
                policy,
                router,
                plan.predictors[0] if predictor is None else predictor,
                plan.prediction_delay_s,
                plan.decision_s,
                plan.routing_s.get(router.partition(":")[0], 0.0),
                tuple(plan.changes),
            ),
        )
