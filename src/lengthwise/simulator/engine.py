"""One engine in virtual time: the semantics of vLLM's v1 scheduler, step by step, on the shared `PolicyQueue`.

A step schedules running requests first, preempts where KV blocks run out, admits waiting requests in the policy's
order, and then computes all scheduled tokens; its duration comes from the engine's cost model. This module is the
definition. `simulator.kernel` is the same engine compiled with Numba, and the tests hold it to this one bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import Job, JobColumns, Policy
from lengthwise.policies.admission import (
    JointAdmission,
    KvDemand,
    blocks_for,
    peak_kv_tokens,
    predicted_remaining,
    reserved_blocks,
)
from lengthwise.policies.base import last_of_largest
from lengthwise.policies.queue import PolicyQueue, TokenRate
from lengthwise.simulator.costs import chunk_cost, step_s
from lengthwise.simulator.fleet import EngineSpec, Fleet
from lengthwise.simulator.outcome import MAX_SAMPLES, SAMPLE, SAMPLE_EVERY_S, EngineOutcome, Timeline
from lengthwise.simulator.traffic import Traffic, block_ratio


class SimulatedEngine(Protocol):
    """An engine in virtual time: the readable `Engine` below or the compiled `kernel.host.CompiledEngine`."""

    @property
    def settled(self) -> int:
        """Number of requests that are finished or refused."""

    def submit(self, rows: Sequence[int] | NDArray[np.integer]) -> None:
        """Send requests, in order of arrival; none arrives before one that was sent earlier."""

    def advance(self, until: float = ..., *, settle: int | None = ...) -> bool:
        """Run every step that begins before `until`, or until `settle` more requests are settled.

        Return whether all such steps have run.
        """

    def cached_tokens(self, row: int) -> int:
        """Tokens of a request's prompt that are in the prefix cache now."""

    def unfinished(self, by: float) -> NDArray[np.int64]:
        """Rows sent here that have not finished by a time; refused ones are left out."""

    def outcome(self) -> EngineOutcome:
        """Return what this engine has done so far."""


AnyEngine = TypeVar("AnyEngine", bound=SimulatedEngine)


class EngineEvent(NamedTuple):
    """An engine admits a request, or finishes it; then the last two are known."""

    engine: int
    row: int
    finished: bool
    at_s: float
    generated: int
    ttft_s: float


class FleetEngines(ABC, Generic[AnyEngine]):
    """The engines of a fleet by their numbers: the readable ones below or the compiled `kernel.host.CompiledGroup`.

    `next_event_s` has for each engine a time before which it admits and finishes nothing, unless one more request is
    sent to it. Until then it is not asked what happened, and stays behind in time.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.engines: list[AnyEngine | None] = [None] * len(fleet)
        self.next_event_s: NDArray[np.float64] = np.full(len(fleet), np.inf)
        self.fleet = fleet

    @abstractmethod
    def make(self, spec: EngineSpec) -> AnyEngine:
        """Return an empty engine."""

    @abstractmethod
    def happened(self, until: float, only: int | None = None) -> Sequence[EngineEvent]:
        """Return new events up to a time, in the order of the fleet.

        Engines that may have any run every step that begins before `until`. Such a step may end after it; what finishes
        in it is returned by a later call. `only`: of one engine, which runs in any case.
        """

    def start(self, number: int) -> AnyEngine:
        """Start an engine that is not running, and return it, empty."""
        self.engines[number] = engine = self.make(self.fleet.engines[number])
        return engine

    def released(self, row: int) -> None:
        """Note that the arrival of a request has become known; it has not been sent to an engine."""

    def stop(self, number: int) -> None:
        """Remove an engine and its requests."""
        self.engines[number], self.next_event_s[number] = None, math.inf

    def submit(self, number: int, row: int, arrival_s: float) -> None:
        """Send a request to a running engine."""
        engine = self.engines[number]
        assert engine is not None  # noqa: S101  # the caller has looked
        engine.submit((row,))
        if arrival_s < self.next_event_s[number]:
            self.next_event_s[number] = arrival_s


Identity = tuple[object, ...]
"""Content of a full KV block: a hash that the workload gives, or the request and position it belongs to."""


@dataclass(eq=False, slots=True)
class Block:
    """A block of KV memory."""

    users: int = 0
    identity: Identity | None = None


class BlockPool:
    """KV blocks with vLLM's prefix cache.

    Free blocks are taken from the front of a queue. Freed blocks without identity go to its front, the others to its
    end, a request's last block first; until a free block is taken, its content can be found by its identity.
    """

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.caching = caching
        self.size = blocks
        self.shared = 0
        self.free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(blocks))
        self._cached: dict[Identity, list[Block]] = {}

    @property
    def used(self) -> int:
        """Blocks that running requests use."""
        return self.size - len(self.free)

    def find(self, identity: Identity) -> Block | None:
        """Return the oldest block with this content."""
        blocks = self._cached.get(identity)
        return blocks[0] if blocks else None

    def use(self, block: Block) -> None:
        """Let one more request use a cached block."""
        if block.users:
            self.shared += 1
        else:
            del self.free[block]
        block.users += 1

    def take(self) -> Block:
        """Take the first free block; its content is evicted."""
        block, _ = self.free.popitem(last=False)
        self.evict(block)
        block.users = 1
        return block

    def cache(self, block: Block, identity: Identity) -> None:
        """Make a full block findable by its content."""
        if self.caching:
            block.identity = identity
            self._cached.setdefault(identity, []).append(block)

    def evict(self, block: Block) -> None:
        """Remove a block from the cache."""
        if block.identity is not None:
            self._cached[block.identity].remove(block)
            block.identity = None

    def give_back(self, blocks: Sequence[Block]) -> None:
        """Free a request's blocks, except those that other requests use."""
        unnamed = []
        for block in reversed(blocks):
            block.users -= 1
            if block.users:
                self.shared -= 1
                continue
            self.free[block] = None
            if block.identity is None:
                unnamed.append(block)
        for block in reversed(unnamed):
            self.free.move_to_end(block, last=False)


