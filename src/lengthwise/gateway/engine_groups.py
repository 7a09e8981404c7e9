"""The groups of engines that serve the same models: each has one queue, and one order for the engines' own queues."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.policies import Job, PolicyQueue, TokenRate

RECENT: Final = 256
"""Requests among which a request is ranked."""
SPREAD_S: Final = 10.0
"""Seconds between the first and the last rank: a request is overtaken by none that is sent later than that after it."""
_PER_S: Final = 10  # steps of the number
_CLASS: Final = 1 << 32  # of a request's own priority, which comes before the policy's order
_MAX_MODELS: Final = 1024  # whose groups are remembered: where engines list no models, clients choose the names


class EnginePriority:
    """Maps a policy's order to the one number that stock vLLM and SGLang order waiting requests by.

    It does not change while a request waits in an engine.

    number = 10 * (seconds since the first + 10 s * rank)       lower first
    rank   = share of the last 256 requests sent that are before it in the policy's order, 0 to 1

    The policy orders by (round, key) when a request is sent. A rank needs no unit, so any policy's key will do; under
    an order of arrival every request is the last, and the numbers rise with time. Because they rise, no request waits
    forever: one of the last rank is before all that are sent 10 s later. A request's own `priority` comes first.
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque()
        self._sorted: list[tuple[int, float]] = []
        self._first_s: float | None = None

    def number(self, order: tuple[int, float], priority: int, now: float) -> int:
        """Return the number of a request that is sent now, lower first."""
        if self._first_s is None:
            self._first_s = now
        rank = bisect_right(self._sorted, order) / len(self._sorted) if self._sorted else 1.0
        self._remember(order)
        return priority * _CLASS + round(_PER_S * (now - self._first_s + SPREAD_S * rank))

    def _remember(self, order: tuple[int, float]) -> None:
        self._recent.append(order)
        insort(self._sorted, order)
        if len(self._recent) > RECENT:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]


@dataclass(eq=False, slots=True)
class EngineGroup:
    """The engines that serve a model, and the queue of the requests for it; models of the same engines share it."""

    engines: list[GatewayEngine]
    queue: PolicyQueue
    priority: EnginePriority = field(default_factory=EnginePriority)
    none_up_since: float | None = None
    _rate: TokenRate = field(default_factory=TokenRate)
    _tokens: int = 0  # of finished answers: engines do not report progress

    def with_slot_for_head(self, now: float) -> list[GatewayEngine]:
        """Return the engines with a slot for the next request of the queue."""
        found = self.with_slot(now)
        if found or not any(engine.identity.preempts_classes for engine in self.engines):
            return found
        head = self.queue.peek(now)
        return [] if head is None else self.with_slot_for(head, now)

    def with_slot_for(self, job: Job, now: float) -> list[GatewayEngine]:
        """Return the engines with a free slot; if there is none, those that preempt a less urgent request for a job."""
        return self.with_slot(now) or [
            engine for engine in self.engines if engine.has_slot_for(job) and engine.breaker.passes(now)
        ]

    def with_slot(self, now: float, avoid: Collection[GatewayEngine] = ()) -> list[GatewayEngine]:
        """Return the engines with a free slot.

        Those in `avoid`, paused ones and those with an open breaker count only while no other is up.
        """
        if not avoid:  # the usual case in one pass
            usable = [engine for engine in self.engines if engine.free and engine.breaker.passes(now)]
            if usable:
                return usable
        up = [engine for engine in self.engines if engine.up]
        if avoid:
            up = [engine for engine in up if engine not in avoid] or up
        ready = [engine for engine in up if engine.breaker.passes(now)]
        return [engine for engine in ready or up if engine.free]

    def head_order(self, now: float) -> tuple[int, float]:
        """Return the order of its next request among the heads of queues: priority, then arrival."""
        job = self.queue.peek(now)
        return (0, 0.0) if job is None else (job.priority, job.arrival)

    def count_tokens(self, tokens: int, now: float) -> None:
        """Count the tokens of a finished answer in the speed that policies see."""
        self._tokens += tokens
        self._rate.observe(now, self._tokens, waiting=bool(self.queue))
        self.queue.tokens_per_s = self._rate.per_s

    def update_load(self, now: float) -> None:
        """Set the running requests and slots that policies see."""
        up = [engine for engine in self.engines if engine.up]
        self.queue.running = sum(engine.in_flight for engine in self.engines)
        self.queue.slots = max(1, sum(engine.slots for engine in up))
        if up:
            self.none_up_since = None
        elif self.none_up_since is None:
            self.none_up_since = now


class EngineGroups:
    """The engines of a gateway, and their groups, each made when a request first asks for one of its models."""

    def __init__(self, make_queue: Callable[[], PolicyQueue], clock: Callable[[], float]) -> None:
        self.engines: list[GatewayEngine] = []
        """Those that serve and those that leave."""
        self._make_queue = make_queue
        self._clock = clock
        self._groups: dict[tuple[int, ...], EngineGroup] = {}
        self._by_model: dict[str | None, EngineGroup] = {}

    def __iter__(self) -> Iterator[EngineGroup]:
        return iter(self._groups.values())

    def of(self, model: str | None, only: GatewayEngine | None = None) -> EngineGroup:
        """Return the group of a model, or of one engine; ApiError 404 if no engine serves the model."""
        if only is None and (known := self._by_model.get(model)) is not None:
            return known
        numbers = self._numbers(model) if only is None or only.leaving else (only.number,)
        if not numbers and all(engine.leaving for engine in self.engines):
            raise ApiError(503, "no engine is up", code="no_engine")
        if not numbers:
            message = f"the model '{(model or '')[:100]}' is not served here"
            raise ApiError(404, message, param="model", code="model_not_found")
        if numbers not in self._groups:
            engines = [engine for engine in self.engines if engine.number in numbers]
            self._groups[numbers] = EngineGroup(engines, self._make_queue())
            self.update_load()
        group = self._groups[numbers]
        if only is None:
            if len(self._by_model) >= _MAX_MODELS:
                self._by_model.clear()
            self._by_model[model] = group
        return group

    def known(self, model: str | None) -> EngineGroup | None:
        """Return the group of a model, if a request has asked for it since the groups were made."""
        return self._by_model.get(model) or self._groups.get(self._numbers(model))

    def clear(self) -> None:
        """Make the groups anew: the engines, or the models that they list, have changed."""
        self._groups.clear()
        self._by_model.clear()

    def count_running(self, engine: GatewayEngine, change: int) -> None:
        """Change the running requests that policies see."""
        for group in self._groups.values():
            if engine in group.engines:
                group.queue.running += change

    def update_load(self) -> None:
        """Set the running requests and slots that policies see, after an engine has changed."""
        now = self._clock()
        for group in self._groups.values():
            group.update_load(now)

    def _numbers(self, model: str | None) -> tuple[int, ...]:
        return tuple(engine.number for engine in self.engines if not engine.leaving and engine.serves(model))
