"""One run of a fleet in virtual time: requests arrive, are routed, and are served to the last one."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import Policy
from lengthwise.routers import Router, make_router
from lengthwise.routers.base import RoundRobin
from lengthwise.simulator.acceleration import engine_group
from lengthwise.simulator.engine import EngineEvent, FleetEngines, SimulatedEngine
from lengthwise.simulator.fleet import Fleet, FleetEvent, initially_absent
from lengthwise.simulator.outcome import EngineOutcome, Outcome, RoutingTrace
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.simulator.routing import FleetRouter
from lengthwise.simulator.traffic import Records, Traffic
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
    group = engine_group(fleet, policy, traffic, decision_s=decision_s, accelerate=accelerate)
    routed = FleetRouter(router, fleet, workload, explain=explain, accelerate=accelerate)
    used = uses_predictions(policy, router, fleet)
    known: dict[str, Any] = {"predictor": predictions.predictor if used else None, "accelerated": accelerate}
    if isinstance(routed.router, RoundRobin) and not events and not workload.has_think_times:
        if routing_s:
            traffic.requests["arrival"] = decision_times(workload.arrival_s, routing_s)
        chosen, engines = _serve_in_turn(routed.router, group, traffic, report)
        return Outcome.of(workload, policy.name, traffic.requests, chosen, engines, **known)
    run = FleetRun(routed, group, traffic, events=events, routing_s=routing_s)
    engines = run.serve(enumerate(workload.arrival_s.tolist()), report)
    if routed.costs is not None:
        known["trace"] = RoutingTrace.of(routed.costs, len(workload))
    known["resubmissions"] = run.resubmissions
    return Outcome.of(
        workload, policy.name, traffic.requests, run.chosen, engines, arrival_s=traffic.arrival_s, **known
    )


def _serve_in_turn(
    router: RoundRobin, group: FleetEngines[Any], traffic: Traffic, report: Progress
) -> tuple[NDArray[np.int64], list[EngineOutcome]]:
    """Assign all requests, then simulate one engine after the other: no choice depends on what engines do."""
    n = len(traffic.requests)
    chosen = np.array(router.assign(n), np.int64)
    order = np.argsort(chosen, kind="stable")
    ends = np.searchsorted(chosen[order], np.arange(len(group.engines)), side="right")
    outcomes, settled = [], 0
    for number in range(len(group.engines)):
        engine = group.start(number)
        engine.submit(order[ends[number - 1] if number else 0 : ends[number]])
        while not engine.advance(settle=_REPORT_EVERY):
            report((settled + engine.settled) / n)
        settled += engine.settled
        report(settled / n)
        outcomes.append(engine.outcome())
        group.stop(number)
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


_engine_of = itemgetter(0)  # of an event, which compiled engines give as a plain tuple


class FleetRun:
    """One run of a fleet behind a router.

    The router is a single server: it decides for one request after the other, which takes `routing_s` each, by what it
    knows at the start of the decision. The request reaches its engine at the end of it.

    Of a workload with think times, the next turn of a session is released when the turn before has finished, so engines
    never run past a time at which a turn may be released. A refused turn ends its session: later ones are refused too.
    """

    def __init__(
        self,
        router: FleetRouter,
        group: FleetEngines[Any],
        traffic: Traffic,
        *,
        events: Sequence[FleetEvent] = (),
        routing_s: float = 0.0,
    ) -> None:
        self._router, self._group, self._traffic = router, group, traffic
        self._routing_s = routing_s
        self._events = deque(events)
        absent = initially_absent(events)
        for number in range(len(group.engines)):
            if number in absent:
                router.down(number)
            else:
                group.start(number)
        self._draining: set[int] = set()
        self._past: list[list[EngineOutcome]] = [[] for _ in group.engines]
        self._resubmitted: deque[tuple[int, float]] = deque()  # requests, and when their engine failed
        self._router_free_at = 0.0
        self._arrival_s = traffic.requests["arrival"]
        n = len(traffic.requests)
        self.chosen = np.full(n, -1, np.int64)
        self.resubmissions = np.zeros(n, np.int64)
        self._arriving: list[tuple[float, int]] = []  # a heap of arrivals and requests
        self._next_turn = traffic.workload.next_turn.tolist() if traffic.workload.has_think_times else None
        self._awaited = 0  # requests that are served while a next turn waits for their answers
        self._unreported: list[EngineEvent] = []

    def serve(self, arrivals: Iterable[tuple[int, float]], report: Progress) -> list[EngineOutcome]:
        """Serve requests, given as rows and arrivals in order of time, and report the share that is settled."""
        waits = set() if self._next_turn is None else set(self._next_turn)
        arriving, again, routed = self._arriving, self._resubmitted, 0
        arriving += [(at, row) for row, at in arrivals if row not in waits]  # sorted, hence a heap
        self._release_turns()
        while arriving or again or self._events:
            resend = bool(again) and (not arriving or again[0][1] <= arriving[0][0])
            at = again[0][1] if resend else arriving[0][0] if arriving else math.inf
            if self._events and self._events[0].at_s <= at:
                self._apply_event()
            elif resend:
                self.route(*again.popleft())
            else:
                at, row = heapq.heappop(arriving)
                self.route(row, at)
            self._release_turns()
            routed += 1
            if routed % _REPORT_EVERY == 0:
                report(self._settled / len(self.chosen))
        settled = self._settled
        for engine in self._running:
            before = engine.settled
            engine.advance()
            settled += engine.settled - before
            report(settled / len(self.chosen))
        for past, last in zip(self._past, self._group.engines, strict=True):
            if last is not None:
                past.append(last.outcome())
        return [
            reduce(EngineOutcome.then, past) if past else self._group.start(number).outcome()
            for number, past in enumerate(self._past)
        ]

    @property
    def _running(self) -> list[SimulatedEngine]:
        return [engine for engine in self._group.engines if engine is not None]

    @property
    def _settled(self) -> int:
        """Number of requests that are finished or refused, without those of engines that failed."""
        return sum(engine.settled for engine in self._running)

    def route(self, row: int, arrival: float) -> None:
        """Route one request as soon as the router is free and an engine accepts requests."""
        now = max(arrival, self._router_free_at)
        while self._events and (self._events[0].at_s <= now or not self._accepting()):
            now = max(now, self._events[0].at_s)
            self._apply_event()
        self._happened(now)
        self._report()
        number = self._router.choose(self._traffic.job(row), now, self._candidates(row))
        chosen = self._group.engines[number]
        if chosen is None:
            raise InputError(f"chose engine {number}, which is not up", source=self._router.router.name)
        self._router_free_at = now + self._routing_s
        self.chosen[row] = number
        self._arrival_s[row] = reached = self._reaches_at(row, number, chosen, now)
        self._group.submit(number, row, reached)
        if self._next_turn is not None and self._next_turn[row] >= 0:
            request = self._traffic.requests[row]
            if self._group.fleet.engines[number].can_hold(request["prompt"], request["output"]):
                self._awaited += 1

    def _happened(self, until: float, only: int | None = None) -> int:
        """Note what happened on engines up to a time, release the turns that waited for it; return how much it was."""
        events = self._group.happened(until, only)
        self._unreported += events
        if self._next_turn is not None:
            for event in events:
                if event[2] and (turn := self._next_turn[event[1]]) >= 0:  # finished; the row
                    self._awaited -= 1
                    at = self._traffic.release(turn, event[3])
                    self._group.released(turn)
                    heapq.heappush(self._arriving, (at, turn))
        return len(events)

    def _report(self, only: int | None = None) -> None:
        """Tell the router what happened, in the order of the fleet; `only`: on one engine."""
        known = sorted(self._unreported, key=_engine_of)
        self._router.report(event for event in known if only is None or event[0] == only)
        self._unreported = [] if only is None else [event for event in known if event[0] != only]

    def _release_turns(self) -> None:
        """Run the engines until the next arrival, resubmission or event is known: no turn is released before it."""
        while self._awaited:
            due = [self._arriving[0][0]] if self._arriving else []
            due += [self._resubmitted[0][1]] if self._resubmitted else []
            due += [self._events[0].at_s] if self._events else []
            horizon = float(self._group.next_event_s.min())
            if not horizon < min(due, default=math.inf):
                return
            # A finish at the horizon comes before the step that begins there, which a released turn may still join.
            if not self._happened(horizon) and float(self._group.next_event_s.min()) == horizon:
                self._happened(math.nextafter(horizon, math.inf))

    def _candidates(self, row: int) -> list[int] | None:
        """Engines among which the router chooses; None: all that are up."""
        return self._accepting() if self._draining else None

    def _reaches_at(self, row: int, number: int, engine: SimulatedEngine, now: float) -> float:
        """When a request reaches the engine that was chosen `now`."""
        return self._router_free_at

    def _accepting(self) -> list[int]:
        return [n for n, engine in enumerate(self._group.engines) if engine is not None and n not in self._draining]

    @property
    def requests(self) -> Records:
        """The records that the engines write."""
        return self._traffic.requests

    def run_until(self, now: float) -> None:
        """Run the engines up to a time; the router is told before its next choice."""
        self._happened(now)

    def unfinished(self, number: int, by: float) -> int:
        """Return how many requests sent to a running engine have not finished by a time."""
        engine = self._group.engines[number]
        return 0 if engine is None else len(engine.unfinished(by))

    def _apply_event(self) -> None:
        self.apply(self._events.popleft())

    def apply(self, event: FleetEvent) -> None:
        """Let an engine fail, join or drain."""
        number, engine = event.engine, self._group.engines[event.engine]
        if event.kind == "drain":
            self._draining.add(number)
            return
        self._draining.discard(number)
        if event.kind == "up" and engine is None:
            self._group.start(number)
            self._router.up(number)
        elif event.kind == "down" and engine is not None:
            self._happened(event.at_s, only=number)
            self._report(only=number)
            self._resubmit_unfinished(engine, event.at_s)
            self._past[number].append(engine.outcome())
            self._group.stop(number)
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
