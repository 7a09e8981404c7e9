"""One engine, step by step, with the semantics of vLLM's v1 scheduler.

A step: who runs goes first, in order of admission; then who waits is admitted in the policy's order, as far as
the token budget, max_num_seqs and KV memory reach. It knows no arrivals process, router or wall clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lengthwise.policies import Job, Policy, PolicyQueue
from lengthwise.simulator.kv import KvBlocks

if TYPE_CHECKING:
    from lengthwise.simulator.fleet import EngineSpec
    from lengthwise.simulator.outcome import Ledger


@dataclass(slots=True, eq=False)
class Request:
    """A job inside the engine. Its true length is the engine's secret: no policy sees it."""

    job: Job
    row: int
    output_tokens: int
    computed: int = 0
    blocks: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and answer so far; what is not computed yet is to be."""
        return self.job.prompt_tokens + self.job.generated


@dataclass(slots=True)
class Step:
    """What one step did: tokens computed per request in order of scheduling, who came, who had to go."""

    start: float
    end: float = math.nan
    scheduled: dict[Request, int] = field(default_factory=dict)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(self.scheduled.values())


class Engine:
    """Continuous batching with chunked prefill and preemption by recompute.

    `now` is when the next step may begin. The ledger is told what happens to each request.
    """

    def __init__(self, spec: EngineSpec, policy: Policy, ledger: Ledger, number: int = 0) -> None:
        self.spec = spec
        self.policy = policy
        self.number = number
        self.now = 0.0
        self.kv = KvBlocks(spec.kv_blocks, spec.block_size)
        self.running: list[Request] = []
        self.waiting = PolicyQueue(policy, slots=spec.max_num_seqs)
        self._ledger = ledger
        self._requests: dict[str, Request] = {}
        self._decoding = False  # everybody running computes one token a step
        self._head_stuck = False  # the first in line finds no memory, and only an arrival or a finish can help

    @property
    def busy(self) -> bool:
        """Whether anybody runs or waits."""
        return bool(self._requests)

    def submit(self, job: Job, row: int, output_tokens: int) -> None:
        """Let a job wait from its arrival on, or refuse it if it can never fit. Call `advance` first."""
        self.now = max(self.now, job.arrival)
        self._ledger.arrived(row, self.number)
        if not self.spec.can_hold(job.prompt_tokens, output_tokens):
            self._ledger.refuse(row)
            return
        self._requests[job.id] = Request(job, row, output_tokens)
        self._wait(job, job.arrival)

    def advance(self, until: float, *, jump: bool = True) -> None:
        """Run every step that begins before `until`. `jump` changes how fast that goes, never the outcome."""
        while self._requests and self.now < until:
            if not (jump and self._jump(until)):
                self.step()

    def step(self) -> Step:
        """Schedule and execute one step; somebody must run or wait."""
        step = Step(self.now)
        budget = self._schedule_running(step)
        if not step.preempted:
            self._admit(step, budget)
        self._execute(step)
        step.end = self.now
        return step

    def _schedule_running(self, step: Step) -> int:
        """Give each running request its tokens; where memory runs out, victims yield. Returns budget left."""
        budget = self.spec.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.tokens - request.computed, budget)
            while not self._grow(request, request.computed + tokens):
                victim = self._victim()
                position = self.running.index(victim)
                del self.running[position]
                budget += step.scheduled.pop(victim, 0)
                self._preempt(victim, step)
                if victim is request:
                    break
                index -= position < index
            else:
                step.scheduled[request] = tokens
                budget -= tokens
                index += 1
        return budget

    def _admit(self, step: Step, budget: int) -> None:
        """Admit in the policy's order until budget, slots or memory end; nobody overtakes who does not fit."""
        while budget > 0 and len(self.running) < self.spec.max_num_seqs:
            self.waiting.running = len(self.running)
            job = self.waiting.peek(self.now)
            if job is None:
                return
            request = self._requests[job.id]
            # The whole prompt must fit now, though blocks are taken chunk by chunk (scheduler_reserve_full_isl).
            if self.kv.needed(request.tokens) > self.kv.free:
                self._head_stuck = self.policy.rekey != "on_time"
                return
            self.waiting.pop(self.now)
            tokens = min(request.tokens, budget)
            self._grow(request, tokens)
            self.running.append(request)
            step.scheduled[request] = tokens
            step.admitted.append(request)
            budget -= tokens
            if job.started is None:
                job.started = self.now
            self._ledger.admit(request.row, self.number, self.now)

    def _execute(self, step: Step) -> None:
        """Compute the scheduled tokens; whoever has caught up with its own tokens gets a new one."""
        prefill = pairs = decodes = kv_tokens = 0
        for request, tokens in step.scheduled.items():
            begin = request.computed
            request.computed = end = begin + tokens
            if tokens == 1 and begin:
                decodes += 1
                kv_tokens += end
            else:
                prefill += tokens
                pairs += end * end - begin * begin
        self.now += self.spec.cost.step_s(prefill, pairs, decodes, kv_tokens)
        self._decoding = len(step.scheduled) == len(self.running)
        for request in step.scheduled:
            if request.computed == request.tokens:
                self._generate(request)
            else:
                self._decoding = False

    def _generate(self, request: Request) -> None:
        job = request.job
        job.generated += 1
        if job.generated == 1:
            self._ledger.first_token[request.row] = self.now
        if job.generated == request.output_tokens:
            self.kv.give_back(request.blocks)
            self.running.remove(request)
            del self._requests[job.id]
            self._head_stuck = False
            self._ledger.complete(request.row, self.now)

    def _grow(self, request: Request, tokens: int) -> bool:
        """Hold blocks for so many tokens; False where memory does not suffice."""
        more = self.kv.needed(tokens) - request.blocks
        if more > 0:
            if not self.kv.take(more):
                return False
            request.blocks += more
        return True

    def _wait(self, job: Job, now: float, *, front: bool = False) -> None:
        self.waiting.running = len(self.running)
        self.waiting.push(job, now, front=front)
        self._head_stuck = False

    def _victim(self) -> Request:
        job = self.policy.victim([request.job for request in self.running], None, self.now)
        if job is None:  # the contract: when memory is short, somebody yields
            raise RuntimeError(f"policy {self.policy.name} names no victim though memory has run out")
        return self._requests[job.id]

    def _preempt(self, victim: Request, step: Step) -> None:
        """Take the memory; what was generated is kept, and computed again as part of the prompt."""
        self.kv.give_back(victim.blocks)
        victim.blocks = victim.computed = 0
        step.preempted.append(victim)
        self._decoding = False
        self._ledger.preemptions[victim.row] += 1
        self._wait(victim.job, self.now, front=True)

    def _jump(self, until: float) -> bool:
        """Run decode steps in which nobody comes, finishes or finds memory short; False if there is none."""
        batch = len(self.running)
        nobody_comes = not len(self.waiting) or batch == self.spec.max_num_seqs or self._head_stuck
        if not (self._decoding and batch and nobody_comes):
            return False
        steps = min(request.output_tokens - request.job.generated for request in self.running) - 1
        # A sequence takes at most one block in as many steps as a block has tokens.
        steps = min(steps, self.kv.free // batch * self.spec.block_size)
        kv_tokens = sum(request.computed for request in self.running) + batch
        self.now, done = self.spec.cost.decode_run(self.now, until, steps, batch, kv_tokens)
        for request in self.running:
            request.computed += done
            request.job.generated += done
            self._grow(request, request.computed)
        return done > 0
