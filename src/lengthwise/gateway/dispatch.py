"""The gateway's queue: requests wait in the policy's order until an engine that the router may choose is free."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal

from lengthwise.client.client import EngineClient
from lengthwise.client.kind import EngineKind
from lengthwise.client.scrape import EngineGauges, EngineMemory
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.routing import RouterAdapter
from lengthwise.lengths import DEFAULT_CAP, LengthDistribution
from lengthwise.policies import Fcfs, Job, Policy, PolicyQueue, TokenRate
from lengthwise.policies.admission import JointAdmission
from lengthwise.predictors.service import PredictionService

_log = logging.getLogger(__name__)
_MAX_RETRY_AFTER_S: Final = 60
_SLOT_WEIGHT: Final = 0.05  # of the newest request in the mean time that requests hold a slot
_BOUND_SIGMAS: Final = 2.0  # above the median: the bound of a request's KV memory
_LONGEST_SIGMAS: Final = 4.0  # above the median: the longest answer that is expected
_SLOWEST: Final = 4.0  # times the mean time per token: the slowest answer that is expected
_MAX_EXPONENT: Final = 700.0
_PAUSE_S: Final = 1.0  # after a 429 without Retry-After
_MAX_PAUSE_S: Final = 10.0
_MAX_DOUBLINGS: Final = 5  # of the time that a breaker is open
_MAX_MODELS: Final = 1024  # whose groups are remembered: where engines list no models, clients choose the names


RECENT: Final = 256
"""Requests among which a request is ranked."""
SPREAD_S: Final = 10.0
"""Seconds between the first and the last rank: a request is overtaken by none that is sent later than that after it."""
_PER_S: Final = 10  # steps of the number
_CLASS: Final = 1 << 32  # of a request's own priority, which comes before the policy's order


@dataclass(eq=False, slots=True)
class GatewayEngine:
    """An engine as the gateway sees it: whether it is up, its slots, and the jobs that run there."""

    client: EngineClient
    number: int
    slots: int
    up: bool = True
    leaving: bool = False
    """It gets no new request and leaves when the running ones have ended."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has left."""
    kind: EngineKind = "openai"
    """Its kind, which determines the fields that are added to its requests."""
    description: str | None = None
    """The same in words; None until it is known."""
    kind_found: bool = False
    """Whether the kind was found by asking; else it is configured, or not known yet."""
    ask_kind_at: float = 0.0
    """When it is asked again, if it did not answer."""
    checks: int = 0
    """Health checks in a row with the last one's result; negative if they failed."""
    jobs: dict[str, Job] = field(default_factory=dict)
    memory: EngineMemory | None = None
    """Its KV memory, once it reports it."""
    kv_bounds: dict[str, int] = field(default_factory=dict)
    """A bound on the KV tokens of each of its jobs, which they stay below with high probability."""
    kv_bound: int = 0
    """Their sum."""
    gauges: EngineGauges | None = None
    """The load that it reported last."""
    foreign: int = 0
    """Requests of other clients there, as far as it reports them."""
    foreign_kv_tokens: int = 0
    _foreign_before: int = 0
    models: frozenset[str] | None = None
    """The models it lists; None while unknown, then it may serve any."""
    failures: int = 0
    """Failed answers in a row."""
    breaker: Literal["closed", "open", "half_open"] = "closed"
    """Open: it gets no request while another engine can take it. Half open: one request at a time."""
    openings: int = 0
    """Of the breaker, without an answer between."""
    busy_s: float = 0.0
    tokens: float = 0.0
    """Recent seconds of requests in slots, and their tokens; older ones count less."""
    retry_at: float = 0.0
    """When its failures are forgotten, or its open breaker becomes half open."""
    paused_until: float = 0.0
    """Until then it gets no request while another engine can take it: it has answered 429."""

    @property
    def name(self) -> str:
        """Its name in answers and metrics, which never show its address."""
        return self.client.name

    @property
    def in_flight(self) -> int:
        """Requests that run there."""
        return len(self.jobs)

    @property
    def free(self) -> bool:
        """Whether it is up, stays and has a slot that neither this gateway nor another client uses."""
        slots = 1 if self.breaker == "half_open" else max(1, self.slots - self.foreign)
        return self.up and not self.leaving and len(self.jobs) < slots

    def longest_generation_s(self, job: Job, *, declared: bool) -> float:
        """Return a time within which it generates an answer all but surely; infinity before its speed is known.

        Tokens: exp(mu + 4 sigma) of the prediction, at most the answer's cap; the cap if the client declared the
        length, since a wrong hint must not look like a failure of the engine. Time: 4 times the recent mean per token.
        """
        if not self.tokens:
            return math.inf
        tokens: float = job.max_tokens or DEFAULT_CAP
        if not declared:
            tokens = min(tokens, math.exp(min(job.mu + _LONGEST_SIGMAS * job.sigma, _MAX_EXPONENT)))
        return _SLOWEST * tokens * self.busy_s / self.tokens

    def serves(self, model: str | None) -> bool:
        """Whether it serves a model, as far as known; a request without a model may run on any engine."""
        return not model or self.models is None or model in self.models

    def admits(self, job: Job, quantile: float, now: float) -> bool:
        """Whether a quantile of the KV memory of its jobs, with `job`, fits; True while its memory is unknown.

        Engines do not report the progress of single requests: tokens so far are the time in the slot times the recent
        tokens per second. Memory that requests of other clients use counts as taken.
        """
        if self.memory is None:
            return True
        kv_tokens = self.memory.kv_tokens - self.foreign_kv_tokens
        if self.kv_bound + _kv_bound(job) <= kv_tokens:
            return True
        rule = JointAdmission(max(1, kv_tokens), self.memory.block_size, quantile)
        return rule.admits(job, list(self.jobs.values()), self.generated(now))

    def generated(self, now: float) -> list[int]:
        """Return the estimated answer tokens so far of its jobs."""
        per_s = self.tokens / self.busy_s if self.busy_s else 0.0
        started = ((job, now if job.started is None else job.started) for job in self.jobs.values())
        return [min(int((now - since) * per_s), int(job.cap)) for job, since in started]

    def count_kv(self, job: Job) -> None:
        """Count the KV memory of a job that runs there."""
        if job.id not in self.kv_bounds:
            bound = self.kv_bounds[job.id] = _kv_bound(job)
            self.kv_bound += bound

    def give_back(self, job: Job) -> None:
        """Take the job's slot back."""
        self.jobs.pop(job.id, None)
        self.kv_bound -= self.kv_bounds.pop(job.id, 0)

    def on_load(self, gauges: EngineGauges, own: int, now: float) -> None:
        """Record the load that it reports: what is beyond the `own` requests of this gateway is that of other clients.

        A number counts once two reports in a row have it, since a report and the requests here are of different times.
        """
        self.gauges = gauges
        seen = max(0, gauges.running + gauges.waiting - own)
        self.foreign, self._foreign_before = min(seen, self._foreign_before), seen
        self.foreign_kv_tokens = 0
        if self.foreign and self.memory is not None and gauges.kv_use is not None:
            held = sum(job.prompt_tokens for job in self.jobs.values()) + sum(self.generated(now))
            self.foreign_kv_tokens = max(0, int(gauges.kv_use * self.memory.kv_tokens) - held)


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
class _Group:
    """The engines that serve a model, and the queue of the requests for it; models of the same engines share it."""

    engines: list[GatewayEngine]
    queue: PolicyQueue
    rate: TokenRate = field(default_factory=TokenRate)
    tokens: int = 0
    """Of finished answers: engines do not report progress."""
    none_up_since: float | None = None
    priority: EnginePriority = field(default_factory=EnginePriority)


