"""Who runs next, and where: requests held in the policy's order until an engine has a free place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lengthwise.engines.client import EngineClient
from lengthwise.gateway.errors import ApiError
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job, Policy, PolicyQueue
from lengthwise.predictors.service import PredictionService

if TYPE_CHECKING:
    from lengthwise.gateway.routing import RouterAdapter

_log = logging.getLogger(__name__)
_RETRY_AFTER_S: Final = 1
_POLL_S: Final = 0.001


@dataclass(eq=False, slots=True)
class Engine:
    """An engine as the gateway sees it: whether it is up, and how many of its places are taken."""

    client: EngineClient
    number: int
    places: int
    up: bool = True
    in_flight: int = 0

    @property
    def url(self) -> str:
        """Where it is."""
        return self.client.url

    @property
    def free(self) -> bool:
        """Whether it can take one more."""
        return self.up and self.in_flight < self.places


class Dispatcher:
    """The one queue of the gateway. A freed place goes to the first of it, at once.

    Predictions that have come since are taken in just before: only then does the order matter. Whose turn it is goes to the
    engine that the router chooses among those with a free place.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        policy: Policy,
        predictions: PredictionService,
        routes: RouterAdapter,
        *,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engines = engines
        self.clock = clock
        self._max_waiting = max_waiting
        self.routes = routes
        for engine in engines:
            routes.up(engine)
        self._queue = PolicyQueue(policy)
        self._predictions = predictions
        self._turns: dict[str, asyncio.Future[Engine]] = {}
        self._held: dict[str, Job] = {}
        self._none_up_since: float | None = None
        self._count()

    @property
    def policy(self) -> Policy:
        """The order in force."""
        return self._queue.policy

    @property
    def uses_predictions(self) -> bool:
        """Whether order or choice of an engine look at predictions at all."""
        return self.policy.uses_predictions or self.routes.uses_predictions

    @property
    def waiting(self) -> int:
        """Requests held."""
        return len(self._queue)

    def use(self, policy: Policy) -> None:
        """Change the order under the waiting requests: the kill switch."""
        _log.warning("policy %s instead of %s, %d waiting", policy.name, self.policy.name, self.waiting)
        self._queue.use(policy, self.clock())

    def refuse_if_full(self) -> None:
        """Raise 429 where one more could not be held."""
        if self.waiting >= self._max_waiting and not self._free():
            raise ApiError(
                429,
                f"{self.waiting} requests are waiting already; try again later",
                code="queue_full",
                headers={"retry-after": str(_RETRY_AFTER_S)},
            )

    async def place(self, job: Job, prediction_wait_s: float = 0.0) -> Engine:
        """Wait for the job's turn and take a place on an engine; give it back with `release`.

        With `prediction_wait_s`, then wait up to that long for a prediction that is being made.

        Cancelled, the job leaves the queue, or gives back the place it was just given.
        """
        self.refuse_if_full()
        turn: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        self._turns[job.id] = turn
        self._held[job.id] = job
        self._queue.push(job, self.clock())
        self._give()
        try:
            engine = await turn
            if prediction_wait_s:
                await self._await_prediction(job, prediction_wait_s)
            return engine
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(turn.result(), job)
            raise
        finally:
            self._turns.pop(job.id, None)
            self._held.pop(job.id, None)
            self._queue.remove(job.id)

    def began(self, engine: Engine, job: Job) -> None:
        """Tell that the answer begins to come."""
        self.routes.began(job, engine, self.clock())

    def release(self, engine: Engine, job: Job, generated: int = 0, ttft_s: float | None = None) -> None:
        """Give a place back, and tell what came of it: tokens, and seconds from the place to the first of them."""
        engine.in_flight -= 1
        self.routes.ended(job, engine, self.clock(), generated, ttft_s)
        self._count()
        self._give()

    def finished(self, job: Job, tokens: int) -> None:
        """Tell how long an answer was (nothing, if it never began), for orders that serve in turns."""
        job.generated = tokens
        self._queue.finished(job)

    def set_up(self, engine: Engine) -> None:
        """The engine answers (again)."""
        if not engine.up:
            _log.warning("engine %s is up again", engine.url)
            engine.up = True
            self.routes.up(engine)
            self._count()
            self._give()

    def set_down(self, engine: Engine, why: Exception) -> None:
        """The engine does not answer: what runs there is left to end, nothing new goes there."""
        if engine.up:
            _log.warning("engine %s is down: %s", engine.url, why)
            engine.up = False
            self.routes.down(engine)
            self._count()

    def give_up(self, after_s: float) -> None:
        """Refuse those who have waited so long with no engine up at all."""
        if self._none_up_since is None:
            return
        now = self.clock()
        for job in list(self._queue):
            if now - max(job.arrival, self._none_up_since) >= after_s:
                self._queue.remove(job.id)
                turn = self._turns[job.id]
                if not turn.done():
                    turn.set_exception(ApiError(503, "no engine is up", code="no_engine"))

    def _free(self) -> list[Engine]:
        return [engine for engine in self.engines if engine.free]

    def _predict(self, job_id: str, prediction: LengthDistribution) -> bool:
        """Put a job where its prediction puts it; False where it waits no longer."""
        job = self._held.get(job_id)
        if job is None:
            return False
        job.update_prediction(prediction)
        if job_id in self._queue:
            self._queue.update(job, self.clock())
        return True

    async def _await_prediction(self, job: Job, wait_s: float) -> None:
        until = self.clock() + wait_s
        while self._predictions.is_open(job.id) and self.clock() < until:
            await asyncio.sleep(_POLL_S)
            self._predictions.deliver(self._predict)

    def _give(self) -> None:
        self._predictions.deliver(self._predict)
        while self._queue and (free := self._free()):
            now = self.clock()
            job = self._queue.pop(now)
            if job is None:
                return
            turn = self._turns[job.id]
            if turn.done():  # cancelled in this very moment; its `place` cleans up
                continue
            engine = self.routes.choose(job, free, now)
            engine.in_flight += 1
            job.started = now
            self._count()
            turn.set_result(engine)

    def _count(self) -> None:
        """Keep what policies see true: how many run, how many may."""
        up = [engine for engine in self.engines if engine.up]
        self._queue.running = sum(engine.in_flight for engine in self.engines)
        self._queue.slots = max(1, sum(engine.places for engine in up))
        if up:
            self._none_up_since = None
        elif self._none_up_since is None:
            self._none_up_since = self.clock()
