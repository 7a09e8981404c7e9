"""One engine as the gateway sees it: its jobs, and values that own their transitions (health, breaker, KV, load)."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from lengthwise.client.client import EngineClient
from lengthwise.client.kind import EngineKind, FoundEngine
from lengthwise.client.scrape import EngineGauges, EngineMemory
from lengthwise.gateway.retries import Retries
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.policies import Job
from lengthwise.policies.admission import JointAdmission
from lengthwise.policies.wrappers import has_classes

_NEWEST_ANSWER: Final = 1 / 16  # weight of the newest answer in the share of those that succeed
_MAX_DOUBLINGS: Final = 5  # of the time that a breaker is open
_NEWEST_WEIGHT: Final = 0.05  # of the newest request in the recent speed
_BOUND_SIGMAS: Final = 2.0  # above the median: the bound of a request's KV memory
_LONGEST_SIGMAS: Final = 4.0  # above the median: the longest answer that is expected
_SLOWEST: Final = 4.0  # times the mean time per token: the slowest answer that is expected
_KEPT_TTFT: Final = 0.98  # of the slowest TTFT, with each further one
_MAX_EXPONENT: Final = 700.0
_jitter: Final = random.Random()  # noqa: S311


@dataclass(slots=True)
class Health:
    """Whether an engine is up: down after `max_failures` failed checks in a row, up after `min_successes` good ones."""

    max_failures: int = 3
    min_successes: int = 2
    up: bool = True
    _checks: int = 0  # in a row with the last one's result; negative if they failed

    def on_check(self, *, healthy: bool) -> bool:
        """Count a health check; return whether `up` has changed."""
        self._checks = max(self._checks, 0) + 1 if healthy else min(self._checks, 0) - 1
        changes = self._checks <= -self.max_failures if self.up else self._checks >= self.min_successes
        if changes:
            self.up = not self.up
        return changes

    def on_unreachable(self) -> bool:
        """Take the engine down at once; return whether it was up."""
        self._checks = min(self._checks, 0)
        was_up, self.up = self.up, False
        return was_up


@dataclass(slots=True)
class Breaker:
    """Keeps requests from an engine whose answers fail, while another engine can take them.

    closed -> open        after `max_failures` failed answers in a row
    open -> half_open     at a good health check, once `open_s` (times 1 to 1.5, at random) have passed
    half_open -> closed   by an answer
    half_open -> open     by a failed answer, for twice as long each time, at most 32 times
    Half open, an engine may use its slots times `share`: those of its recent answers that succeeded, of which each
    counts 15/16 of the one after it. A few failures thus cost a part of its slots, and many leave one. After a 429 the
    breaker stays closed, and `pause` keeps requests away.
    """

    max_failures: int = 5
    open_s: float = 5.0
    jitter: random.Random = _jitter
    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    """Failed answers in a row."""
    share: float = 1.0
    """The share of its recent answers that succeeded."""
    _openings: int = 0  # without an answer between
    _retry_at: float = 0.0  # when the failures are forgotten, or the open breaker becomes half open
    _paused_until: float = 0.0

    def passes(self, now: float) -> bool:
        """Whether requests may be sent even if another engine can take them."""
        return self.state != "open" and self._paused_until <= now

    def pause(self, until: float) -> None:
        """Send nothing until then, while another engine can take it: the engine has answered 429."""
        self._paused_until = until

    def slots(self, slots: int) -> int:
        """Return how many of its slots an engine may use."""
        return math.ceil(self.share * slots) if self.state == "half_open" else slots

    def on_answer(self) -> bool:
        """Close; return whether it was not closed."""
        if self.share < 1.0:
            self.share += _NEWEST_ANSWER * (1.0 - self.share)
        if not self.failures and self.state == "closed":  # of nearly every answer
            return False
        was_closed = self.state == "closed"
        self.failures, self._openings, self.state = 0, 0, "closed"
        return not was_closed

    def on_failure(self, now: float) -> bool:
        """Count a failed answer; return whether it has opened a closed breaker."""
        self.share -= _NEWEST_ANSWER * self.share
        if self.state == "open":
            return False
        was_closed = self.state == "closed"
        self.failures += 1
        if not was_closed or self.failures >= self.max_failures:
            self.state = "open"
            self._openings += 1
        doublings = min(max(0, self._openings - 1), _MAX_DOUBLINGS)
        self._retry_at = now + self.open_s * 2**doublings * self.jitter.uniform(1.0, 1.5)
        return was_closed and self.state != "closed"

    def on_hang(self, now: float) -> bool:
        """Open, as the engine hangs; return whether it was closed."""
        self.failures = max(self.failures, self.max_failures - 1)
        return self.on_failure(now)

    def on_healthy(self, now: float) -> bool:
        """After a good health check: forget failures that are old enough; return whether it did."""
        if not self.failures or now < self._retry_at:
            return False
        self.failures = 0
        if self.state == "open":
            self.state = "half_open"
        return True


@dataclass(slots=True)
class KvUse:
    """The KV memory of an engine, and a bound on what its jobs will take of it."""

    memory: EngineMemory | None = None
    """Its KV memory, once it reports it."""
    bound: int = 0
    """The sum of its jobs' bounds: KV tokens that each stays below with high probability."""
    _bounds: dict[str, int] = field(default_factory=dict)

    def report(self, memory: EngineMemory, jobs: Iterable[Job]) -> bool:
        """Record the memory that the engine reports; return whether it has changed."""
        if self.memory == memory:
            return False
        self.memory = memory
        for job in jobs:
            self.add(job)
        return True

    def add(self, job: Job) -> None:
        """Count a job that runs there, where the memory is known."""
        if self.memory is not None and job.id not in self._bounds:
            bound = self._bounds[job.id] = _kv_bound(job)
            self.bound += bound

    def remove(self, job: Job) -> None:
        """Count a job no longer."""
        self.bound -= self._bounds.pop(job.id, 0)


