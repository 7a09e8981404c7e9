"""The gateway's queue: requests wait in the policy's order until an engine that the router may choose is free."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lengthwise.engines.client import EngineClient
from lengthwise.gateway.errors import ApiError
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job, Policy, PolicyQueue, TokenRate
from lengthwise.policies.admission import PeakAdmission
from lengthwise.predictors.service import PredictionService

if TYPE_CHECKING:
    from lengthwise.engines.engine_metrics import EngineMemory
    from lengthwise.gateway.routing import RouterAdapter

_log = logging.getLogger(__name__)
_RETRY_AFTER_S: Final = 1


@dataclass(eq=False, slots=True)
class GatewayEngine:
    """An engine as the gateway sees it: whether it is up, its slots, and the jobs that run there."""

    client: EngineClient
    number: int
    slots: int
    up: bool = True
    jobs: dict[str, Job] = field(default_factory=dict)
    memory: EngineMemory | None = None
    """Its KV memory, once it reports it."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.client.url

    @property
    def in_flight(self) -> int:
        """Requests that run there."""
        return len(self.jobs)

    @property
    def free(self) -> bool:
        """Whether it is up and has a free slot."""
        return self.up and self.in_flight < self.slots

    def admits(self, job: Job, quantile: float) -> bool:
        """Whether the predicted peak of KV memory, with `job`, fits; True while its memory is unknown."""
        if self.memory is None:
            return True
        rule = PeakAdmission(self.memory.kv_tokens, self.memory.block_size, quantile)
        return rule.admits(rule.demand(job), [rule.demand(other) for other in self.jobs.values()])