@dataclass(eq=False, slots=True)
class _Turn:
    """A waiting request."""

    job: Job
    engine: asyncio.Future[GatewayEngine]
    group: _Group
    avoid: Collection[GatewayEngine] = ()
    """Engines that have refused it: used only while no other is up."""
    only: GatewayEngine | None = None
    """The engine that it must run on, as long as that stays."""


class Dispatcher:
    """One queue for each set of engines that serve the same models. A freed slot goes to the head of a queue at once.

    Where queues share an engine, the head with the lower priority, then the earlier arrival, is sent first. Predictions
    that arrived are applied just before, since only then does the order matter. The router chooses among the engines
    with a free slot. With `admission_quantile`, a slot is free only where that quantile of KV memory fits.
    """

    def __init__(
        self,
        policy: Policy,
        predictions: PredictionService,
        routes: RouterAdapter,
        *,
        max_waiting: int,
        admission_quantile: float | None = None,
        breaker_failures: int = 5,
        breaker_s: float = 5.0,
        health_failures: int = 3,
        health_successes: int = 2,
        jitter: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engines: list[GatewayEngine] = []
        """Those that serve and those that leave."""
        self.clock = clock
        self.admission_quantile = admission_quantile
        self.max_waiting = max_waiting
        self._slot_s: float | None = None
        self._breaker_failures = breaker_failures
        self._breaker_s = breaker_s
        self._health_failures = health_failures
        self._health_successes = health_successes
        self._jitter = jitter or random.Random()  # noqa: S311
        self.routes = routes
        self.policy = policy
        """The policy in force: fcfs once another has raised."""
        self.policy_failures = 0
        self._predictions = predictions
        self._groups: dict[tuple[int, ...], _Group] = {}
        self._by_model: dict[str | None, _Group] = {}
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
        return len(self._retrying) + sum(len(group.queue) for group in self._groups.values())

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
        return [(group.engines, group.queue) for group in self._groups.values()]

    def use(self, policy: Policy) -> None:
        """Change the policy under the waiting requests: the kill switch."""
        _log.warning("policy %s replaces %s, %d waiting", policy.name, self.policy.name, self.waiting)
        self.policy = policy
        for group in self._groups.values():
            group.queue.use(policy, self.clock())

    def _policy_failed(self, _: Exception) -> None:
        """Count a policy that raised, and stop using it: its queue has gone over to arrival order by itself."""
        self.policy_failures += 1
        failed, self.policy = self.policy, Fcfs()
        for group in self._groups.values():
            if group.queue.policy is failed:
                group.queue.use(self.policy, self.clock())

    def refuse(self, model: str | None) -> None:
        """Raise 404 if no engine serves the model, 429 if too many requests wait and none of its engines is free."""
        group = self._group(model)
        if len(self._turns) < self.max_waiting:  # each that waits has a turn
            return
        if self.waiting >= self.max_waiting and not _with_slot(group, self.clock()):
            raise ApiError(
                429,
                f"{self.waiting} requests are waiting; try again later",
                code="queue_full",
                headers={"retry-after": str(self.retry_after_s(model))},
            )

    def retry_after_s(self, model: str | None) -> int:
        """Return the predicted wait behind a queue, from 1 to 60 s: its requests at the recent time in a slot."""
        group = self._known_group(model)
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
        group = self._group(job.llm, only)
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
        group = self._group(job.llm, only)
        now = self.clock()
        if group.queue or not (free := self._admitting(_with_slot(group, now), job)):
            return None
        group.queue.admit(job)
        return self._take(job, free, now)

    def another_up(self, model: str | None, avoid: Collection[GatewayEngine]) -> bool:
        """Whether an engine outside `avoid` serves the model and is up."""
        return any(engine.up and engine not in avoid for engine in self._group(model).engines)

    def engine_priority(self, job: Job) -> int:
        """Return the number by which an engine orders a request that is sent now, lower first."""
        group, now = self._known_group(job.llm), self.clock()
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
        engine.give_back(job)
        if job.started is not None:
            held_s = self.clock() - job.started
            if generated:
                engine.busy_s += held_s - _SLOT_WEIGHT * engine.busy_s
                engine.tokens += generated - _SLOT_WEIGHT * engine.tokens
            self._slot_s = held_s if self._slot_s is None else self._slot_s + _SLOT_WEIGHT * (held_s - self._slot_s)
        self.routes.on_finished(job, engine, self.clock(), generated, ttft_s)
        self._drop_if_drained(engine)
        self._count_running(engine, -1)
        if not self._turns:
            self._dispatch()  # only receives predictions
        elif not self._dispatches_soon:  # once for all slots that are freed in this turn of the event loop
            self._dispatches_soon = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def finished(self, job: Job, tokens: int) -> None:
        """Report an answer's length (0 if it never started) to the queue, for policies with rounds."""
        job.generated = tokens
        group = self._known_group(job.llm)
        if group is None:  # the engines list other models since
            return
        group.tokens += tokens
        group.rate.observe(self.clock(), group.tokens, waiting=bool(group.queue))
        group.queue.tokens_per_s = group.rate.per_s
        group.queue.finished(job)

    def on_check(self, engine: GatewayEngine, *, healthy: bool) -> None:
        """Count a health check: enough failures in a row mark the engine as down, enough successes as up."""
        engine.checks = max(engine.checks, 0) + 1 if healthy else min(engine.checks, 0) - 1
        if engine.up and engine.checks <= -self._health_failures:
            self.set_down(engine, "its health checks fail")
        elif not engine.up and engine.checks >= self._health_successes:
            _log.warning("%s (%s) is up", engine.name, engine.client.url)
            engine.up = True
            self.routes.up(engine)
            self._update_load()
            self._dispatch()
        if healthy and engine.failures and self.clock() >= engine.retry_at:
            engine.failures = 0
            if engine.breaker == "open":
                engine.breaker = "half_open"
            self._dispatch()

    def set_down(self, engine: GatewayEngine, cause: Exception | str) -> None:
        """Mark an engine as down: requests that run there may finish, no new one is sent until it is healthy."""
        engine.checks = min(engine.checks, 0)
        if engine.up:
            _log.warning("%s (%s) is down: %s", engine.name, engine.client.url, cause)
            engine.up = False
            self.routes.down(engine)
            self._update_load()

    def on_answer(self, engine: GatewayEngine, *, failed: bool) -> None:
        """Count failed answers in a row; enough of them open the engine's breaker, an answer closes it."""
        if not failed:
            if engine.breaker != "closed":
                _log.warning("%s answers again", engine.name)
            engine.failures, engine.openings, engine.breaker = 0, 0, "closed"
            return
        if engine.breaker == "open":
            return
        engine.failures += 1
        if engine.breaker == "half_open" or engine.failures >= self._breaker_failures:
            if engine.breaker == "closed":
                _log.warning("%s failed %d times in a row", engine.name, engine.failures)
            engine.breaker = "open"
            engine.openings += 1
        doublings = min(max(0, engine.openings - 1), _MAX_DOUBLINGS)
        engine.retry_at = self.clock() + self._breaker_s * 2**doublings * self._jitter.uniform(1.0, 1.5)

    def pause(self, engine: GatewayEngine, asked_s: float | None) -> None:
        """Send an engine that has answered 429 nothing for the time it asks for, while another engine can take it.

        Its breaker stays closed: the limit may be that of one client.
        """
        wait_s = min(_MAX_PAUSE_S, _PAUSE_S if asked_s is None else asked_s)
        engine.paused_until = self.clock() + wait_s
        asyncio.get_running_loop().call_later(wait_s, self._dispatch)

    def set_slots(self, engine: GatewayEngine, slots: int) -> None:
        """Change the requests that may run at once on an engine; those that run are not stopped."""
        engine.slots = slots
        if engine.up:
            self.routes.up(engine)
        self._update_load()
        self._dispatch()

    def set_memory(self, engine: GatewayEngine, memory: EngineMemory) -> None:
        """Record the KV memory that an engine reports."""
        if engine.memory != memory:
            engine.memory = memory
            for job in engine.jobs.values():
                engine.count_kv(job)
            if engine.up:
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
        self._by_model.clear()
        for turn in [*moved, *self._retrying.values()]:
            try:
                turn.group = self._group(turn.job.llm, turn.only)
            except ApiError as error:
                _fail(turn, error)
                continue
            if turn.job.id not in self._retrying:
                turn.group.queue.push(turn.job, self.clock())
        self._dispatch()

    def expire(self, after_s: float) -> None:
        """Fail requests with 503 that have waited `after_s` while no engine that serves their model was up."""
        if all(group.none_up_since is None for group in self._groups.values()):
            return
        now = self.clock()
        for turn in self._turns.values():
            since = turn.group.none_up_since
            if since is not None and now - max(turn.job.arrival, since) >= after_s:
                _fail(turn, ApiError(503, "no engine is up", code="no_engine"))

    def _group(self, model: str | None, only: GatewayEngine | None = None) -> _Group:
        """Return the engines and the queue of a model, or of one engine; ApiError 404 if no engine serves the model."""
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
            self._groups[numbers] = _Group(engines, PolicyQueue(self.policy, on_failure=self._policy_failed))
            self._update_load()
        group = self._groups[numbers]
        if only is None:
            if len(self._by_model) >= _MAX_MODELS:
                self._by_model.clear()
            self._by_model[model] = group
        return group

    def _known_group(self, model: str | None) -> _Group | None:
        """Return the group of a model, if a request has asked for it since the groups were made."""
        return self._by_model.get(model) or self._groups.get(self._numbers(model))

    def _numbers(self, model: str | None) -> tuple[int, ...]:
        return tuple(engine.number for engine in self.engines if not engine.leaving and engine.serves(model))

    def _admitting(self, engines: list[GatewayEngine], job: Job) -> list[GatewayEngine]:
        """Return the engines with KV memory for a job; of those the ones with the fewest failures.

        Failures count before the router's choice, since an engine that fails at once is always idle.
        """
        quantile = self.admission_quantile
        limited = [engine for engine in engines if engine.memory is not None]
        if quantile and limited and self.uses_predictions:
            now = self.clock()
            engines = [engine for engine in engines if engine.admits(job, quantile, now)]
        failures = [engine.failures for engine in engines]
        if not any(failures):
            return engines
        fewest = min(failures)
        return [engine for engine in engines if engine.failures == fewest]

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
            if free := self._admitting(_with_slot(turn.group, now, turn.avoid), turn.job):
                del self._retrying[turn.job.id]
                self._assign(turn, free)
        ready = list(self._groups.values())
        while ready := [group for group in ready if group.queue and _with_slot(group, now)]:
            first = ready[0] if len(ready) == 1 else min(ready, key=lambda group: _head_order(group, now))
            if not self._dispatch_head(first, now):
                ready.remove(first)

    def _dispatch_head(self, group: _Group, now: float) -> bool:
        """Give the group's next job a slot; False if it must wait."""
        job = group.queue.peek(now)
        if job is None:
            return False
        turn = self._turns[job.id]
        free = self._admitting(_with_slot(group, now), job)
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
        engine.jobs[job.id] = job
        if engine.memory is not None:
            engine.count_kv(job)
        job.started = now
        self._count_running(engine, 1)
        return engine

    def _count_running(self, engine: GatewayEngine, change: int) -> None:
        for group in self._groups.values():
            if engine in group.engines:
                group.queue.running += change

    def _update_load(self) -> None:
        """Set the running requests and slots that policies see."""
        for group in self._groups.values():
            up = [engine for engine in group.engines if engine.up]
            group.queue.running = sum(engine.in_flight for engine in group.engines)
            group.queue.slots = max(1, sum(engine.slots for engine in up))
            if up:
                group.none_up_since = None
            elif group.none_up_since is None:
                group.none_up_since = self.clock()


def _with_slot(group: _Group, now: float, avoid: Collection[GatewayEngine] = ()) -> list[GatewayEngine]:
    """Return the engines with a free slot.

    Those in `avoid`, paused ones and those with an open breaker count only while no other is up.
    """
    if not avoid:  # the usual case in one pass
        usable = [e for e in group.engines if e.breaker != "open" and e.paused_until <= now and e.free]
        if usable:
            return usable
    up = [engine for engine in group.engines if engine.up]
    if avoid:
        up = [engine for engine in up if engine not in avoid] or up
    ready = [engine for engine in up if engine.breaker != "open" and engine.paused_until <= now]
    return [engine for engine in ready or up if engine.free]


def _kv_bound(job: Job) -> int:
    """Return KV tokens that a request all but surely stays below: two sigmas above the median, at most its cap."""
    length = math.exp(min(job.mu + _BOUND_SIGMAS * job.sigma, _MAX_EXPONENT))
    return job.prompt_tokens + math.ceil(min(length, job.cap))


def _head_order(group: _Group, now: float) -> tuple[int, float]:
    job = group.queue.peek(now)
    return (0, 0.0) if job is None else (job.priority, job.arrival)


def _fail(turn: _Turn, error: ApiError) -> None:
    if not turn.engine.done():
        turn.engine.set_exception(error)
