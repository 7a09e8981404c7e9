"""Capacity planning: the fewest engines that serve a workload within latency limits, or the policy for given ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

import numpy as np

from lengthwise.defaults import COMPARED_POLICIES, DEFAULT_ROUTER
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, over_requests, over_seeds
from lengthwise.policies import POLICIES, make_policy
from lengthwise.policies.ontime import NO_LIMIT
from lengthwise.policies.registry import LIMIT_PARAMETERS
from lengthwise.routers import make_router
from lengthwise.simulator.cluster import as_predictions
from lengthwise.simulator.fleet import EngineSpec, Fleet
from lengthwise.simulator.fleet_run import uses_predictions
from lengthwise.simulator.gains import Gain
from lengthwise.simulator.grid import BASELINE, Metric, Statistic, paired_ratio
from lengthwise.simulator.metrics import TRUTH, LatencyLimits
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import RequestPredictions, default_predictor, learns
from lengthwise.simulator.routing import charged_times_s
from lengthwise.simulator.tasks import DrawnSetting, Report, SimulationTask
from lengthwise.specs import parse_spec
from lengthwise.traffic.rows import LIMITS
from lengthwise.workloads import Workload

_SHORTEST: Final = "sjf"
_KEPT: Final = {parameter: LIMITS[name] for parameter, name in LIMIT_PARAMETERS.items()}
"""Parameters of policies that are latency limits, and the fields of `LatencyLimits` that they are."""
_MAX_ENGINES = 1024
_NO_QUEUE_S = 1e6
"""Seconds between two requests, to measure what a request takes alone."""


def candidates(limits: LatencyLimits, *, own: bool = False) -> list[str]:
    """Return the policies among which to choose for these limits; `own`: requests have limits of their own.

    Order of arrival, the default policy, shortest first, and each policy that keeps limits, with these.
    """
    found = [*COMPARED_POLICIES, _SHORTEST]
    for name, policy in POLICIES.items():
        kept = [each for each in fields(policy) if each.name in _KEPT]
        values = {each.name: getattr(limits, _KEPT[each.name]) for each in kept}
        given = ",".join(f"{parameter}={limit:g}" for parameter, limit in values.items() if math.isfinite(limit))
        if given:
            found.append(f"{name}:{given}")
        elif kept and (own or any(each.default != NO_LIMIT for each in kept)):  # or it learns one
            found.append(name)
    return found


@dataclass(frozen=True, eq=False)
class Trial:
    """One simulation: the share of requests within the limits; refused requests are outside."""

    engines: int
    attained: float
    interval: tuple[float, float]
    """Of `attained`, by a bootstrap of blocks of consecutive requests."""
    outcome: Outcome

    @property
    def goodput_per_s(self) -> float:
        """Requests per second of makespan that were within the limits."""
        return self.attained * len(self.outcome) / self.outcome.summary.makespan_s


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


@dataclass(frozen=True, eq=False)
class SeededPlan:
    """What the search found for one policy in each of several draws of the workload."""

    seeds: tuple[CapacityPlan, ...]

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.seeds[0].policy

    @property
    def predictor(self) -> str | None:
        """The predictor, None where none is used."""
        return self.seeds[0].predictor

    @property
    def true_lengths(self) -> bool:
        """Whether its predictions are the true lengths, which no deployment has."""
        return self.predictor == TRUTH

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with it."""
        return self.policy == BASELINE

    @property
    def engines(self) -> int | None:
        """The fewest engines that are enough in every draw; None if the most are not enough in one."""
        found = [each.engines for each in self.seeds if each.engines is not None]
        return max(found) if len(found) == len(self.seeds) else None

    def attained(self, engines: int) -> tuple[float, float, float] | None:
        """Return the mean share within the limits, and the lowest and the highest.

        They are over the draws that were simulated with this many engines; of a single draw the ends are its interval.
        """
        trials = self.trials(engines)
        if not trials:
            return None
        shares = [trial.attained for trial in trials]
        ends = trials[0].interval if len(self.seeds) == 1 else (min(shares), max(shares))
        return float(np.mean(shares)), *ends

    def trials(self, engines: int) -> list[Trial]:
        """Return the simulations with this many engines, one for each draw that has one."""
        return [trial for each in self.seeds if (trial := each.trial(engines)) is not None]

    def goodput_per_s(self, engines: int) -> float:
        """Return the mean goodput over the draws."""
        return float(np.mean([trial.goodput_per_s for trial in self.trials(engines)]))

    def latency(self, engines: int, metric: Metric, statistic: Statistic) -> float:
        """Return a statistic of latency, averaged over the draws."""
        return float(np.mean(_figures(self.trials(engines), metric, statistic)))

    def over(self, base: SeededPlan, engines: int, metric: Metric, statistic: Statistic) -> Ratio:
        """Return a statistic of latency over that of another policy with as many engines, draw by draw."""
        ours, theirs = self.trials(engines), base.trials(engines)
        if len(ours) == 1:
            return paired_ratio(ours[0].outcome, theirs[0].outcome, metric, statistic)
        return over_seeds(*(_figures(trials, metric, statistic) for trials in (ours, theirs)))

    def gain_over(self, base: SeededPlan, engines: int, slo: LatencyLimits) -> Gain:
        """Return what it brings over another policy with as many engines."""
        ours, theirs = ([trial.outcome for trial in each.trials(engines)] for each in (self, base))
        return Gain.of(self.policy, ours, theirs, slo)