@dataclass(eq=False, slots=True)
class Request:
    """A request inside an engine; `job` is what the policy sees of it."""

    job: Job
    row: int
    arrival: float
    output_tokens: int
    predicted_lengths: Sequence[int] = ()
    """For admission, rising: see `policies.admission.predicted_lengths`."""
    transferred_kv_tokens: int = 0
    """Tokens whose KV another engine has sent; 0 after admission."""
    missing_kv_tokens: int = 0
    """Leading ones among them, not sent because they were cached here."""
    started: float = math.nan
    first_token: float = math.nan
    finish: float = math.nan
    initial_cached: int = 0
    """Tokens in the prefix cache when it was first admitted."""
    recomputed: int = 0
    """Tokens computed again after preemptions."""
    computed: int = 0
    """Tokens in KV memory."""
    scheduled: int = 0
    """Tokens to compute in the current step."""
    max_computed: int = 0
    """Most tokens it had in memory when it was preempted."""
    granted: int = 0
    """Answer tokens that its reservation covers, 0 before it has one."""
    blocks: list[Block] = field(default_factory=list)
    named: int = 0
    """Leading blocks that are in the prefix cache."""

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.job.prompt_tokens + self.job.generated


@contextmanager
def policy_calls(policy: Policy) -> Iterator[None]:
    """Call the policy inside: what it raises becomes an InputError. A simulation does not go on under another one."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{type(error).__name__}: {error}",
            source=f"policy '{policy.name}'",
            hint="a policy raises nothing, and its keys are numbers",
        ) from error


class Engine:
    """vLLM's v1 scheduler in virtual time, readable and slow.

    Requests are its own objects. It writes their moments and counts to `traffic.requests`, which engines share.
    """

    def __init__(self, spec: EngineSpec, policy: Policy, traffic: Traffic, *, decision_s: float = 0.0) -> None:
        self.spec, self.policy, self.traffic, self.decision_s = spec, policy, traffic, decision_s
        with policy_calls(policy):
            has_rounds = policy.rounds() is not None
        self.now = 0.0
        self.pool = BlockPool(spec.kv_blocks, caching=spec.prefix_caching)
        self._block_size, self._reserves = spec.block_size, spec.admission == "reserve"
        self._joint = JointAdmission(spec.kv_blocks * spec.block_size, spec.block_size, spec.chosen_quantile)
        self.queue = PolicyQueue(policy, spec.max_num_seqs, on_failure=self._policy_failed)
        self.running: list[Request] = []
        self.settled = 0
        parameters = spec.cost.parameters()
        self._cost = SimpleNamespace(**{name: parameters[name].tolist() for name in parameters.dtype.names})
        self._cost.lines = parameters["lines"]
        self._blocks_per_hash, self._hashes_per_block = block_ratio(spec, traffic.workload)
        self._reports_cached = (
            spec.prefix_caching
            and traffic.workload.has_blocks
            and (policy.rekey in ("on_progress", "on_time") or has_rounds)
        )
        self._arriving: deque[Request] = deque()
        self._unpredicted: deque[Request] = deque()
        self._waiting: dict[str, Request] = {}
        self._refused: set[int] = set()
        self._rate, self._generated = TokenRate(), 0
        self._no_victim_for: Request | None = None  # the head of the queue for which the policy preempts nothing
        self._steps_since_check = 0
        self._rows: list[int] = []
        self._events: list[int] = []  # a row: admitted; -1 - row: finished
        self._reported = 0
        self._steps = self._peak_blocks = 0
        self._busy_s = self._block_seconds = 0.0
        self._samples = np.zeros(MAX_SAMPLES, SAMPLE)
        self._n_samples, self._sample_at, self._sample_every = 0, 0.0, SAMPLE_EVERY_S

    def _policy_failed(self, error: Exception) -> None:
        with policy_calls(self.policy):
            raise error

    def submit(self, rows: Sequence[int] | NDArray[np.integer]) -> None:
        """Send requests, in order of arrival; none arrives before one that was sent earlier."""
        for row in map(int, rows):
            record = self.traffic.requests[row]
            job = self.traffic.job(row)
            job.preemptions = int(record["preemptions"])
            request = Request(job, row, float(record["arrival"]), int(record["output"]))
            request.recomputed = int(record["recomputed"])
            request.transferred_kv_tokens = int(record["transferred_kv_tokens"])
            request.missing_kv_tokens = int(record["missing_kv_tokens"])
            if self.spec.admission in ("peak", "reserve"):
                request.predicted_lengths = self.traffic.predicted_length[row].tolist()
            self.enqueue(request)

    def enqueue(self, request: Request) -> None:
        """Send one request."""
        self._rows.append(request.row)
        self._arriving.append(request)

    def abort(self, request: Request) -> None:
        """Remove a request that has not finished, wherever it is; called between steps."""
        if request in self.running:
            self._release(request)
        elif self._waiting.pop(request.job.id, None) is not None:
            self.queue.remove(request.job.id)
            self._no_victim_for = None
        elif request in self._arriving:
            self._arriving.remove(request)
        else:
            return
        self.settled += 1

    def advance(self, until: float = math.inf, *, settle: int | None = None) -> bool:
        """Run every step that begins before `until`, or until `settle` more requests are settled."""
        pause_at = math.inf if settle is None else self.settled + settle
        while self.settled < pause_at:
            if not self.running and not self._waiting:
                if not self._arriving or self._arriving[0].arrival >= until:
                    return True
                self.now = max(self.now, self._arriving[0].arrival)
            if self.now >= until:
                return True
            self._receive()
            self._sample()
            if self.running or self._waiting:
                self.step()
        return False

    def step(self) -> None:
        """Run one step of the scheduler."""
        decisions = self._preempt_for_head() if self.policy.preempts else 0
        budget, preempted = self._schedule_running()
        if not preempted:
            decisions += self._admit(budget)
        self._compute(decisions + preempted)

    # -- arrivals and predictions

    def _receive(self) -> None:
        """Process arrivals and late predictions up to now, in the order of their times."""
        while True:
            arrival = self._arriving[0].arrival if self._arriving else math.inf
            due = self._unpredicted[0].arrival + self.traffic.jobs.delay_s if self._unpredicted else math.inf
            if min(arrival, due) > self.now:
                return
            if due < arrival:
                self._receive_prediction(self._unpredicted.popleft())
                continue
            request = self._arriving.popleft()
            if self.traffic.jobs.late is not None:
                self._unpredicted.append(request)
            if self.spec.can_hold(request.job.prompt_tokens, request.output_tokens):
                self._wait(request)
            else:
                self._refused.add(request.row)
                self.settled += 1

    def _receive_prediction(self, request: Request) -> None:
        self.traffic.jobs.set_prediction(request.job, request.row, stage=-1)
        if request.job.id in self._waiting:
            self.queue.update(request.job, self.now)
        self._no_victim_for = None

    def _wait(self, request: Request) -> None:
        request.job.cached_tokens = len(self._hits(request)) * self.spec.block_size if self._reports_cached else 0
        self._waiting[request.job.id] = request
        self.queue.running = len(self.running)
        self.queue.push(request.job, self.now, front=request.job.preemptions > 0)

    def _head(self) -> Request | None:
        self.queue.running = len(self.running)
        job = self.queue.peek(self.now)
        return None if job is None else self._waiting[job.id]

    # -- the parts of a step

    def _preempt_for_head(self) -> int:
        """Preempt running requests while the head of the queue cannot be admitted and the policy names a victim."""
        preempted = 0
        while self.running and (head := self._head()) is not None:
            if len(self.running) < self.spec.max_num_seqs and self._fits(head):
                break
            interval = self.policy.preempt_check_interval
            if head is self._no_victim_for and (interval == 0 or self._steps_since_check < interval):
                break
            with policy_calls(self.policy):
                victim = self.policy.find_victim(self._columns(), JobColumns.of([head.job]), self.now)
            if victim is None:
                self._no_victim_for, self._steps_since_check = head, 0
                break
            self._preempt(self.running[victim])
            preempted += 1
        return preempted

    def _schedule_running(self) -> tuple[int, int]:
        """Schedule running requests in order of admission; return the token budget left and how many were preempted."""
        budget, preempted, index = self.spec.max_num_batched_tokens, 0, 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.tokens - request.computed, budget)
            while True:
                if (
                    self._reserves
                    and len(self.running) > 1
                    and self._exceeds_reservation(request, request.computed + tokens)
                ):
                    victim = request
                elif self._allocate(request, request.computed + tokens):
                    request.scheduled = tokens
                    budget -= tokens
                    index += 1
                    break
                else:
                    with policy_calls(self.policy):
                        scores = self.policy.eviction_scores(self._columns(), self.now)
                    victim = self.running[last_of_largest(scores)]
                index -= self.running.index(victim) < index
                budget += victim.scheduled
                self._preempt(victim)
                preempted += 1
                if victim is request:
                    break
        return budget, preempted

    def _admit(self, budget: int) -> int:
        """Admit waiting requests in order until budget, slots or memory run out; none is overtaken."""
        admitted = 0
        while budget > 0 and len(self.running) < self.spec.max_num_seqs and (request := self._head()) is not None:
            if not self._fits(request):
                break
            hits = self._hits(request)
            computed = self._computed_on_admission(request, len(hits))
            if not self.spec.chunked_prefill and request.tokens - computed > budget:
                break  # as in vLLM: a prompt that is not split waits for a step that holds all of it
            self.queue.pop(self.now)
            del self._waiting[request.job.id]
            self._start(request, hits, computed, budget)
            budget -= request.scheduled
            admitted += 1
        return admitted

    def _start(self, request: Request, hits: list[Block], computed: int, budget: int) -> None:
        for block in hits:
            self.pool.use(block)
        request.blocks, request.named = list(hits), len(hits)
        request.computed = request.job.cached_tokens = computed
        request.transferred_kv_tokens = 0
        request.scheduled = min(request.tokens - computed, budget)
        self.running.append(request)
        self._allocate(request, computed + request.scheduled)
        request.recomputed += max(0, request.max_computed - computed)
        if math.isnan(request.started):
            request.started, request.initial_cached = self.now, computed
        self._write(request)
        self._events.append(request.row)
        self._no_victim_for = None

    def _compute(self, decisions: int) -> None:
        """Compute all scheduled tokens and let time pass."""
        prefill = prefill_context = decodes = context = batch = 0
        chunks = 0.0
        for request in self.running:
            if not request.scheduled:
                continue
            begin, end = request.computed, request.computed + request.scheduled
            batch += 1
            if request.scheduled == 1 and begin:
                decodes += 1
                context += end
            else:
                prefill += request.scheduled
                prefill_context += end
                chunks += chunk_cost(self._cost, begin, end)
            request.computed = end
        shared = self.pool.shared * self.spec.block_size
        took = step_s(self._cost, prefill, prefill_context, chunks, decodes, context, shared, batch)
        took += self.decision_s * decisions
        self.now += took
        self._busy_s += took
        self._block_seconds += took * self.pool.used
        self._steps += 1
        self._steps_since_check += 1
        settled = self.settled
        for request in list(self.running):
            if request.scheduled:
                request.scheduled = 0
                if request.computed == request.tokens:
                    self._generate(request)
        if self.settled > settled:
            self._rate.observe(self.now, self._generated, waiting=bool(self._waiting))
            self.queue.tokens_per_s = self._rate.per_s

    def _generate(self, request: Request) -> None:
        request.job.generated += 1
        self._generated += 1
        if math.isnan(request.first_token):
            request.first_token = self.now
        if request.job.generated == request.output_tokens:
            request.finish = self.now
            self._write(request)
            self._release(request)
            self._events.append(-1 - request.row)
            self.settled += 1
            self.queue.finished(request.job)

    def _preempt(self, victim: Request) -> None:
        """Take a running request's memory; its tokens so far are computed again as part of its prompt."""
        for block in victim.blocks[victim.computed // self.spec.block_size : victim.named]:
            self.pool.evict(block)  # its step does not run, so the block is not computed
        self._release(victim)
        victim.max_computed = max(victim.max_computed, victim.computed)
        victim.computed = victim.scheduled = 0
        victim.job.preemptions += 1
        self._write(victim)
        self._wait(victim)

    def _write(self, request: Request) -> None:
        """Write what the rest of the simulation reads of a request: when it is admitted, preempted and finished."""
        record = self.traffic.requests[request.row]
        for name in ("started", "first_token", "finish", "initial_cached", "recomputed"):
            record[name] = getattr(request, name)
        record["generated"], record["preemptions"] = request.job.generated, request.job.preemptions

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.give_back(request.blocks)
        request.blocks, request.named = [], 0
        self._no_victim_for = None

    def _columns(self) -> JobColumns:
        return JobColumns.of(request.job for request in self.running)

    # -- KV memory and admission

    def _blocks_for(self, tokens: int) -> int:
        return blocks_for(tokens, self._block_size)

    def _identity(self, request: Request, position: int) -> Identity:
        """Content of the full block at a position of a request."""
        if self._blocks_per_hash:
            which, part = divmod(position, self._blocks_per_hash)
        else:
            which, part = (position + 1) * self._hashes_per_block - 1, 0
        # The last hash of a trace may stand for a block that is not full.
        hashes = request.job.blocks
        if which < len(hashes) and (position + 1) * self.spec.block_size <= request.job.prompt_tokens:
            return "prefix", int(hashes[which]), part
        return "request", request.row, position

    def _hits(self, request: Request) -> list[Block]:
        """Leading blocks that are in the prefix cache; at least the last token is left to compute."""
        hits: list[Block] = []
        while self.pool.caching and len(hits) < (request.tokens - 1) // self.spec.block_size:
            block = self.pool.find(self._identity(request, len(hits)))
            if block is None:
                break
            hits.append(block)
        return hits

    def _computed_on_admission(self, request: Request, hits: int) -> int:
        """Tokens that need not be computed: cached ones, or those whose KV another engine has sent.

        Leading tokens that were not sent, because they were cached here, must not have been evicted since.
        """
        cached = hits * self.spec.block_size
        return max(cached, request.transferred_kv_tokens) if cached >= request.missing_kv_tokens else cached

    def _allocate(self, request: Request, tokens: int) -> bool:
        """Take blocks so that a running request can hold `tokens`; False where too few are free."""
        full = tokens // self._block_size
        if full == request.named and tokens <= len(request.blocks) * self._block_size:
            return True  # as for most tokens: the last block has room
        missing = self._blocks_for(tokens) - len(request.blocks)
        if missing > len(self.pool.free):
            return False
        request.blocks += [self.pool.take() for _ in range(missing)]
        self._peak_blocks = max(self._peak_blocks, self.pool.used)
        # Full blocks can be used by others from now on, though they are computed at the end of this step: as in vLLM.
        for position in range(request.named, full):
            self.pool.cache(request.blocks[position], self._identity(request, position))
            request.named = position + 1
        return True

    def _fits(self, request: Request) -> bool:
        """Whether KV memory admits a request now, by the engine's admission rule."""
        hits = self._hits(request)
        need = self._blocks_for(request.tokens) - len(hits) + sum(block.users == 0 for block in hits)
        if need > len(self.pool.free):
            return False
        if not self.running or self.spec.admission == "prompt":
            return True
        if self.spec.admission == "peak":
            demands = map(self._demand, [*self.running, request])
            return peak_kv_tokens(demands, self.spec.block_size) <= self.pool.size * self.spec.block_size
        if self.spec.admission == "joint":
            jobs = [each.job for each in self.running]
            return self._joint.admits(request.job, jobs, [job.generated for job in jobs])
        return sum(map(self._reservation, [*self.running, request])) <= self.pool.size

    def _demand(self, request: Request) -> KvDemand:
        return KvDemand(request.tokens, predicted_remaining(request.predicted_lengths, request.job.generated))

    def _reservation(self, request: Request) -> int:
        """Blocks for the prompt and the granted answer."""
        request.granted = request.granted or request.predicted_lengths[0]
        return reserved_blocks(request.job.prompt_tokens, request.granted, self.spec.block_size, self.pool.size)

    def _exceeds_reservation(self, request: Request, tokens: int) -> bool:
        """Whether a request outgrows its reservation; it is then preempted and granted twice as much (S3)."""
        if self._blocks_for(tokens) <= self._reservation(request):
            return False
        request.granted *= 2
        return True

    # -- what it reports

    @property
    def next_event_s(self) -> float:
        """A time before which nothing is admitted or finished: a finish to be reported, or the begin of a step."""
        if self._reported < len(self._events):
            return float(self.traffic.requests["finish"][-1 - self._events[self._reported]])
        if self.running or self._waiting:
            return self.now
        return max(self.now, self._arriving[0].arrival) if self._arriving else math.inf

    def cached_tokens(self, row: int) -> int:
        """Tokens of a request's prompt that are in the prefix cache now."""
        job = self.traffic.job(row)
        job.generated = 1
        return len(self._hits(Request(job, row, 0.0, 0))) * self.spec.block_size

    def happened(self, until: float) -> list[tuple[int, bool]]:
        """Return new events up to a time: (row, False) for an admission, (row, True) for a finish."""
        found = []
        for event in self._events[self._reported :]:
            row, finished = (-1 - event, True) if event < 0 else (event, False)
            if finished and self.traffic.requests["finish"][row] > until:
                break
            found.append((row, finished))
        self._reported += len(found)
        return found

    def unfinished(self, by: float) -> NDArray[np.int64]:
        """Rows sent here that have not finished by a time; refused ones are left out."""
        finish = self.traffic.requests["finish"]
        return np.array([row for row in self._rows if row not in self._refused and not finish[row] <= by], np.int64)

    def outcome(self) -> EngineOutcome:
        """Return what this engine has done so far."""
        samples, blocks = self._samples[: self._n_samples], self.pool.size
        return EngineOutcome(
            steps=self._steps,
            busy_s=self._busy_s,
            kv_mean=self._block_seconds / (self._busy_s * blocks) if self._busy_s else 0.0,
            kv_peak=self._peak_blocks / blocks,
            admissions=np.array([event for event in self._events if event >= 0], np.int32),
            timeline=Timeline.of(samples, blocks),
        )

    def _sample(self) -> None:
        """Record how full the engine is; when the samples are full, keep every other one and sample half as often."""
        if self.now < self._sample_at:
            return
        if self._n_samples == len(self._samples):
            self._n_samples //= 2
            self._sample_every *= 2
            self._samples[: self._n_samples] = self._samples[::2].copy()
        self._samples[self._n_samples] = (self.now, len(self._waiting), len(self.running), self.pool.used)
        self._n_samples += 1
        self._sample_at = self.now + self._sample_every


class ReadableGroup(FleetEngines[Engine]):
    """Readable engines; one is asked what happened as soon as its next step begins."""

    def __init__(self, fleet: Fleet, policy: Policy, traffic: Traffic, *, decision_s: float = 0.0) -> None:
        super().__init__(fleet)
        self._policy, self._traffic, self._decision_s = policy, traffic, decision_s

    def make(self, spec: EngineSpec) -> Engine:
        """Return an empty engine."""
        return Engine(spec, self._policy, self._traffic, decision_s=self._decision_s)

    def happened(self, until: float, only: int | None = None) -> list[EngineEvent]:
        """Return new events up to a time, in the order of the fleet; `only`: of one engine."""
        numbers = np.flatnonzero(self.next_event_s <= until).tolist() if only is None else [only]
        return [event for number in numbers for event in self._happened_on(number, until)]

    def _happened_on(self, number: int, until: float) -> Iterator[EngineEvent]:
        engine = self.engines[number]
        assert engine is not None  # noqa: S101  # an engine that is not running has no next event
        engine.advance(until)
        for row, finished in engine.happened(until):
            request = self._traffic.requests[row]
            at_s = float(request["finish"] if finished else request["started"])
            ttft_s = float(request["first_token"] - request["arrival"])
            yield EngineEvent(number, row, finished, at_s, int(request["generated"]), ttft_s)
        self.next_event_s[number] = engine.next_event_s
