"""Requests routed one by one, with every engine where it is at that moment; engines may fail, join and drain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lengthwise.simulator.fleet_events import Change, joining
from lengthwise.simulator.outcome import EngineOutcome
from lengthwise.simulator.routing import Routed, WatchingRouter, tell

if TYPE_CHECKING:
    from lengthwise.simulator.cluster import Router
    from lengthwise.simulator.engine import SimulatedEngine
    from lengthwise.simulator.traffic import Traffic

_UNDONE = ("started", "first_token", "finish")
_FORGOTTEN = ("generated", "max_computed", "cached", "initial_cached", "granted_tokens", "retained", "round")


def decided_at(arrival: NDArray[np.float64], routing_s: float) -> NDArray[np.float64]:
    """When a router that takes so long for each has decided, one after the other in order of arrival."""
    ends = arrival.copy()
    for row in range(len(ends)):
        ends[row] = max(ends[row], ends[row - 1] if row else 0.0) + routing_s
    return ends


class Turns:
    """One run. `engine` makes the engine of a place in the fleet, with nobody in it.

    The router is one server: it decides for one after the other, which takes `routing_s` each, by what it knew when it
    began, and the request reaches its engine when that is over.
    """

    def __init__(
        self,
        routes: Router,
        places: int,
        engine: Callable[[int], SimulatedEngine],
        traffic: Traffic,
        *,
        changes: Sequence[Change] = (),
        routing_s: float = 0.0,
    ) -> None:
        self._routes, self._make, self._traffic, self._routing_s = routes, engine, traffic, routing_s
        self._watching = routes if isinstance(routes, WatchingRouter) else None
        self._changes = deque(changes)
        absent = joining(changes)
        self._engines: list[SimulatedEngine | None] = [
            None if number in absent else engine(number) for number in range(places)
        ]
        for number in absent:
            self._routed.down(number)
        self._draining: set[int] = set()
        self._past: list[list[EngineOutcome]] = [[] for _ in range(places)]
        self._anew: deque[tuple[float, int]] = deque()  # who lost its engine, and when
        self._free_at = 0.0  # the router
        n = len(traffic.requests)
        self.chosen = np.full(n, -1, np.int64)
        self.resubmissions = np.zeros(n, np.int64)

    @property
    def settled(self) -> int:
        """Requests that are over, by and large: what engines that are gone had settled is not looked up."""
        return sum(one.settled for one in self._engines if one is not None)

    def serve(self, report: Callable[[int], None], every: int | None) -> list[EngineOutcome]:
        """Serve everybody to the last; `report` is told now and then how many are settled."""
        arrivals: list[float] = self._traffic.requests["arrival"].tolist()
        row = routed = 0
        while True:
            came = arrivals[row] if row < len(arrivals) else np.inf
            if not self._anew and came == np.inf and not self._changes:
                break
            if self._changes and self._changes[0].at_s <= min(came, self._anew[0][0] if self._anew else np.inf):
                self._change()
            elif self._anew and self._anew[0][0] <= came:
                self._route(*self._anew.popleft())
            else:
                self._route(came, row)
                row += 1
            routed += 1
            if every and routed % every == 0:
                report(self.settled)
        for one in self._engines:
            if one is not None:
                one.advance()
                report(self.settled)
        for number, one in enumerate(self._engines):
            if one is not None:
                self._past[number].append(one.outcome())
        return [
            reduce(EngineOutcome.then, past) if past else self._make(number).outcome()
            for number, past in enumerate(self._past)
        ]

    @property
    def _routed(self) -> Routed:
        assert isinstance(self._routes, Routed)  # noqa: S101  # `simulate` has seen to it
        return self._routes

    def _route(self, came: float, row: int) -> None:
        """Let the router decide for one, when it is free and there is an engine."""
        now = max(came, self._free_at)
        while self._changes and (self._changes[0].at_s <= now or not self._open()):
            now = max(now, self._changes[0].at_s)
            self._change()
        if self._watching is not None:
            self._tell_all(self._watching, now)
        job = self._traffic.job(row)
        number = self._routed.choose(job, now, self._open()) if self._draining else self._routes.choose(job, now)
        self._free_at = now + self._routing_s
        self._traffic.requests["arrival"][row] = self._free_at
        self.chosen[row] = number
        engine = self._engines[number]
        assert engine is not None  # noqa: S101  # the router knows who is up
        engine.advance(now)
        engine.submit(np.array([row]))

    def _open(self) -> list[int]:
        """Engines that take requests."""
        return [n for n, one in enumerate(self._engines) if one is not None and n not in self._draining]

    def _tell_all(self, routes: WatchingRouter, now: float) -> None:
        for number, one in enumerate(self._engines):
            if one is not None and not one.idle:
                tell(routes, number, one, self._traffic, now)

    def _change(self) -> None:
        change = self._changes.popleft()
        number, engine = change.engine, self._engines[change.engine]
        if change.kind == "drain":
            self._draining.add(number)
            return
        self._draining.discard(number)
        if change.kind == "up" and engine is None:
            self._engines[number] = self._make(number)
            self._routed.up(number)
        elif change.kind == "down" and engine is not None:
            tell(self._routed, number, engine, self._traffic, change.at_s)
            self._lose(engine, change.at_s)
            self._past[number].append(engine.outcome())
            self._engines[number] = None
            self._routed.down(number)

    def _lose(self, engine: SimulatedEngine, now: float) -> None:
        """All who were there and have not finished begin anew, with what they had computed lost."""
        requests = self._traffic.requests
        rows = np.sort(engine.unfinished(now))
        for name in _UNDONE:
            requests[name][rows] = np.nan
        for name in _FORGOTTEN:
            requests[name][rows] = 0
        requests["heap_index"][rows] = -1
        self.resubmissions[rows] += 1
        self._anew.extend((now, row) for row in rows.tolist())