def _kv_bound(job: Job) -> int:
    """Return KV tokens that a request all but surely stays below: two sigmas above the median, at most its cap."""
    length = math.exp(min(job.mu + _BOUND_SIGMAS * job.sigma, _MAX_EXPONENT))
    return job.prompt_tokens + math.ceil(min(length, job.cap))


@dataclass(slots=True)
class ForeignLoad:
    """The requests of other clients on an engine, as far as it reports its load."""

    gauges: EngineGauges | None = None
    """The load that it reported last."""
    requests: int = 0
    kv_tokens: int = 0
    _before: int = 0

    def report(self, gauges: EngineGauges, own: int, own_kv_tokens: int, memory: EngineMemory | None) -> None:
        """Record a report: what is beyond the `own` requests of this gateway is that of other clients.

        A number counts once two reports in a row have it, since a report and the requests here are of different times.
        """
        self.gauges = gauges
        seen = max(0, gauges.running + gauges.waiting - own)
        self.requests, self._before = min(seen, self._before), seen
        self.kv_tokens = 0
        if self.requests and memory is not None and gauges.kv_use is not None:
            self.kv_tokens = max(0, int(gauges.kv_use * memory.kv_tokens) - own_kv_tokens)


@dataclass(slots=True)
class RecentSpeed:
    """The recent speed of one request on an engine: seconds in a slot and tokens, of which older ones count less."""

    slowest_ttft_s: float = 0.0
    """The largest TTFT of recent streams; 0 before any is known."""
    _busy_s: float = 0.0
    _tokens: float = 0.0

    def observe(self, seconds: float, tokens: int) -> None:
        """Count an answer of `tokens` that held a slot for `seconds`."""
        self._busy_s += seconds - _NEWEST_WEIGHT * self._busy_s
        self._tokens += tokens - _NEWEST_WEIGHT * self._tokens

    def observe_ttft(self, seconds: float) -> None:
        """Count the time from a slot to the first token of a stream."""
        self.slowest_ttft_s = max(seconds, _KEPT_TTFT * self.slowest_ttft_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second; 0 before any are known."""
        return self._tokens / self._busy_s if self._busy_s else 0.0

    @property
    def s_per_token(self) -> float:
        """Seconds per token; infinity before any are known."""
        return self._busy_s / self._tokens if self._tokens else math.inf


@dataclass(slots=True)
class EngineIdentity:
    """What an engine is, which determines the fields that are added to its requests; configured, or found by asking."""

    kind: EngineKind = "openai"
    description: str | None = None
    """The kind in words; None until it is known."""
    preempts_classes: bool = False
    """Whether it has our scheduler with a policy in which a more urgent class preempts."""
    _found: bool = False
    _ask_at: float = 0.0

    def is_asked(self, now: float) -> bool:
        """Whether the engine is to be asked what it is."""
        return self.description is None and now >= self._ask_at

    def find(self, found: FoundEngine) -> None:
        """Record what the engine has answered."""
        self.kind, self.description, self._found = found.kind, str(found), True
        self.preempts_classes = found.policy is not None and has_classes(found.policy)

    def ask_again(self, at: float) -> None:
        """Ask again later: the engine did not answer."""
        self._ask_at = at

    def doubt(self) -> None:
        """Ask again what was found by asking: the engine was down, and another server may take its place."""
        if self._found:
            self.description = None


@dataclass(eq=False, slots=True)
class GatewayEngine:
    """An engine as the gateway sees it: the state of its connection, its slots, and the jobs that run there."""

    client: EngineClient
    number: int
    slots: int
    health: Health = field(default_factory=Health)
    breaker: Breaker = field(default_factory=Breaker)
    identity: EngineIdentity = field(default_factory=EngineIdentity)
    kv: KvUse = field(default_factory=KvUse)
    foreign: ForeignLoad = field(default_factory=ForeignLoad)
    speed: RecentSpeed = field(default_factory=RecentSpeed)
    jobs: dict[str, Job] = field(default_factory=dict)
    models: frozenset[str] | None = None
    """The models it lists; None while unknown, then it may serve any."""
    leaving: bool = False
    """It gets no new request and leaves when the running ones have ended."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has left."""
    retries: Retries = field(default_factory=lambda: Retries(most=2, share=0.1))
    """The budget of retries of requests that it fails or refuses."""
    heard_at: float = 0.0
    """When an answer of it has begun or ended."""

    @property
    def name(self) -> str:
        """Its name in answers and metrics, which never show its address."""
        return self.client.name

    @property
    def up(self) -> bool:
        """Whether it answers its health checks."""
        return self.health.up

    @property
    def memory(self) -> EngineMemory | None:
        """Its KV memory, once it reports it."""
        return self.kv.memory

    @property
    def gauges(self) -> EngineGauges | None:
        """The load that it reported last."""
        return self.foreign.gauges

    @property
    def in_flight(self) -> int:
        """Requests that run there."""
        return len(self.jobs)

    @property
    def free(self) -> bool:
        """Whether it is up, stays and has a slot that neither this gateway nor another client uses.

        It may always run one request, and fewer than its slots while its breaker is half open.
        """
        if not self.health.up or self.leaving:
            return False
        running = len(self.jobs)
        if not running:
            return True
        slots = self.slots if self.breaker.state == "closed" else self.breaker.slots(self.slots)
        return running < slots - self.foreign.requests

    def has_slot_for(self, job: Job) -> bool:
        """Whether it has a slot for a job: a free one, or that of a less urgent job, where its scheduler preempts.

        Those that are at least as urgent stay within its slots.
        """
        if self.free:
            return True
        if not self.identity.preempts_classes or not self.up or self.leaving or self.breaker.state == "half_open":
            return False
        return len(self._as_urgent(job)) < self.slots - self.foreign.requests

    def _as_urgent(self, job: Job) -> list[Job]:
        """Return its jobs that a job could not preempt."""
        if not self.identity.preempts_classes:
            return list(self.jobs.values())
        return [other for other in self.jobs.values() if other.priority <= job.priority]

    def serves(self, model: str | None) -> bool:
        """Whether it serves a model, as far as known; a request without a model may run on any engine."""
        return not model or self.models is None or model in self.models

    def add_job(self, job: Job) -> None:
        """Give a job a slot."""
        self.jobs[job.id] = job
        self.kv.add(job)

    def remove_job(self, job: Job) -> None:
        """Take the job's slot back."""
        self.jobs.pop(job.id, None)
        self.kv.remove(job)

    def admits(self, job: Job, quantile: float, now: float) -> bool:
        """Whether a quantile of the KV memory of its jobs, with `job`, fits; True while its memory is unknown.

        Memory that requests of other clients use counts as taken.
        """
        memory = self.kv.memory
        if memory is None:
            return True
        kv_tokens = memory.kv_tokens - self.foreign.kv_tokens
        if self.kv.bound + _kv_bound(job) <= kv_tokens:
            return True
        rule, others = JointAdmission(max(1, kv_tokens), memory.block_size, quantile), self._as_urgent(job)
        return rule.admits(job, others, self.generated(now, others))

    def generated(self, now: float, jobs: Iterable[Job] | None = None) -> list[int]:
        """Return the estimated answer tokens so far of its jobs, or of some: the time in the slot at the recent speed.

        Engines do not report the progress of single requests.
        """
        per_s = self.speed.tokens_per_s
        chosen = self.jobs.values() if jobs is None else jobs
        started = ((job, now if job.started is None else job.started) for job in chosen)
        return [min(int((now - since) * per_s), int(job.cap)) for job, since in started]

    def longest_generation_s(self, job: Job, *, declared: bool) -> float:
        """Return a time within which it generates an answer all but surely; infinity before its speed is known.

        Tokens: exp(mu + 4 sigma) of the prediction, at most the answer's cap; the cap if the client declared the
        length, since a wrong hint must not look like a failure of the engine. Time: 4 times the recent mean per token.
        """
        tokens: float = job.max_tokens or DEFAULT_CAP
        if not declared:
            tokens = min(tokens, math.exp(min(job.mu + _LONGEST_SIGMAS * job.sigma, _MAX_EXPONENT)))
        return _SLOWEST * tokens * self.speed.s_per_token

    def on_load(self, gauges: EngineGauges, own: int, now: float) -> None:
        """Record the load that it reports; `own` requests of this gateway are in it."""
        own_kv_tokens = sum(job.prompt_tokens for job in self.jobs.values()) + sum(self.generated(now))
        self.foreign.report(gauges, own, own_kv_tokens, self.kv.memory)
