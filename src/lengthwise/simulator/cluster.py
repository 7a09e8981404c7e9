"""Many engines in virtual time: requests arrive, are routed, are served to the last one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies import Job, Policy, make_policy
from lengthwise.simulator.cluster_run import Turns, decided_at
from lengthwise.simulator.engine import SimulatedEngine, engine_factory
from lengthwise.simulator.fleet_events import in_order
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.simulator.routing import Routed
from lengthwise.simulator.routing_trace import Reasons
from lengthwise.simulator.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lengthwise.simulator.fleet import Fleet
    from lengthwise.simulator.fleet_events import Change
    from lengthwise.workloads import Workload

    Progress = Callable[[float], None]

_REPORT_EVERY = 4096  # requests
_BLIND = "round_robin"  # of the routers by name, the one that need not be asked one by one


class Router(Protocol):
    """Chooses an engine, by its place in the fleet. Sees the job and the time, never an engine's inside."""

    def choose(self, job: Job, now: float) -> int:
        """Return the engine for this job."""


@runtime_checkable
class StaticRouter(Router, Protocol):
    """Looks at nothing, so that all requests can be dealt out at once and engines run one after the other."""

    def deal(self, requests: int) -> NDArray[np.integer]:
        """Return the engines for so many jobs."""


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self, fleet: Fleet) -> None:
        self._engines = len(fleet)
        self._next = 0

    def choose(self, job: Job, now: float) -> int:
        """The next engine in the circle."""
        return int(self.deal(1)[0])

    def deal(self, requests: int) -> NDArray[np.integer]:
        """The next engines in the circle."""
        engines = (self._next + np.arange(requests)) % self._engines
        self._next = (self._next + requests) % self._engines
        return engines


def simulate(
    workload: Workload,
    fleet: Fleet,
    policy: Policy | str = "fcfs",
    *,
    router: str | Callable[[Fleet], Router] = RoundRobin,
    predictor: str | RequestPredictions = "oracle",
    prediction_delay_s: float = 0.0,
    decision_s: float = 0.0,
    routing_s: float = 0.0,
    changes: Sequence[Change] = (),
    explain: bool = False,
    jump: bool = True,
    accelerate: bool | None = None,
    on_progress: Progress | None = None,
) -> Outcome:
    """Serve the workload to the last request.

    `router` is a name of `lengthwise.routers`, or makes a fresh router for the fleet. `predictor` is a name, or what
    `predict` made of one: several policies then share the predictions. Predictions come `prediction_delay_s` after their requests;
    until then policies and routers go by the wide prior. Each admission and each preemption keeps its engine
    `decision_s` longer. The router takes `routing_s` for each request, one after the other: what a router is measured
    to take, never the time of this machine. `changes` are engines that fail, join and drain, under a router by name.
    With `explain` the outcome keeps what each choice of a router by name was made from.
    `jump=False` takes every step singly, for the same outcome. `on_progress` is told now and then
    which share of the requests is settled.
    """
    policy = make_policy(policy) if isinstance(policy, str) else policy
    check_seconds(prediction_delay_s=prediction_delay_s, decision_s=decision_s, routing_s=routing_s)
    changes = in_order(changes, len(fleet))
    check_somebody_fits(workload, fleet)
    predictions = predict_workload(workload, predictor) if isinstance(predictor, str) else predictor
    traffic = Traffic.of(
        workload, predictions, prediction_delay_s=prediction_delay_s, quantile=admission_quantile(fleet)
    )
    routes = _routes(router, fleet, workload, changes, explain=explain)

    make = engine_factory(policy, traffic, decision_s=decision_s, jump=jump, accelerate=accelerate)

    def engine(number: int) -> SimulatedEngine:
        return make(fleet.engines[number])

    report = _Report(len(workload), on_progress)
    if isinstance(routes, StaticRouter):
        if routing_s:
            traffic.requests["arrival"] = decided_at(workload.arrival_s, routing_s)
        return _serve_blindly(routes, fleet, engine, traffic, report, policy.name)
    turns = Turns(routes, len(fleet), engine, traffic, changes=changes, routing_s=routing_s)
    engines = turns.serve(report, report.every)
    outcome = Outcome.of(workload, policy.name, traffic.requests, turns.chosen, engines, turns.resubmissions)
    reasons = routes.reasons if isinstance(routes, Routed) else None
    return outcome if reasons is None else replace(outcome, reasons=Reasons.of(reasons, len(workload)))


def _routes(
    router: str | Callable[[Fleet], Router],
    fleet: Fleet,
    workload: Workload,
    changes: Sequence[Change],
    *,
    explain: bool,
) -> Router:
    if isinstance(router, str):
        blind = router == _BLIND and not changes
        return RoundRobin(fleet) if blind else Routed(router, fleet, workload, explain=explain)
    if changes and router is not RoundRobin:
        raise InputError("engines that come and go behind a router of one's own", field="changes", hint="name a router")
    return Routed(_BLIND, fleet, workload) if changes else router(fleet)


class _Report:
    """Tells the share of requests that are settled."""

    def __init__(self, requests: int, tell: Progress | None) -> None:
        self.every = None if tell is None else _REPORT_EVERY
        self._requests = requests
        self._tell = tell

    def __call__(self, settled: int) -> None:
        if self._tell is not None:
            self._tell(settled / max(1, self._requests))


def _serve_blindly(
    routes: StaticRouter,
    fleet: Fleet,
    engine: Callable[[int], SimulatedEngine],
    traffic: Traffic,
    report: _Report,
    policy: str,
) -> Outcome:
    """Deal all requests out, then run one engine after the other: none knows of the others."""
    chosen = routes.deal(len(traffic.requests))
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(len(fleet)), side="right")
    done, settled = [], 0
    for number in range(len(fleet)):
        one = engine(number)
        one.submit(order[ends[number - 1] if number else 0 : ends[number]])
        while not one.advance(settle=report.every):
            report(settled + one.settled)
        settled += one.settled
        report(settled)
        done.append(one.outcome())
    return Outcome.of(traffic.workload, policy, traffic.requests, chosen, done)


def check_seconds(**given: float) -> None:
    """Refuse a duration that is none."""
    for name, seconds in given.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InputError(f"{seconds} seconds", field=name, hint="a number of at least 0")


def check_somebody_fits(workload: Workload, fleet: Fleet) -> None:
    """A single request too large is refused and counted; a fleet too small for all of them is a mistake."""
    if not any(spec.can_hold(workload.input_tokens, workload.output_tokens).any() for spec in set(fleet.engines)):
        largest = max(min(spec.max_model_len, spec.kv_tokens) for spec in fleet.engines)
        raise InputError(
            f"no request fits into an engine, whose largest holds {largest} tokens",
            source=workload.name,
            field="fleet",
            hint="give engines with more KV memory, or shorter requests",
        )


def admission_quantile(fleet: Fleet) -> float | None:
    """The level at which engines predict lengths when they admit; None where none of them does."""
    levels = {spec.admission_quantile for spec in fleet.engines if spec.admission != "prompt"}
    if len(levels) > 1:
        raise InputError(
            f"engines that predict at different levels: {sorted(levels)}",
            field="admission_quantile",
            hint="give all engines of a fleet the same",
        )
    return levels.pop() if levels else None
