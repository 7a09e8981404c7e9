"""Capacity planning: the fewest engines under each policy that serve a workload within latency limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.routers import make_router
from lengthwise.simulator.cluster import as_predictions, simulate, uses_predictions
from lengthwise.simulator.fleet import EngineSpec, Fleet
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import RequestPredictions, default_predictor, learns
from lengthwise.simulator.routing import charged_times_s
from lengthwise.simulator.tasks import Report
from lengthwise.specs import parse_spec
from lengthwise.workloads import Workload

__all__ = ["CapacityPlan", "CapacitySearch", "Trial"]

_NO_QUEUE_S = 1e6
"""Seconds between two requests, to measure what a request takes alone."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One simulation: the share of requests within the limits; refused requests are outside."""

    engines: int
    attained: float
    outcome: Outcome


@dataclass(frozen=True, eq=False)
class CapacityPlan:
    """What the search found for one policy."""

    policy: str
    predictor: str | None
    """None where neither policy nor router uses predictions."""
    engines: int | None
    """The fewest engines that are enough; None if the most that were allowed are not."""
    trials: tuple[Trial, ...]
    """In order of engines."""

    def trial(self, engines: int) -> Trial | None:
        """Return the simulation with this many engines, if it was run."""
        return next((each for each in self.trials if each.engines == engines), None)


@dataclass
class CapacitySearch:
    """Bisection over the number of engines, on the same requests under every policy.

    More engines are taken to be better: of the counts below the answer, those that were simulated fail.
    """

    workload: Workload
    engine: EngineSpec
    slo: LatencyLimits
    attainment: float = 0.99
    fewest: int = 1
    most: int = 16
    router: str = "least_load"
    predictor: str | None = None
    """None: `fast` where the workload has text, else `history`."""
    _known: dict[str, RequestPredictions] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.attainment <= 1:
            raise InputError(f"{self.attainment:g}", field="attainment", hint="give a share above 0, at most 1")
        if not 1 <= self.fewest <= self.most:
            raise InputError(f"{self.fewest}..{self.most}", field="engines", hint="give a range such as 1..16")
        if not len(self.workload):
            raise InputError("holds no requests", source=self.workload.name)
        make_router(self.router)
        self.predictor = self.predictor or default_predictor(self.workload)

    def run(self, policies: Sequence[str], on_progress: Report | None = None) -> list[CapacityPlan]:
        """Return the plan of each policy, each simulated also with the fewest engines that any policy needs."""
        for policy in policies:
            make_policy(policy)
        steps = (self.most - self.fewest + 1).bit_length() + 2
        found = {}
        for place, policy in enumerate(policies):

            def report(step: int, place: int = place, policy: str = policy) -> None:
                if on_progress is not None:
                    on_progress(policy, (place + min(step / steps, 1.0)) / len(policies))

            found[policy] = self._search(policy, report)
        common = min((each for each, _ in found.values() if each is not None), default=self.most)
        plans = []
        for policy, (engines, trials) in found.items():
            if common not in trials:
                trials[common] = self._try(policy, common)
            name, predictor = self._names(policy)
            plans.append(CapacityPlan(name, predictor, engines, tuple(trials[each] for each in sorted(trials))))
        return plans

    def without_queue(self) -> float:
        """Return the share of requests within the limits if each has an engine for itself: no plan attains more."""
        alone = self.workload.replace(arrival_s=np.arange(len(self.workload)) * _NO_QUEUE_S)
        return self._attained(simulate(alone, Fleet((self.engine,)), "fcfs"))

    def _search(self, policy: str, report: Callable[[int], None]) -> tuple[int | None, dict[int, Trial]]:
        trials = {self.most: self._try(policy, self.most)}
        if trials[self.most].attained < self.attainment:
            return None, trials
        low, high = self.fewest, self.most
        while low < high:
            middle = (low + high) // 2
            trials[middle] = self._try(policy, middle)
            report(len(trials))
            low, high = (low, middle) if trials[middle].attained >= self.attainment else (middle + 1, high)
        return high, trials

    def _try(self, policy: str, engines: int) -> Trial:
        fleet = Fleet((self.engine,) * engines)
        base = parse_spec(self.router, "router").base
        outcome = simulate(
            self.workload,
            fleet,
            policy,
            router=self.router,
            predictor=self._predictions(fleet),
            routing_s=charged_times_s([self.router], engines).get(base, 0.0),
        )
        return Trial(engines, self._attained(outcome), outcome)

    def _predictions(self, fleet: Fleet) -> RequestPredictions:
        name = self.predictor or "none"
        if learns(name):  # what it has seen depends on how fast requests finish
            return as_predictions(self.workload, fleet, name)
        if name not in self._known:
            self._known[name] = as_predictions(self.workload, fleet, name)
        return self._known[name]

    def _names(self, policy: str) -> tuple[str, str | None]:
        made = make_policy(policy)
        used = uses_predictions(made, make_router(self.router), Fleet((self.engine,)))
        return made.name, self.predictor if used else None

    def _attained(self, outcome: Outcome) -> float:
        return float(outcome.within(self.slo).mean())
