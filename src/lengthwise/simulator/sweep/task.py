"""One piece of a sweep: what is computed in a worker, wherever that is, and what its result depends on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from lengthwise.predictors.experimental import parse_predictor_spec
from lengthwise.predictors.load import model_path
from lengthwise.simulator import Fleet, measure_capacity, simulate
from lengthwise.simulator.fleet_events import Change
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.simulator.sweep.cache import code_version, content_key, file_digest, workload_digest
from lengthwise.workloads import Workload


class Drawn(Hashable, Protocol):
    """Where a workload comes from: a small value that can be compared, hashed and sent to a worker."""

    @property
    def name(self) -> str:
        """What it is called."""

    def draws(self, *, own_arrivals: bool, slots: int) -> Callable[[int], Workload]:
        """What draws the workload of a seed, at one request per second unless its own arrivals are kept."""


class Task(Protocol):
    """Something to compute, and the name of what comes of it."""

    @property
    def key(self) -> str:
        """By content."""

    def run(self) -> dict[str, Any]:
        """Ready for JSON."""


@dataclass(frozen=True, slots=True)
class Where:
    """A workload on a fleet, drawn with a seed."""

    source: Drawn
    fleet: Fleet
    seed: int
    own_arrivals: bool

    @property
    def workload(self) -> Workload:
        """At one request per second, unless its own arrivals are kept."""
        return _drawn(self.source, self.fleet.slots, self.own_arrivals, self.seed)

    @property
    def key(self) -> str:
        """Of all that it is."""
        return _place_key(self.source, self.fleet, self.seed, self.own_arrivals)


@dataclass(frozen=True, slots=True)
class CapacityTask:
    """What a fleet can do."""

    where: Where

    @property
    def key(self) -> str:
        """By content."""
        return content_key(kind="capacity", code=code_version(), where=self.where.key)

    def run(self) -> dict[str, Any]:
        """Requests per second under backlog."""
        return {"requests_per_s": measure_capacity(self.where.workload, self.where.fleet).requests_per_s}


@dataclass(frozen=True, slots=True)
class CellTask:
    """One simulation. `rate`: requests per second, None for the workload's own arrivals."""

    where: Where
    rate: float | None
    policy: str
    router: str
    predictor: str
    prediction_delay_s: float
    decision_s: float
    routing_s: float
    changes: tuple[Change, ...]

    @property
    def key(self) -> str:
        """By content: of a model file, its bytes."""
        spec = parse_predictor_spec(self.predictor)
        model = file_digest(model_path(spec.model)) if spec.kind == "model" and spec.model else None
        return content_key(
            kind="cell",
            code=code_version(),
            where=self.where.key,
            rate=self.rate,
            policy=self.policy,
            router=self.router,
            predictor=self.predictor,
            model=model,
            times=(self.prediction_delay_s, self.decision_s, self.routing_s),
            changes=self.changes,
        )

    def run(self) -> dict[str, Any]:
        """The run in a few numbers."""
        workload = self.where.workload
        known = _predicted(self.where, self.predictor)
        if self.rate is not None:
            workload = workload.replace(arrival_s=workload.arrival_s / self.rate)
        outcome = simulate(
            workload,
            self.where.fleet,
            self.policy,
            router=self.router,
            predictor=known,
            prediction_delay_s=self.prediction_delay_s,
            decision_s=self.decision_s,
            routing_s=self.routing_s,
            changes=self.changes,
        )
        return {"offered_per_s": workload.rate, **outcome.summary.to_dict()}


def run_task(task: Task) -> dict[str, Any]:
    """For workers, which are given a function and its argument."""
    return task.run()


@lru_cache(maxsize=8)
def _drawn(source: Drawn, slots: int, own_arrivals: bool, seed: int) -> Workload:
    return source.draws(own_arrivals=own_arrivals, slots=slots)(seed)


@lru_cache(maxsize=4096)
def _place_key(source: Drawn, fleet: Fleet, seed: int, own_arrivals: bool) -> str:
    digest = workload_digest(_drawn(source, fleet.slots, own_arrivals, seed))
    return content_key(workload=digest, fleet=[repr(engine) for engine in fleet.engines], seed=seed)


@lru_cache(maxsize=8)
def _predicted(where: Where, predictor: str) -> RequestPredictions:
    return predict_workload(where.workload, predictor, seed=where.seed)
