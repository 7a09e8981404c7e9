"""A fleet of engines in virtual time: requests arrive, are routed, and are served to the last one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies import Policy
from lengthwise.routers import Router, StaticRouter
from lengthwise.simulator.cluster_run import ClusterRun, decision_times
from lengthwise.simulator.engine import SimulatedEngine, accelerated, engine_factory
from lengthwise.simulator.fleet_events import sorted_events
from lengthwise.simulator.inputs import as_fleet, as_policy, as_predictions, as_workload, uses_predictions
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.simulator.routing import FleetRouter, RoutingTrace
from lengthwise.simulator.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lengthwise.simulator.fleet import Fleet
    from lengthwise.simulator.fleet_events import FleetEvent
    from lengthwise.workloads import Workload

    Progress = Callable[[float], None]

_REPORT_EVERY: Final = 4096  # requests


def simulate(
    workload: Workload | str,
    fleet: Fleet | str,
    policy: Policy | str = "fcfs",
    *,
    router: Router | str = "round_robin",
    predictor: str | RequestPredictions | None = None,
    rate: float | None = None,
    load: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    prediction_delay_s: float = 0.0,
    decision_s: float = 0.0,
    routing_s: float = 0.0,
    fleet_events: Sequence[FleetEvent] = (),
    explain: bool = False,
    jump: bool = True,
    accelerate: bool | None = None,
    on_progress: Progress | None = None,
) -> Outcome:
    """Serve the workload to the last request.

    `workload` and `fleet` are objects or names: "castillo", a trace or a file, with `rate` or `load`, `requests` and
    `seed`; "8*llama-3-8b@a100". Without `predictor`, `fast` predicts where the workload has text and `history` where it
    has none; "oracle" knows the TRUE LENGTHS, and the outcome says so. `accelerate=False` runs the readable engine
    (`simulator.engine`) in place of the compiled one, for the same outcome; None compiles where Numba is installed.
    `router` is a spec of `make_router` or a fresh router. `predictor` is a name, or the result of `predict_workload`,
    which several policies can share. Predictions arrive `prediction_delay_s` after their requests; until then policies
    and routers use the wide prior. Each admission and each preemption delays its engine by `decision_s`. The router
    takes `routing_s` for each request, one after the other: a measured time, never that of this machine.
    `fleet_events` are engines that fail, join and drain. With `explain` the outcome records the costs that the router
    compared. `jump=False` simulates every step singly, with the same outcome. `on_progress` receives the share of
    settled requests from time to time.
    """
    fleet, policy = as_fleet(fleet), as_policy(policy)
    workload = as_workload(workload, fleet, rate=rate, load=load, requests=requests, seed=seed)
    check_seconds(prediction_delay_s=prediction_delay_s, decision_s=decision_s, routing_s=routing_s)
    events = sorted_events(fleet_events, len(fleet))
    check_any_fits(workload, fleet)
    used = uses_predictions(policy, router, fleet)
    predictions = as_predictions(workload, predictor, used=used)
    traffic = Traffic.of(
        workload, predictions, prediction_delay_s=prediction_delay_s, quantile=admission_quantile(fleet)
    )
    routed = FleetRouter(router, fleet, workload, explain=explain)

    accelerate = accelerated() if accelerate is None else accelerate
    make = engine_factory(policy, traffic, decision_s=decision_s, jump=jump, accelerate=accelerate)

    def engine(number: int) -> SimulatedEngine:
        return make(fleet.engines[number])

    report = _Report(len(workload), on_progress)
    if isinstance(routed.router, StaticRouter) and not events:
        if routing_s:
            traffic.requests["arrival"] = decision_times(workload.arrival_s, routing_s)
        outcome = _serve_statically(routed.router, fleet, engine, traffic, report, policy.name)
        return replace(outcome, predictor=predictions.predictor if used else None, accelerated=accelerate)
    run = ClusterRun(routed, len(fleet), engine, traffic, events=events, routing_s=routing_s)
    engines = run.serve(report, report.every)
    outcome = Outcome.of(workload, policy.name, traffic.requests, run.chosen, engines, run.resubmissions)
    outcome = replace(outcome, predictor=predictions.predictor if used else None, accelerated=accelerate)
    return outcome if routed.costs is None else replace(outcome, trace=RoutingTrace.of(routed.costs, len(workload)))


class _Report:
    """Converts the number of settled requests to a share."""

    def __init__(self, requests: int, on_progress: Progress | None) -> None:
        self.every = None if on_progress is None else _REPORT_EVERY
        self._requests = requests
        self._on_progress = on_progress

    def __call__(self, settled: int) -> None:
        if self._on_progress is not None:
            self._on_progress(settled / max(1, self._requests))


def _serve_statically(
    router: StaticRouter,
    fleet: Fleet,
    engine: Callable[[int], SimulatedEngine],
    traffic: Traffic,
    report: _Report,
    policy: str,
) -> Outcome:
    """Assign all requests, then simulate one engine after the other: no choice depends on what engines do."""
    chosen = np.array(router.assign(len(traffic.requests)), np.int64)
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(len(fleet)), side="right")
    outcomes, settled = [], 0
    for number in range(len(fleet)):
        one = engine(number)
        one.submit(order[ends[number - 1] if number else 0 : ends[number]])
        while not one.advance(settle=report.every):
            report(settled + one.settled)
        settled += one.settled
        report(settled)
        outcomes.append(one.outcome())
    return Outcome.of(traffic.workload, policy, traffic.requests, chosen, outcomes)


def check_seconds(**given: float) -> None:
    """Raise InputError for a duration that is negative or not finite."""
    for name, seconds in given.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise InputError(f"{seconds} seconds", field=name, hint="a number of at least 0")


def check_any_fits(workload: Workload, fleet: Fleet) -> None:
    """Raise InputError if no request fits into any engine; single requests that do not fit are refused and counted."""
    if not any(spec.can_hold(workload.input_tokens, workload.output_tokens).any() for spec in set(fleet.engines)):
        largest = max(min(spec.max_model_len, spec.kv_tokens) for spec in fleet.engines)
        raise InputError(
            f"no request fits into an engine; the largest holds {largest} tokens",
            source=workload.name,
            field="fleet",
            hint="give engines with more KV memory, or shorter requests",
        )


def admission_quantile(fleet: Fleet) -> float | None:
    """Return the quantile at which engines predict lengths for admission; None if none of them does."""
    levels = {spec.admission_quantile for spec in fleet.engines if spec.admission != "prompt"}
    if len(levels) > 1:
        raise InputError(
            f"engines with different admission quantiles: {sorted(levels)}",
            field="admission_quantile",
            hint="give all engines of a fleet the same",
        )
    return levels.pop() if levels else None