class Dispatcher:
    """One queue for all engines. A freed slot goes to the head of the queue at once.

    Predictions that arrived are applied just before, since only then does the order matter. The router chooses among
    the engines with a free slot. With `admission_quantile`, a slot is free only where the predicted peak of KV memory
    fits.
    """

    def __init__(
        self,
        engines: Sequence[GatewayEngine],
        policy: Policy,
        predictions: PredictionService,
        routes: RouterAdapter,
        *,
        max_waiting: int,
        admission_quantile: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engines = engines
        self.clock = clock
        self.admission_quantile = admission_quantile
        self._max_waiting = max_waiting
        self.routes = routes
        for engine in engines:
            routes.up(engine)
        self._queue = PolicyQueue(policy)
        self._rate, self._tokens = TokenRate(), 0  # of finished answers: engines do not report progress
        self._predictions = predictions
        self._turns: dict[str, tuple[Job, asyncio.Future[GatewayEngine]]] = {}
        self._none_up_since: float | None = None
        self._update_load()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._queue.policy

    @property
    def uses_predictions(self) -> bool:
        """Whether the order, the choice of an engine or admission uses predictions."""
        return self.policy.uses_predictions or self.routes.uses_predictions or self.admission_quantile is not None

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def use(self, policy: Policy) -> None:
        """Change the policy under the waiting requests: the kill switch."""
        _log.warning("policy %s replaces %s, %d waiting", policy.name, self.policy.name, self.waiting)
        self._queue.use(policy, self.clock())

    def refuse_if_full(self) -> None:
        """Raise 429 if the queue is full and no engine has a free slot."""
        if self.waiting >= self._max_waiting and not self._free():
            raise ApiError(
                429,
                f"{self.waiting} requests are waiting; try again later",
                code="queue_full",
                headers={"retry-after": str(_RETRY_AFTER_S)},
            )

    async def place(self, job: Job) -> GatewayEngine:
        """Wait for the job's turn and take a slot of an engine; `release` gives it back.

        If cancelled, the job leaves the queue or gives back its slot.
        """
        self.refuse_if_full()
        turn: asyncio.Future[GatewayEngine] = asyncio.get_running_loop().create_future()
        self._turns[job.id] = job, turn
        self._queue.push(job, self.clock())
        self._dispatch()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(turn.result(), job)
            raise
        finally:
            self._turns.pop(job.id, None)
            self._queue.remove(job.id)

    def on_first_byte(self, engine: GatewayEngine, job: Job) -> None:
        """Report to the router that the answer has started."""
        self.routes.on_first_byte(job, engine, self.clock())

    def release(self, engine: GatewayEngine, job: Job, generated: int = 0, ttft_s: float | None = None) -> None:
        """Give a slot back; `ttft_s` is the time from the slot to the first token."""
        engine.jobs.pop(job.id, None)
        self.routes.on_finished(job, engine, self.clock(), generated, ttft_s)
        self._update_load()
        self._dispatch()

    def finished(self, job: Job, tokens: int) -> None:
        """Report an answer's length (0 if it never started) to the queue, for policies with rounds."""
        job.generated = tokens
        self._tokens += tokens
        self._rate.observe(self.clock(), self._tokens, waiting=bool(self._queue))
        self._queue.tokens_per_s = self._rate.per_s
        self._queue.finished(job)

    def set_up(self, engine: GatewayEngine) -> None:
        """Mark an engine as up."""
        if not engine.up:
            _log.warning("engine %s is up again", engine.url)
            engine.up = True
            self.routes.up(engine)
            self._update_load()
            self._dispatch()

    def set_down(self, engine: GatewayEngine, cause: Exception) -> None:
        """Mark an engine as down: requests that run there may finish, no new one is sent."""
        if engine.up:
            _log.warning("engine %s is down: %s", engine.url, cause)
            engine.up = False
            self.routes.down(engine)
            self._update_load()

    def set_memory(self, engine: GatewayEngine, memory: EngineMemory) -> None:
        """Record the KV memory that an engine reports."""
        if engine.memory != memory:
            engine.memory = memory
            if engine.up:
                self.routes.up(engine)

    def expire(self, after_s: float) -> None:
        """Fail requests with 503 that have waited `after_s` while no engine was up."""
        if self._none_up_since is None:
            return
        now = self.clock()
        for job in list(self._queue):
            if now - max(job.arrival, self._none_up_since) >= after_s:
                self._queue.remove(job.id)
                _, turn = self._turns[job.id]
                if not turn.done():
                    turn.set_exception(ApiError(503, "no engine is up", code="no_engine"))

    def _free(self, job: Job | None = None) -> list[GatewayEngine]:
        """Return the engines with a free slot and, if asked for, KV memory for `job`."""
        free = [engine for engine in self.engines if engine.free]
        if job is None or self.admission_quantile is None:
            return free
        return [engine for engine in free if engine.admits(job, self.admission_quantile)]

    def _apply_prediction(self, job_id: str, prediction: LengthDistribution) -> bool:
        """Update a waiting job and its key; False if it no longer waits."""
        if job_id not in self._queue:
            return False
        job, _ = self._turns[job_id]
        job.update_prediction(prediction)
        self._queue.update(job, self.clock())
        return True

    def _dispatch(self) -> None:
        self._predictions.deliver(self._apply_prediction)
        while self._queue and self._free():
            now = self.clock()
            job = self._queue.peek(now)
            if job is None:
                return
            _, turn = self._turns[job.id]
            free = self._free(job)
            if not free and not turn.done():
                return  # the head waits for KV memory, as in an engine
            self._queue.pop(now)
            if turn.done():  # cancelled just now; its `place` cleans up
                continue
            engine = self.routes.choose(job, free, now)
            engine.jobs[job.id] = job
            job.started = now
            self._update_load()
            turn.set_result(engine)

    def _update_load(self) -> None:
        """Set the running requests and slots that policies see."""
        up = [engine for engine in self.engines if engine.up]
        self._queue.running = sum(engine.in_flight for engine in self.engines)
        self._queue.slots = max(1, sum(engine.slots for engine in up))
        if up:
            self._none_up_since = None
        elif self._none_up_since is None:
            self._none_up_since = self.clock()
