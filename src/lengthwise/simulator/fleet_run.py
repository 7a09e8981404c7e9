"""One run of a fleet in virtual time: requests arrive, are routed, and are served to the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import Policy
from lengthwise.routers import Router, make_router
from lengthwise.routers.base import RoundRobin
from lengthwise.simulator.acceleration import MakeEngine, engine_factory
from lengthwise.simulator.engine import SimulatedEngine
from lengthwise.simulator.fleet import Fleet, FleetEvent, initially_absent
from lengthwise.simulator.outcome import EngineOutcome, Outcome, RoutingTrace
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.simulator.routing import FleetRouter
from lengthwise.simulator.traffic import Traffic
from lengthwise.workloads import Workload

Progress = Callable[[float], None]

_REPORT_EVERY: Final = 4096  # requests


def serve_fleet(
    workload: Workload,
    fleet: Fleet,
    policy: Policy,
    router: Router | str,
    predictions: RequestPredictions,
    report: Progress,
    *,
    events: Sequence[FleetEvent] = (),
    prediction_delay_s: float = 0.0,
    decision_s: float = 0.0,
    routing_s: float = 0.0,
    explain: bool = False,
    accelerate: bool,
) -> Outcome:
    """Serve a workload with engines that compute prompts and answers: `simulate` without `pools`."""
    traffic = Traffic.of(
        workload, predictions, prediction_delay_s=prediction_delay_s, quantile=admission_quantile(fleet)
    )
    make = engine_factory(policy, traffic, decision_s=decision_s, accelerate=accelerate)
    routed = FleetRouter(router, fleet, workload, explain=explain)
    used = uses_predictions(policy, router, fleet)
    known: dict[str, Any] = {"predictor": predictions.predictor if used else None, "accelerated": accelerate}
    if isinstance(routed.router, RoundRobin) and not events:
        if routing_s:
            traffic.requests["arrival"] = decision_times(workload.arrival_s, routing_s)
        chosen, engines = _serve_in_turn(routed.router, fleet, make, traffic, report)
        return Outcome.of(workload, policy.name, traffic.requests, chosen, engines, **known)
    run = FleetRun(routed, fleet, make, traffic, events=events, routing_s=routing_s)
    engines = run.serve(enumerate(workload.arrival_s.tolist()), report)
    if routed.costs is not None:
        known["trace"] = RoutingTrace.of(routed.costs, len(workload))
    known["resubmissions"] = run.resubmissions
    return Outcome.of(workload, policy.name, traffic.requests, run.chosen, engines, **known)


def _serve_in_turn(
    router: RoundRobin, fleet: Fleet, make_engine: MakeEngine, traffic: Traffic, report: Progress
) -> tuple[NDArray[np.int64], list[EngineOutcome]]:
    """Assign all requests, then simulate one engine after the other: no choice depends on what engines do."""
    n = len(traffic.requests)
    chosen = np.array(router.assign(n), np.int64)
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(len(fleet)), side="right")
    outcomes, settled = [], 0
    for number, spec in enumerate(fleet.engines):
        engine = make_engine(spec)
        engine.submit(order[ends[number - 1] if number else 0 : ends[number]])
        while not engine.advance(settle=_REPORT_EVERY):
            report((settled + engine.settled) / n)
        settled += engine.settled
        report(settled / n)
        outcomes.append(engine.outcome())
    return chosen, outcomes


def uses_predictions(policy: Policy, router: object, fleet: Fleet) -> bool:
    """Whether policy, router or admission reads predictions."""
    if policy.uses_predictions or any(spec.admission != "prompt" for spec in fleet.engines):
        return True
    return bool(getattr(make_router(router) if isinstance(router, str) else router, "uses_predictions", True))


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
    quantiles = {spec.chosen_quantile for spec in fleet.engines if spec.admission != "prompt"}
    if len(quantiles) > 1:
        raise InputError(
            f"engines with different admission quantiles: {sorted(quantiles)}",
            field="admission_quantile",
            hint="give all engines of a fleet the same",
        )
    return quantiles.pop() if quantiles else None


_TIMES = ("started", "first_token", "finish")  # fields of a request that are unknown again after its engine failed
_PROGRESS = ("generated", "initial_cached")  # and those that are 0 again


def decision_times(arrival: NDArray[np.float64], routing_s: float) -> NDArray[np.float64]:
    """Return when a router that takes `routing_s` per request has decided each, one after the other."""
    ends = arrival.copy()
    for row in range(len(ends)):
        ends[row] = max(ends[row], ends[row - 1] if row else 0.0) + routing_s
    return ends


class FleetRun:
    """One run of a fleet behind a router.

    The router is a single server: it decides for one request after the other, which takes `routing_s` each, by what it
    knows at the start of the decision. The request reaches its engine at the end of it.
    """

    def __init__(
        self,
        router: FleetRouter,
        fleet: Fleet,
        make_engine: MakeEngine,
        traffic: Traffic,
        *,
        events: Sequence[FleetEvent] = (),
        routing_s: float = 0.0,
    ) -> None:
        self._router, self._fleet, self._make_engine, self._traffic = router, fleet, make_engine, traffic
        self._routing_s = routing_s
        self._events = deque(events)
        absent = initially_absent(events)
        self._engines = [None if number in absent else make_engine(spec) for number, spec in enumerate(fleet.engines)]
        for number in absent:
            router.down(number)
        self._draining: set[int] = set()
        self._past: list[list[EngineOutcome]] = [[] for _ in fleet.engines]
        self._resubmitted: deque[tuple[int, float]] = deque()  # requests, and when their engine failed
        self._router_free_at = 0.0
        n = len(traffic.requests)
        self.chosen = np.full(n, -1, np.int64)
        self.resubmissions = np.zeros(n, np.int64)

    def serve(self, arrivals: Iterable[tuple[int, float]], report: Progress) -> list[EngineOutcome]:
        """Serve requests, given as rows and arrivals in order of time, and report the share that is settled."""
        arriving, routed = deque(arrivals), 0
        while arriving or self._resubmitted or self._events:
            queues = [queue for queue in (self._resubmitted, arriving) if queue]
            first = min(queues, key=lambda queue: queue[0][1], default=None)
            if first is None or (self._events and self._events[0].at_s <= first[0][1]):
                self._apply_event()
            else:
                self._route(*first.popleft())
            routed += 1
            if routed % _REPORT_EVERY == 0:
                report(self._settled)
        for engine in self._engines:
            if engine is not None:
                engine.advance()
                report(self._settled)
        for number, engine in enumerate(self._engines):
            if engine is not None:
                self._past[number].append(engine.outcome())
        return [
            reduce(EngineOutcome.then, past) if past else self._make_engine(spec).outcome()
            for spec, past in zip(self._fleet.engines, self._past, strict=True)
        ]

    @property
    def _settled(self) -> float:
        """Share of requests that are finished or refused, without those of engines that failed."""
        return sum(engine.settled for engine in self._engines if engine is not None) / len(self.chosen)

    def _route(self, row: int, arrival: float) -> None:
        """Route one request as soon as the router is free and an engine accepts requests."""
        now = max(arrival, self._router_free_at)
        while self._events and (self._events[0].at_s <= now or not self._accepting()):
            now = max(now, self._events[0].at_s)
            self._apply_event()
        for number, engine in enumerate(self._engines):
            if engine is not None and not engine.idle:
                self._router.report(number, engine, self._traffic, now)
        number = self._router.choose(self._traffic.job(row), now, self._candidates(row))
        chosen = self._engines[number]
        if chosen is None:
            raise InputError(f"chose engine {number}, which is not up", source=self._router.router.name)
        chosen.advance(now)
        self._router_free_at = now + self._routing_s
        self.chosen[row] = number
        self._traffic.requests["arrival"][row] = self._reaches_at(row, number, chosen)
        chosen.submit(np.array([row]))

    def _candidates(self, row: int) -> list[int] | None:
        """Engines among which the router chooses; None: all that are up."""
        return self._accepting() if self._draining else None

    def _reaches_at(self, row: int, number: int, engine: SimulatedEngine) -> float:
        """When a request reaches the engine that has just been chosen."""
        return self._router_free_at

    def _accepting(self) -> list[int]:
        return [n for n, engine in enumerate(self._engines) if engine is not None and n not in self._draining]

    def _apply_event(self) -> None:
        event = self._events.popleft()
        number, engine = event.engine, self._engines[event.engine]
        if event.kind == "drain":
            self._draining.add(number)
            return
        self._draining.discard(number)
        if event.kind == "up" and engine is None:
            self._engines[number] = self._make_engine(self._fleet.engines[number])
            self._router.up(number)
        elif event.kind == "down" and engine is not None:
            self._router.report(number, engine, self._traffic, event.at_s)
            self._resubmit_unfinished(engine, event.at_s)
            self._past[number].append(engine.outcome())
            self._engines[number] = None
            self._router.down(number)

    def _resubmit_unfinished(self, engine: SimulatedEngine, now: float) -> None:
        """Reset the unfinished requests of a failed engine and queue them for routing."""
        requests = self._traffic.requests
        rows = np.sort(engine.unfinished(now))
        for name in _TIMES:
            requests[name][rows] = np.nan
        for name in _PROGRESS:
            requests[name][rows] = 0
        self.resubmissions[rows] += 1
        self._resubmitted.extend((row, now) for row in rows.tolist())
