"""A router outside the package, written on the Router protocol only."""

from __future__ import annotations

from collections.abc import Collection

from lengthwise.policies import Job
from lengthwise.routers import Decision, EngineId, EngineInfo, Event, NoEngineError


class Alternate:
    """Engines in order of their names, each `repeat` times in a row."""

    uses_predictions = False

    def __init__(self, repeat: float = 1) -> None:
        self.name = "tests.conformance.outside_router:Alternate" + (f":repeat={repeat:g}" if repeat != 1 else "")
        self._repeat, self._choices = int(repeat), 0
        self._engines: set[EngineId] = set()

    def engine_up(self, engine: EngineInfo) -> None:
        self._engines.add(engine.id)

    def engine_down(self, engine: EngineId) -> None:
        self._engines.discard(engine)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        allowed = sorted(self._engines if among is None else self._engines & set(among), key=str)
        if not allowed:
            raise NoEngineError("no engine is up")
        self._choices += 1
        return Decision(allowed[(self._choices - 1) // self._repeat % len(allowed)])

    def observe(self, event: Event) -> None:
        pass
