"""The gateway's queue: requests wait in the policy's order until an engine that the router may choose is free."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from lengthwise.client.scrape import EngineGauges, EngineMemory
from lengthwise.gateway.engine_groups import EngineGroup, EngineGroups
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.routing import RouterAdapter
from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Fcfs, Job, Policy, PolicyQueue
from lengthwise.predictors.service import PredictionService

_log = logging.getLogger(__name__)
_MAX_RETRY_AFTER_S: Final = 60
_SLOT_WEIGHT: Final = 0.05  # of the newest request in the mean time that requests hold a slot
_PAUSE_S: Final = 1.0  # after a 429 without Retry-After
_MAX_PAUSE_S: Final = 10.0


@dataclass(eq=False, slots=True)
class _Turn:
    """A waiting request."""

    job: Job
    engine: asyncio.Future[GatewayEngine]
    group: EngineGroup
    avoid: Collection[GatewayEngine] = ()
    """Engines that have refused it: used only while no other is up."""
    only: GatewayEngine | None = None
    """The engine that it must run on, as long as that stays."""


class Dispatcher:
    """One queue for each set of engines that serve the same models. A freed slot goes to the head of a queue at once.

    Where queues share an engine, the head with the lower priority, then the earlier arrival, is sent first. Predictions
    that arrived are applied just before, since only then does the order matter. The router chooses among the engines
    with a free slot. With `admission_quantile`, a slot is free only where that quantile of KV memory fits. A request
    for which an engine's scheduler would preempt a less urgent one is sent there without a free slot.
    """

    def __init__(
        self,
        policy: Policy,
        predictions: PredictionService,
        routes: RouterAdapter,
        *,
        max_waiting: int,
        admission_quantile: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._groups = EngineGroups(self._make_queue, clock)
        self.engines = self._groups.engines
        """Those that serve and those that leave."""
        self.admission_quantile = admission_quantile
        self.max_waiting = max_waiting
        self._slot_s: float | None = None
        self.routes = routes
        self.policy = policy
        """The policy in force: fcfs once another has raised."""
        self.policy_failures = 0
        self._predictions = predictions
        self._turns: dict[str, _Turn] = {}
        self._retrying: dict[str, _Turn] = {}  # not in a queue, where they would block those behind them
        self._dispatches_soon = False

    @property
    def uses_predictions(self) -> bool:
        """Whether the order or the choice of an engine uses predictions; admission uses them where they are made."""
        return self.policy.uses_predictions or self.routes.uses_predictions

    @property
    def waiting(self) -> int:
        """Requests that wait for an engine."""
        return len(self._retrying) + sum(len(group.queue) for group in self._groups)

    def add_engine(self, engine: GatewayEngine) -> None:
        """Let an engine join; waiting requests may run on it."""
        self.engines.append(engine)
        if engine.up:
            self.routes.up(engine)
        else:
            _log.warning("%s (%s) is down: it does not answer", engine.name, engine.client.url)
        self._regroup()

    def remove_engine(self, name: str) -> GatewayEngine:
        """Let an engine leave: it gets no new request, and its `drained` is set when the running ones have ended.

        KeyError if no engine has that name. Waiting requests that no other engine serves fail with 404, or 503 if there
        is no other.
        """
        engine = next((engine for engine in self.engines if engine.name == name and not engine.leaving), None)
        if engine is None:
            raise KeyError(name)
        _log.warning("%s (%s) leaves, %d running", engine.name, engine.client.url, engine.in_flight)
        engine.leaving = True
        self._regroup()
        self._drop_if_drained(engine)
        return engine

    def _drop_if_drained(self, engine: GatewayEngine) -> None:
        if engine.leaving and not engine.jobs and engine in self.engines:
            self.engines.remove(engine)
            self.routes.forget(engine)
            engine.drained.set()

    @property
    def queues(self) -> list[tuple[list[GatewayEngine], PolicyQueue]]:
        """Each queue, and the engines that it is for."""
        return [(group.engines, group.queue) for group in self._groups]

    def use(self, policy: Policy) -> None:
        """Change the policy under the waiting requests: the kill switch."""
        _log.warning("policy %s replaces %s, %d waiting", policy.name, self.policy.name, self.waiting)
        self.policy = policy
        for group in self._groups:
            group.queue.use(policy, self.clock())

    def _make_queue(self) -> PolicyQueue:
        return PolicyQueue(self.policy, on_failure=self._policy_failed)

    def _policy_failed(self, _: Exception) -> None:
        """Count a policy that raised, and stop using it: its queue has gone over to arrival order by itself."""
        self.policy_failures += 1
        failed, self.policy = self.policy, Fcfs()
        for group in self._groups:
            if group.queue.policy is failed:
                group.queue.use(self.policy, self.clock())

    def refuse(self, model: str | None) -> None:
        """Raise 404 if no engine serves the model, 429 if too many requests wait and none of its engines is free."""
        group = self._groups.of(model)
        if len(self._turns) < self.max_waiting:  # each that waits has a turn
            return
        if self.waiting >= self.max_waiting and not group.with_slot(self.clock()):
            raise ApiError(
                429,
                f"{self.waiting} requests are waiting; try again later",
                code="queue_full",
                headers={"retry-after": str(self.retry_after_s(model))},
            )

    def retry_after_s(self, model: str | None) -> int:
        """Return the predicted wait behind a queue, from 1 to 60 s: its requests at the recent time in a slot."""
        group = self._groups.known(model)
        if group is None:  # the engines list other models since
            return 1
        wait_s = (len(group.queue) + 1) * (self._slot_s or 0.0) / group.queue.slots
        return math.ceil(min(max(wait_s, 1.0), _MAX_RETRY_AFTER_S))

    async def place(
        self,
        job: Job,
        *,
        avoid: Collection[GatewayEngine] = (),
        until: float = math.inf,
        only: GatewayEngine | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> GatewayEngine:
        """Wait for the job's turn and take a slot of an engine; `release` gives it back.

        `on_wait` is called before the job joins the queue, if no engine is free for it.
        A retry takes the next slot of an engine that is not in `avoid`; those are used only while no other is up.
        With `only`, the job waits in a queue of that engine alone, unless the engine leaves.
        TimeoutError if the turn has not come at `until`. If cancelled, the job leaves the queue or gives back its slot.
        """
        if not avoid and (taken := self.place_now(job, only)) is not None:
            return taken
        if job.started is None:  # those that arrived at the same time may wait by now
            self.refuse(job.llm)
        if on_wait is not None:
            on_wait()
        group = self._groups.of(job.llm, only)
        engine: asyncio.Future[GatewayEngine] = asyncio.get_running_loop().create_future()
        turn = self._turns[job.id] = _Turn(job, engine, group, avoid, only)
        try:
            if avoid:
                self._retrying[job.id] = turn
            else:
                turn.group.queue.push(job, self.clock())
            self._dispatch()
            if engine.done() or until == math.inf:
                return await engine
            async with asyncio.timeout(until - self.clock()):
                return await engine
        except BaseException:
            if engine.done() and not engine.cancelled() and engine.exception() is None:
                self.release(engine.result(), job)
            raise
        finally:
            del self._turns[job.id]
            self._retrying.pop(job.id, None)
            turn.group.queue.remove(job.id)

    def place_now(self, job: Job, only: GatewayEngine | None = None) -> GatewayEngine | None:
        """Take a slot for a job that need not wait; None if it must."""
        group = self._groups.of(job.llm, only)
        now = self.clock()
        if group.queue or not (free := self._admitting(group.with_slot_for(job, now), job)):
            return None
        group.queue.admit(job)
        return self._take(job, free, now)

    def another_up(self, model: str | None, avoid: Collection[GatewayEngine], *, well: bool = False) -> bool:
        """Whether an engine outside `avoid` serves the model and is up; with `well`, its breaker is closed."""
        others = (engine for engine in self._groups.of(model).engines if engine.up and engine not in avoid)
        return any(not well or engine.breaker.state == "closed" for engine in others)

    def engine_priority(self, job: Job) -> int:
        """Return the number by which an engine orders a request that is sent now, lower first."""
        group, now = self._groups.known(job.llm), self.clock()
        if group is None:  # the engines list other models since
            return job.priority
        try:
            order = job.round_number, float(self.policy.key(job, group.queue.view, now))
        except Exception:  # a policy of another package; the queue counts and logs what it raises
            order = job.round_number, math.inf
        return group.priority.number(order if order[1] == order[1] else (order[0], math.inf), job.priority, now)

    def on_first_byte(self, engine: GatewayEngine, job: Job) -> None:
        """Report to the router that the answer has started."""
        self.routes.on_first_byte(job, engine, self.clock())

    def release(self, engine: GatewayEngine, job: Job, generated: int = 0, ttft_s: float | None = None) -> None:
        """Give a slot back; `ttft_s` is the time from the slot to the first token."""
        engine.remove_job(job)
        if job.started is not None:
            held_s = self.clock() - job.started
            if generated:
                engine.speed.observe(held_s, generated)
            self._slot_s = held_s if self._slot_s is None else self._slot_s + _SLOT_WEIGHT * (held_s - self._slot_s)
        if ttft_s is not None:
            engine.speed.observe_ttft(ttft_s)
        self.routes.on_finished(job, engine, self.clock(), generated, ttft_s)
        self._drop_if_drained(engine)
        self._groups.count_running(engine, -1)
        if not self._turns:
            self._dispatch()  # only receives predictions
        elif not self._dispatches_soon:  # once for all slots that are freed in this turn of the event loop
            self._dispatches_soon = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def finished(self, job: Job, tokens: int) -> None:
        """Report an answer's length (0 if it never started) to the queue, for policies with rounds."""
        job.generated = tokens
        group = self._groups.known(job.llm)
        if group is None:  # the engines list other models since
            return
        group.count_tokens(tokens, self.clock())
        group.queue.finished(job)

    def rejoin(self, job: Job, prediction: LengthDistribution | None) -> None:
        """Let a waiting job join its queue anew with another prediction: it is charged by that, and not by the last."""
        job.update_prediction(prediction)
        turn = self._turns.get(job.id)
        if turn is None or job.id not in turn.group.queue:
            return
        queue = turn.group.queue
        queue.remove(job.id)
        job.used_tokens = 0  # nothing of what it was charged is used
        queue.finished(job)
        job.used_tokens = job.rounds = None
        queue.push(job, self.clock())

    def on_check(self, engine: GatewayEngine, *, healthy: bool) -> None:
        """Count a health check: enough failures in a row mark the engine as down, enough successes as up."""
        if engine.health.on_check(healthy=healthy):
            self._on_health(engine, "its health checks fail")
        if healthy and engine.breaker.on_healthy(self.clock()):
            self._dispatch()

    def on_unreachable(self, engine: GatewayEngine, cause: Exception) -> None:
        """Mark an engine as down: requests that run there may finish, no new one is sent until it is healthy."""
        if engine.health.on_unreachable():
            self._on_health(engine, cause)

    def _on_health(self, engine: GatewayEngine, cause: Exception | str) -> None:
        """Report an engine that is up or down since to the router and the queues."""
        if engine.up:
            _log.warning("%s (%s) is up", engine.name, engine.client.url)
            self.routes.up(engine)
        else:
            _log.warning("%s (%s) is down: %s", engine.name, engine.client.url, cause)
            self.routes.down(engine)
        self._groups.update_load()
        if engine.up:
            self._dispatch()

    def on_answer(self, engine: GatewayEngine, *, failed: bool) -> None:
        """Count failed answers in a row; enough of them open the engine's breaker, an answer closes it."""
        if not failed:
            if engine.breaker.on_answer():
                _log.warning("%s answers again", engine.name)
        elif engine.breaker.on_failure(self.clock()):
            _log.warning("%s failed %d times in a row", engine.name, engine.breaker.failures)

    def on_hang(self, engine: GatewayEngine) -> None:
        """Open the breaker of an engine that hangs."""
        if engine.breaker.on_hang(self.clock()):
            _log.warning("%s hangs: no answer of it has begun in time, and no byte arrives", engine.name)

    def pause(self, engine: GatewayEngine, asked_s: float | None) -> None:
        """Send an engine that has answered 429 nothing for the time it asks for, while another engine can take it.

        Its breaker stays closed: the limit may be that of one client.
        """
        wait_s = min(_MAX_PAUSE_S, _PAUSE_S if asked_s is None else asked_s)
        engine.breaker.pause(self.clock() + wait_s)
        asyncio.get_running_loop().call_later(wait_s, self._dispatch)

    def set_slots(self, engine: GatewayEngine, slots: int) -> None:
        """Change the requests that may run at once on an engine; those that run are not stopped."""
        engine.slots = slots
        if engine.up:
            self.routes.up(engine)
        self._groups.update_load()
        self._dispatch()

    def set_memory(self, engine: GatewayEngine, memory: EngineMemory) -> None:
        """Record the KV memory that an engine reports."""
        if engine.kv.report(memory, engine.jobs.values()) and engine.up:
            self.routes.up(engine)

    def on_load(self, engine: GatewayEngine, gauges: EngineGauges, asked_at: float, own: int) -> None:
        """Record the load that an engine reports, for the router and its free slots; `own` ran there when asked."""
        engine.on_load(gauges, max(own, engine.in_flight), asked_at)
        if engine.up:
            self.routes.on_metrics(engine, gauges, asked_at)

    def set_models(self, engine: GatewayEngine, models: frozenset[str] | None) -> None:
        """Record the models that an engine lists. Waiting requests move to the engines that serve theirs now."""
        if engine.models != models:
            engine.models = models
            self._regroup()

    def _regroup(self) -> None:
        """Make the groups anew, and move the waiting requests to them."""
        moved = [turn for turn in self._turns.values() if turn.group.queue.remove(turn.job.id)]
        self._groups.clear()
        for turn in [*moved, *self._retrying.values()]:
            try:
                turn.group = self._groups.of(turn.job.llm, turn.only)
            except ApiError as error:
                _fail(turn, error)
                continue
            if turn.job.id not in self._retrying:
                turn.group.queue.push(turn.job, self.clock())
        self._dispatch()

    def expire(self, after_s: float) -> None:
        """Fail requests with 503 that have waited `after_s` while no engine that serves their model was up."""
        if all(group.none_up_since is None for group in self._groups):
            return
        now = self.clock()
        for turn in self._turns.values():
            since = turn.group.none_up_since
            if since is not None and now - max(turn.job.arrival, since) >= after_s:
                _fail(turn, ApiError(503, "no engine is up", code="no_engine"))

    def _admitting(self, engines: list[GatewayEngine], job: Job) -> list[GatewayEngine]:
        """Return the engines with KV memory for a job; of those the ones with the fewest failures.

        Failures count before the router's choice, since an engine that fails at once is always idle. One whose breaker
        is half open gets a second request only if no other has a slot.
        """
        quantile = self.admission_quantile
        limited = [engine for engine in engines if engine.memory is not None]
        if quantile and limited and self.uses_predictions:
            now = self.clock()
            engines = [engine for engine in engines if engine.admits(job, quantile, now)]
        failures = [e.breaker.failures or (e.breaker.state == "half_open" and bool(e.jobs)) for e in engines]
        if not any(failures):
            return engines
        fewest = min(failures)
        return [engine for engine, count in zip(engines, failures, strict=True) if count == fewest]

    def _apply_prediction(self, job_id: str, prediction: LengthDistribution) -> bool:
        """Update a waiting job and its key; False if it no longer waits."""
        turn = self._turns.get(job_id)
        if turn is None or job_id not in turn.group.queue:
            return False
        turn.job.update_prediction(prediction)
        turn.group.queue.update(turn.job, self.clock())
        return True

    def _dispatch(self) -> None:
        self._dispatches_soon = False
        self._predictions.deliver(self._apply_prediction)
        if not self._turns:
            return
        now = self.clock()
        for turn in list(self._retrying.values()):
            if free := self._admitting(turn.group.with_slot(now, turn.avoid), turn.job):
                del self._retrying[turn.job.id]
                self._assign(turn, free)
        ready = list(self._groups)
        while ready := [group for group in ready if group.queue and group.with_slot_for_head(now)]:
            first = ready[0] if len(ready) == 1 else min(ready, key=lambda group: group.head_order(now))
            if not self._dispatch_head(first, now):
                ready.remove(first)

    def _dispatch_head(self, group: EngineGroup, now: float) -> bool:
        """Give the group's next job a slot; False if it must wait."""
        job = group.queue.peek(now)
        if job is None:
            return False
        turn = self._turns[job.id]
        free = self._admitting(group.with_slot_for(job, now), job)
        if not free and not turn.engine.done():
            return False  # the head waits for KV memory, as in an engine
        group.queue.pop(now)
        self._assign(turn, free)
        return True

    def _assign(self, turn: _Turn, free: list[GatewayEngine]) -> None:
        if not turn.engine.done():  # else cancelled just now; its `place` cleans up
            turn.engine.set_result(self._take(turn.job, free, self.clock()))

    def _take(self, job: Job, free: list[GatewayEngine], now: float) -> GatewayEngine:
        """Give a job a slot of the engine that the router chooses."""
        engine = self.routes.choose(job, free, now)
        engine.add_job(job)
        job.started = now
        self._groups.count_running(engine, 1)
        return engine


def _fail(turn: _Turn, error: ApiError) -> None:
    if not turn.engine.done():
        turn.engine.set_exception(error)
