"""Requests routed one by one, with every engine advanced to that moment; engines may fail, join and drain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.simulator.fleet_events import FleetEvent, initially_absent
from lengthwise.simulator.outcome import EngineOutcome
from lengthwise.simulator.routing import FleetRouter

if TYPE_CHECKING:
    from lengthwise.simulator.engine import SimulatedEngine
    from lengthwise.simulator.traffic import Traffic

_TIMES = ("started", "first_token", "finish")  # fields of a request that are unknown again after its engine failed
_PROGRESS = (
    "generated",
    "max_computed",
    "cached",
    "initial_cached",
    "granted_tokens",
    "retained",
    "round",
)  # and those that are 0 again


def decision_times(arrival: NDArray[np.float64], routing_s: float) -> NDArray[np.float64]:
    """Return when a router that takes `routing_s` per request has decided each, one after the other."""
    ends = arrival.copy()
    for row in range(len(ends)):
        ends[row] = max(ends[row], ends[row - 1] if row else 0.0) + routing_s
    return ends


class ClusterRun:
    """One run. `make_engine` returns an empty engine for an index of the fleet.

    The router is a single server: it decides for one request after the other, which takes `routing_s` each, by what it
    knows at the start of the decision. The request reaches its engine at the end of it.
    """

    def __init__(
        self,
        router: FleetRouter,
        size: int,
        make_engine: Callable[[int], SimulatedEngine],
        traffic: Traffic,
        *,
        events: Sequence[FleetEvent] = (),
        routing_s: float = 0.0,
    ) -> None:
        self._router, self._make_engine, self._traffic, self._routing_s = router, make_engine, traffic, routing_s
        self._events = deque(events)
        absent = initially_absent(events)
        self._engines: list[SimulatedEngine | None] = [
            None if number in absent else make_engine(number) for number in range(size)
        ]
        for number in absent:
            router.down(number)
        self._draining: set[int] = set()
        self._past: list[list[EngineOutcome]] = [[] for _ in range(size)]
        self._resubmitted: deque[tuple[float, int]] = deque()  # when their engine failed, and the request
        self._router_free_at = 0.0
        n = len(traffic.requests)
        self.chosen = np.full(n, -1, np.int64)
        self.resubmissions = np.zeros(n, np.int64)

    @property
    def settled(self) -> int:
        """Requests that are finished or refused, without those of engines that failed."""
        return sum(engine.settled for engine in self._engines if engine is not None)

    def serve(self, report: Callable[[int], None], every: int | None) -> list[EngineOutcome]:
        """Serve all requests; call `report` with the number settled after each `every` decisions."""
        arrivals: list[float] = self._traffic.requests["arrival"].tolist()
        row = routed = 0
        while True:
            arrival = arrivals[row] if row < len(arrivals) else np.inf
            if not self._resubmitted and arrival == np.inf and not self._events:
                break
            resubmitted = self._resubmitted[0][0] if self._resubmitted else np.inf
            if self._events and self._events[0].at_s <= min(arrival, resubmitted):
                self._apply_event()
            elif self._resubmitted and resubmitted <= arrival:
                self._route(*self._resubmitted.popleft())
            else:
                self._route(arrival, row)
                row += 1
            routed += 1
            if every and routed % every == 0:
                report(self.settled)
        for engine in self._engines:
            if engine is not None:
                engine.advance()
                report(self.settled)
        for number, engine in enumerate(self._engines):
            if engine is not None:
                self._past[number].append(engine.outcome())
        return [
            reduce(EngineOutcome.then, past) if past else self._make_engine(number).outcome()
            for number, past in enumerate(self._past)
        ]

    def _route(self, arrival: float, row: int) -> None:
        """Route one request as soon as the router is free and an engine accepts requests."""
        now = max(arrival, self._router_free_at)
        while self._events and (self._events[0].at_s <= now or not self._accepting()):
            now = max(now, self._events[0].at_s)
            self._apply_event()
        for number, engine in enumerate(self._engines):
            if engine is not None and not engine.idle:
                self._router.report(number, engine, self._traffic, now)
        number = self._router.choose(self._traffic.job(row), now, self._accepting() if self._draining else None)
        self._router_free_at = now + self._routing_s
        self._traffic.requests["arrival"][row] = self._router_free_at
        self.chosen[row] = number
        chosen = self._engines[number]
        if chosen is None:
            raise InputError(f"chose engine {number}, which is not up", source=self._router.router.name)
        chosen.advance(now)
        chosen.submit(np.array([row]))

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
            self._engines[number] = self._make_engine(number)
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
        requests["heap_index"][rows] = -1
        self.resubmissions[rows] += 1
        self._resubmitted.extend((now, row) for row in rows.tolist())
