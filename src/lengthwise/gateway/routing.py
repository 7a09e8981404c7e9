"""A gateway's router: it receives the events of its engines, chooses an engine for each request, and is measured."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from lengthwise.client.scrape import EngineGauges, EngineMemory
from lengthwise.lengths import LogT
from lengthwise.policies import Job
from lengthwise.prefixes import BLOCK_TOKENS
from lengthwise.routers import Admitted, EngineInfo, Event, Finished, Router, Scraped, make_router
from lengthwise.routers.compilation import announce_router

_log = logging.getLogger(__name__)
_DEFAULT_KV_TOKENS: Final = EngineInfo(0).kv_tokens
_MAX_FINISHED: Final = 256  # that wait for the router's next decision

Result = TypeVar("Result")


class RoutedEngine(Protocol):
    """What a router's host has to know about an engine: the gateway's engines, and the replicas of Ray Serve."""

    number: int
    slots: int

    @property
    def memory(self) -> EngineMemory | None:
        """Its KV memory, once it reports it."""

    @property
    def name(self) -> str:
        """Its name in metrics."""

    @property
    def in_flight(self) -> int:
        """Requests that run there."""


EngineT = TypeVar("EngineT", bound=RoutedEngine)


class RouterAdapter:
    """Connects a router to the engines of its host and counts its decisions.

    Engines that are down are unknown to the router. Without a router the first free engine is taken: with one engine
    there is no choice. A call of the router that raises is counted and logged (the first with its traceback); a choice
    is then the free engine with the fewest requests.

    The router receives finished requests before its next decision or other event, not one by one: those that end
    together take less CPU time together, because code and data are in the CPU's caches then.
    """

    def __init__(self, router: Router | None) -> None:
        self.router = router
        self.decisions: Counter[str] = Counter()
        """Decisions by engine name."""
        self.costs: defaultdict[str, float] = defaultdict(float)
        """Sums of the cost terms of the chosen engines, in the router's unit."""
        self.seconds = 0.0
        """Time spent in decisions."""
        self.failures = 0
        """Calls of the router that raised."""
        self.terms: dict[str, Mapping[str, float]] = {}
        """The cost terms of each running job's engine."""
        self._finished: list[Finished] = []

    @property
    def name(self) -> str | None:
        """The router's name."""
        return None if self.router is None else self.router.name

    @property
    def uses_predictions(self) -> bool:
        """Whether the router uses predictions."""
        return self.router is not None and self.router.uses_predictions

    def use(self, router: Router, up: Sequence[RoutedEngine]) -> None:
        """Use another router; `up` are the engines that are up."""
        self.router = router
        self._finished.clear()
        for engine in up:
            self.up(engine)

    def up(self, engine: RoutedEngine) -> None:
        """Describe an engine that is up to the router; again when its KV memory becomes known."""
        kv_tokens = _DEFAULT_KV_TOKENS if engine.memory is None else engine.memory.kv_tokens
        info = EngineInfo(engine.number, kv_tokens=kv_tokens, block_tokens=BLOCK_TOKENS, max_num_seqs=engine.slots)
        if self.router is not None:
            self._call(self.router.engine_up, info)

    def down(self, engine: RoutedEngine) -> None:
        """Report an engine as down; its cache is lost."""
        if self.router is not None:
            self._call(self.router.engine_down, engine.number)

    def forget(self, engine: RoutedEngine) -> None:
        """Remove an engine that has left, and its counts."""
        self.down(engine)
        del self.decisions[engine.name]

    def choose(self, job: Job, free: Sequence[EngineT], now: float) -> EngineT:
        """Return one of `free`, which is not empty and holds only engines that are up."""
        if self.router is None:
            self.decisions[free[0].name] += 1
            return free[0]
        self.settle()
        began = time.perf_counter()
        numbers = {engine.number: engine for engine in free}
        decision = self._call(self.router.choose, job, now, numbers.keys())
        self.seconds += time.perf_counter() - began
        if decision is None or decision.engine not in numbers:
            engine = min(free, key=lambda engine: engine.in_flight)
            self.decisions[engine.name] += 1
            return engine
        engine = numbers[decision.engine]
        self.decisions[engine.name] += 1
        for term, cost in decision.terms.items():  # Counter.update takes several times as long
            self.costs[term] += cost
        self.terms[job.id] = decision.terms
        if _log.isEnabledFor(logging.DEBUG):
            terms = " ".join(f"{name}={value:.6g}" for name, value in decision.terms.items())
            _log.debug("job %s to %s of %d free: %s", job.id, engine.name, len(free), terms)
        return engine

    def on_first_byte(self, job: Job, engine: RoutedEngine, now: float) -> None:
        """Report the first byte of an answer."""
        self._observe(Admitted(job.id, engine.number, now))

    def on_finished(self, job: Job, engine: RoutedEngine, now: float, generated: int, ttft_s: float | None) -> None:
        """Report that a request no longer runs on an engine, for whatever reason."""
        self.terms.pop(job.id, None)
        self._finished.append(Finished(job.id, engine.number, now, generated, ttft_s))
        if len(self._finished) >= _MAX_FINISHED:
            self.settle()

    def on_metrics(self, engine: RoutedEngine, gauges: EngineGauges, now: float) -> None:
        """Report the load that an engine reports about itself."""
        self._observe(Scraped(engine.number, now, gauges.running, gauges.waiting, gauges.kv_use))

    def settle(self) -> None:
        """Pass the requests that have finished to the router."""
        finished, self._finished = self._finished, []
        for event in finished:
            self._observe(event)

    def _observe(self, event: Event) -> None:
        if self.router is not None:
            self._call(self.router.observe, event)

    def _call(self, act: Callable[..., Result], *args: object) -> Result | None:
        """Call a method of the router, after those that finished before; None if it raises."""
        if self._finished:
            self.settle()
        try:
            return act(*args)
        except Exception as error:  # routers come from other packages too: no request may be lost by them
            self.failures += 1
            traceback = error if self.failures == 1 else None
            _log.error("router %s failed: %r", type(self.router).__qualname__, error, exc_info=traceback)
            return None


def warm_router(name: str) -> Router:
    """Return a new router, compiled: compilation takes seconds once per machine, and no request may wait for it."""
    trial = make_router(name)
    announce_router(name)
    trial.engine_up(EngineInfo(0))
    trial.engine_up(EngineInfo(1, kv_tokens=2 * BLOCK_TOKENS))
    for number in range(4):
        prediction = LogT(5.0, 1.0 + number, 1000)
        blocks = [1, 2, 3, 4 + number]
        trial.choose(Job(str(number), 0.0, 4 * BLOCK_TOKENS, prediction, blocks=blocks), 0.0)
        for engine in (0, 1):
            trial.observe(Admitted(str(number), engine, 0.0))
            trial.observe(Scraped(engine, 0.0, 1, 0, 0.5))
            trial.observe(Finished(str(number), engine, 1.0, 2))
    trial.engine_down(1)
    return make_router(name)