@dataclass(frozen=True)
class FleetCost:
    """A fleet that attains the target under a policy, and its cost at the user's own price."""

    engine: str
    plan: SeededPlan
    engines: int
    price: float
    """Of one engine for an hour, in the user's currency."""

    @property
    def per_hour(self) -> float:
        """Price of the fleet for an hour."""
        return self.engines * self.price

    @property
    def per_million_tokens(self) -> float:
        """Price of a million output tokens of this traffic."""
        rates = [trial.outcome.summary.output_tokens_per_s for trial in self.plan.trials(self.engines)]
        return 1e6 * self.per_hour / (3600 * sum(rates) / len(rates))

    def __str__(self) -> str:
        fleet = f"{self.engines} x {self.engine} under {self.plan.policy}"
        return f"{fleet}, {self.per_hour:.2f} per hour ({self.per_million_tokens:.2f} per million output tokens)"


def _figures(trials: Sequence[Trial], metric: Metric, statistic: Statistic) -> list[float]:
    return [float(getattr(getattr(trial.outcome.summary, metric), statistic)) for trial in trials]


def plan_seeds(
    searches: Sequence[CapacitySearch], policies: Sequence[str], on_progress: Report | None = None
) -> list[SeededPlan]:
    """Return the plans for several draws of a workload, each policy also simulated with its answer in every draw.

    The first draw's answer is where the search of the others starts, so that each takes two simulations if it agrees.
    """
    found: list[list[CapacityPlan]] = []
    for place, search in enumerate(searches):

        def report(what: str, done: float, place: int = place) -> None:
            if on_progress is not None:
                on_progress(what, (place + done) / len(searches))

        found.append(search.run(policies, report, [each.engines for each in found[0]] if found else None))
    plans = []
    for policy, seeds in zip(policies, zip(*found, strict=True), strict=True):
        answer = SeededPlan(seeds).engines or searches[0].most
        whole = [search.with_trial(plan, policy, answer) for search, plan in zip(searches, seeds, strict=True)]
        plans.append(SeededPlan(tuple(whole)))
    return plans


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
    router: str = DEFAULT_ROUTER
    predictor: str | None = None
    """None: `fast` where the workload has text, else `history`."""
    _known: RequestPredictions | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.attainment <= 1:
            raise InputError(f"{self.attainment:g}", field="attainment", hint="give a share above 0, at most 1")
        if not 1 <= self.fewest <= self.most <= _MAX_ENGINES:
            hint = f"give a range such as 1..16, at most {_MAX_ENGINES:,}"
            raise InputError(f"{self.fewest}..{self.most}", field="engines", hint=hint)
        if not len(self.workload):
            raise InputError("holds no requests", source=self.workload.name)
        make_router(self.router)
        self.predictor = self.predictor or default_predictor(self.workload)

    @property
    def fixed(self) -> bool:
        """Whether the number of engines is given, so that only the policy is sought."""
        return self.fewest == self.most

    @property
    def target(self) -> str:
        """What a plan must attain, in words."""
        return f"{100 * self.attainment:g} % of requests within {self.slo}"

    def run(
        self,
        policies: Sequence[str],
        on_progress: Report | None = None,
        guesses: Sequence[int | None] | None = None,
    ) -> list[CapacityPlan]:
        """Return the plan of each policy, each simulated also with the fewest engines that any policy needs.

        `guesses`: for each policy, the number of engines to try first.
        """
        for policy in policies:
            make_policy(policy)
        steps = (self.most - self.fewest + 1).bit_length() + 2
        found = {}
        for place, policy in enumerate(policies):

            def report(step: int, place: int = place, policy: str = policy) -> None:
                if on_progress is not None:
                    on_progress(policy, (place + min(step / steps, 1.0)) / len(policies))

            found[policy] = self._search(policy, report, None if guesses is None else guesses[place])
        common = min((each for each, _ in found.values() if each is not None), default=self.most)
        plans = []
        for policy, (engines, trials) in found.items():
            name, predictor = self._names(policy)
            plan = CapacityPlan(name, predictor, engines, tuple(trials[each] for each in sorted(trials)))
            plan = self.with_trial(plan, policy, common)
            plans.append(self.with_trial(plan, policy, common - 1) if common > self.fewest else plan)
        return plans

    def with_trial(self, plan: CapacityPlan, policy: str, engines: int) -> CapacityPlan:
        """Return the plan with a simulation of this many engines."""
        if plan.trial(engines) is not None:
            return plan
        trials = sorted((*plan.trials, self._try(policy, engines)), key=lambda each: each.engines)
        return replace(plan, trials=tuple(trials))

    def without_queue(self) -> float:
        """Return the share of requests within the limits if each has an engine for itself: no plan attains more."""
        alone = self.workload.replace(arrival_s=np.arange(len(self.workload)) * _NO_QUEUE_S)
        outcome = SimulationTask(DrawnSetting(alone, Fleet((self.engine,)))).outcome()
        return float(outcome.within(self.slo).mean())

    def _search(
        self, policy: str, report: Callable[[int], None], guess: int | None
    ) -> tuple[int | None, dict[int, Trial]]:
        trials: dict[int, Trial] = {}

        def enough(engines: int) -> bool:
            trials[engines] = self._try(policy, engines)
            report(len(trials))
            return trials[engines].attained >= self.attainment

        low, high, known = self.fewest, self.most, False  # whether `high` is enough
        for first in () if guess is None else (guess, guess - 1):
            if low <= first <= high:
                low, high, known = (low, first, True) if enough(first) else (first + 1, high, known)
        if not known and (low > high or not enough(high)):
            return None, trials
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle + 1, high)
        return high, trials

    def _try(self, policy: str, engines: int) -> Trial:
        fleet = Fleet((self.engine,) * engines)
        base = parse_spec(self.router, "router").base
        task = SimulationTask(
            DrawnSetting(self.workload, fleet),
            policy=policy,
            router=self.router,
            predictor=self._predictions(fleet),
            routing_s=charged_times_s([self.router], engines).get(base, 0.0),
        )
        outcome = task.outcome()
        met = outcome.within(self.slo).astype(np.float64)
        share = over_requests(met, np.ones_like(met), None, seed=0)
        return Trial(engines, float(met.mean()), (share.low, share.high), outcome)

    def _predictions(self, fleet: Fleet) -> RequestPredictions:
        name = self.predictor or "none"
        if learns(name):  # what it has seen depends on how fast requests finish
            return as_predictions(self.workload, fleet, name)
        if self._known is None:
            self._known = as_predictions(self.workload, fleet, name)
        return self._known

    def _names(self, policy: str) -> tuple[str, str | None]:
        made = make_policy(policy)
        used = uses_predictions(made, make_router(self.router), Fleet((self.engine,)))
        return made.name, self.predictor if used else None
