"""The engine written plainly: one step after the other, objects and lists, no thought of speed.

What the compiled engine must agree with to the last bit. It keeps vLLM's blocks by name, asks the policy about jobs one
by one or in plain columns, and sorts whoever waits anew at every look.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lengthwise.policies import Job, JobColumns, Policy, QueueView
from lengthwise.simulator import EngineSpec
from lengthwise.simulator.jobs import Jobs
from lengthwise.simulator.kernel.steptime import chunk_cost, step_s
from lengthwise.simulator.traffic import Traffic

Identity = tuple[object, ...]


@dataclass(eq=False)
class Block:
    users: int = 0
    identity: Identity | None = None


class Memory:
    """Blocks by name, free ones in the order in which they will be taken."""

    def __init__(self, blocks: int, *, caching: bool) -> None:
        self.caching = caching
        self.free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(blocks))
        self.cache: dict[Identity, list[Block]] = {}

    def find(self, identity: Identity) -> Block | None:
        return self.cache[identity][0] if self.caching and self.cache.get(identity) else None

    def touch(self, block: Block) -> None:
        self.free.pop(block, None)
        block.users += 1

    def take(self) -> Block:
        block, _ = self.free.popitem(last=False)
        self.forget(block)
        block.users = 1
        return block

    def name(self, block: Block, identity: Identity) -> None:
        if self.caching:
            block.identity = identity
            self.cache.setdefault(identity, []).append(block)

    def forget(self, block: Block) -> None:
        if block.identity is not None:
            self.cache[block.identity].remove(block)
            block.identity = None

    def give_back(self, blocks: Sequence[Block]) -> None:
        nameless = []
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self.free[block] = None
                if block.identity is None:
                    nameless.append(block)
        for block in reversed(nameless):
            self.free.move_to_end(block, last=False)


@dataclass(eq=False)
class Request:
    job: Job
    row: int
    output_tokens: int
    turn: int = 0
    computed: int = 0
    scheduled: int = 0
    allotted: int = 0
    blocks: list[Block] = field(default_factory=list)
    named: int = 0
    preemptions: int = 0
    reached: int = 0
    recomputed: int = 0
    started: float = math.nan
    first_token: float = math.nan
    finish: float = math.nan
    cached: int = 0
    predicted: bool = True

    @property
    def tokens(self) -> int:
        return self.job.prompt_tokens + self.job.generated


class ReferenceEngine:
    """vLLM's v1 scheduler in virtual time."""

    def __init__(
        self, spec: EngineSpec, policy: Policy, traffic: Traffic, rows: Sequence[int], *, decision_s: float = 0.0
    ) -> None:
        self.spec, self.policy, self.traffic, self.decision_s = spec, policy, traffic, decision_s
        self.cost = spec.cost.parameters()
        self.memory = Memory(spec.kv_blocks, caching=spec.prefix_caching)
        self.now = 0.0
        self.turns = 0
        self.arriving = [self._request(row) for row in rows]
        self.coming = list(self.arriving)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.admissions: list[int] = []
        self.refused: list[int] = []
        self.rounds = policy.rounds(lambda: spec.max_num_seqs)
        self.keys: dict[int, float] = {}
        self.keyed_at = -math.inf
        self.nobody: tuple[object, ...] = ()  # the question to which the policy said that nobody yields
        self.steps_since = 0

    # -- what is known about requests

    def _request(self, row: int) -> Request:
        given = self.traffic.requests[row]
        job = Job(str(row), float(given["arrival"]), int(given["prompt"]), priority=int(given["priority"]))
        job.tenant = self.traffic.workload.table["tenant"][row].as_py()
        request = Request(job, row, int(given["output"]), predicted=self.traffic.jobs.late is None)
        _predict(request, self.traffic.jobs)
        return request

    def _identity(self, request: Request, position: int) -> Identity:
        """Content of the block at a position: the workload's hash and which part of it, or the request's own."""
        theirs, ours = self.traffic.workload.block_size, self.spec.block_size
        if theirs is not None and (position + 1) * ours <= request.job.prompt_tokens:
            hashes = self.traffic.workload.blocks(request.row)
            last = (position + 1) * ours - 1
            which = last // theirs if theirs >= ours else (last + 1) // theirs - 1
            if which < len(hashes):
                return "shared", int(hashes[which]), position * ours % theirs
        return "own", request.row, position

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self.spec.block_size)

    # -- the loop

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, self.coming[0].job.arrival)
            self._take_in()
            if self.waiting or self.running:
                before = self.now
                self.step()
                assert self.now > before
                self._check()

    def _check(self) -> None:
        """What holds after every step: no block is lost, none is both held and free, no limit is passed."""
        held = {block for one in self.running for block in one.blocks}
        assert len(held) + len(self.memory.free) == self.spec.kv_blocks
        assert all(block.users == 0 for block in self.memory.free)
        assert len(self.running) <= self.spec.max_num_seqs
        for one in self.running:
            assert len(one.blocks) == self._needed(one.computed)
            assert one.computed <= one.tokens
            assert one.job.generated < one.output_tokens

    def _take_in(self) -> None:
        """Requests and predictions that have come by now, in the order in which they came."""
        while True:
            unknown = [one for one in self.arriving if not one.predicted and one not in self.coming]
            arrival = self.coming[0].job.arrival if self.coming else math.inf
            prediction = unknown[0].job.arrival + self.traffic.jobs.delay_s if unknown else math.inf
            if min(arrival, prediction) > self.now:
                return
            if prediction < arrival:
                self._learn(unknown[0])
            elif self.spec.can_hold(self.coming[0].job.prompt_tokens, self.coming[0].output_tokens):
                self._wait(self.coming.pop(0))
            else:
                self.refused.append(self.coming.pop(0).row)

    def _learn(self, request: Request) -> None:
        request.predicted = True
        before = request.job.median
        _predict(request, self.traffic.jobs)
        if self.rounds is not None and request in self.waiting:
            request.job.in_round = self.rounds.changed(request.job, request.job.in_round, before)

    def _wait(self, request: Request) -> None:
        self.turns += 1
        request.turn = -self.turns if request.preemptions else self.turns
        request.job.cached_tokens = len(self._hits(request)) * self.spec.block_size if self._tells_cached else 0
        if self.rounds is not None and not request.preemptions:
            request.job.in_round = self.rounds.enter(request.job)
        self.waiting.append(request)
        self.keyed_at = -math.inf

    @property
    def _tells_cached(self) -> bool:
        known = self.spec.prefix_caching and self.traffic.workload.has_blocks
        return known and (self.policy.rekey in ("on_progress", "on_time") or self.rounds is not None)

    @property
    def _view(self) -> QueueView:
        return QueueView(len(self.waiting), len(self.running), self.spec.max_num_seqs)

    def head(self) -> Request | None:
        """The first in line by today's keys: priority, round, key, order of coming.

        Keys that go stale with time are made once for a moment, and again if somebody has come since.
        """
        if not self.waiting:
            return None
        if self.policy.rekey != "on_time" or self.now > self.keyed_at:
            keys = self.policy.keys(JobColumns.of(one.job for one in self.waiting), self._view, self.now)
            self.keys = dict(zip((one.row for one in self.waiting), keys.tolist(), strict=True))
            self.keyed_at = self.now
        return min(self.waiting, key=lambda one: (one.job.priority, one.job.in_round, self.keys[one.row], one.turn))

    def step(self) -> None:
        decisions = self._make_room() if self.policy.preempts else 0
        budget, yielded = self._go_on()
        if not yielded:
            decisions += self._admit(budget)
        self._compute(decisions + yielded)

    def _make_room(self) -> int:
        """Let running ones yield to the first in line while it cannot be admitted and the policy names somebody."""
        yielded = 0
        while self.running and (head := self.head()) is not None:
            if len(self.running) < self.spec.max_num_seqs and self._fits(head):
                break
            predictions = sum(one.predicted for one in self.arriving)
            question = (head.row, *(one.row for one in self.running), predictions)
            again = self.policy.preempt_check_interval
            if question == self.nobody and (again == 0 or self.steps_since < again):
                break
            columns = JobColumns.of(one.job for one in self.running)
            index = self.policy.find_victim(columns, JobColumns.of([head.job]), self.now)
            if index is None:
                self.nobody, self.steps_since = question, 0
                break
            self._preempt(self.running[index])
            yielded += 1
        return yielded

    def _go_on(self) -> tuple[int, int]:
        budget, yielded, index = self.spec.max_num_batched_tokens, 0, 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.tokens - request.computed, budget)
            while True:
                if len(self.running) > 1 and self._overdrawn(request, request.computed + tokens):
                    victim = request
                elif self._grow(request, request.computed + tokens):
                    request.scheduled = tokens
                    budget -= tokens
                    index += 1
                    break
                else:
                    readiness = self.policy.eviction_scores(JobColumns.of(one.job for one in self.running), self.now)
                    victim = max(enumerate(self.running), key=lambda one: (readiness[one[0]], one[0]))[1]
                position = self.running.index(victim)
                index -= position < index
                budget += victim.scheduled
                self._preempt(victim)
                yielded += 1
                if victim is request:
                    break
        return budget, yielded

    def _admit(self, budget: int) -> int:
        admitted = 0
        while budget > 0 and len(self.running) < self.spec.max_num_seqs and (request := self.head()) is not None:
            if not self._fits(request):
                break
            hits = self._hits(request)
            if not self.spec.chunked_prefill and request.tokens - len(hits) * self.spec.block_size > budget:
                break
            self.waiting.remove(request)
            for block in hits:
                self.memory.touch(block)
            request.blocks, request.named = list(hits), len(hits)
            request.computed = request.job.cached_tokens = len(hits) * self.spec.block_size
            request.recomputed += max(0, request.reached - request.computed)
            request.scheduled = min(request.tokens - request.computed, budget)
            self.running.append(request)
            assert self._grow(request, request.computed + request.scheduled)
            budget -= request.scheduled
            admitted += 1
            if math.isnan(request.started):
                request.started, request.cached = self.now, request.computed
            self.admissions.append(request.row)
            if self.rounds is not None:
                self.rounds.admitted(request.job.in_round)
        return admitted

    def _compute(self, decisions: int) -> None:
        assert 0 < sum(one.scheduled for one in self.running) <= self.spec.max_num_batched_tokens
        prefill = prefill_context = decodes = context = batch = 0
        chunks = 0.0
        used = [block for one in self.running for block in one.blocks]
        shared = (len(used) - len(set(used))) * self.spec.block_size
        for one in self.running:
            if not one.scheduled:
                continue
            begin, end = one.computed, one.computed + one.scheduled
            batch += 1
            if one.scheduled == 1 and begin:
                decodes += 1
                context += end
            else:
                prefill += one.scheduled
                prefill_context += end
                chunks += chunk_cost(self.cost, begin, end)
            one.computed = end
        took = step_s(self.cost, prefill, prefill_context, chunks, decodes, context, shared, batch)
        self.now += took + self.decision_s * decisions
        self.steps_since += 1
        for one in list(self.running):
            scheduled, one.scheduled = one.scheduled, 0
            if scheduled and one.computed == one.tokens:
                self._generate(one)

    def _generate(self, request: Request) -> None:
        request.job.generated += 1
        if math.isnan(request.first_token):
            request.first_token = self.now
        if request.job.generated == request.output_tokens:
            request.finish = self.now
            self._free(request)
            self.running.remove(request)
            if self.rounds is not None:
                self.rounds.finished(request.job)

    def _preempt(self, victim: Request) -> None:
        self.running.remove(victim)
        for block in victim.blocks[victim.computed // self.spec.block_size : victim.named]:
            self.memory.forget(block)  # its step was called off, so it is not computed
        self._free(victim)
        victim.reached = max(victim.reached, victim.computed)
        victim.computed = victim.scheduled = 0
        victim.preemptions += 1
        victim.job.preemptions += 1
        self._wait(victim)

    # -- memory

    def _free(self, request: Request) -> None:
        self.memory.give_back(request.blocks)
        request.blocks, request.named = [], 0

    def _grow(self, request: Request, tokens: int) -> bool:
        more = self._needed(tokens) - len(request.blocks)
        if more > len(self.memory.free):
            return False
        request.blocks += [self.memory.take() for _ in range(more)]
        for position in range(request.named, tokens // self.spec.block_size):
            self.memory.name(request.blocks[position], self._identity(request, position))
            request.named = position + 1
        return True

    def _hits(self, request: Request) -> list[Block]:
        hits: list[Block] = []
        while len(hits) < (request.tokens - 1) // self.spec.block_size:
            block = self.memory.find(self._identity(request, len(hits)))
            if block is None:
                break
            hits.append(block)
        return hits

    def _fits(self, request: Request) -> bool:
        hits = self._hits(request)
        need = self._needed(request.tokens) - len(hits) + sum(block.users == 0 for block in hits)
        if need > len(self.memory.free):
            return False
        if not self.running or self.spec.admission == "prompt":
            return True
        if self.spec.admission == "peak":
            return self._peak(request) <= self.spec.kv_blocks * self.spec.block_size
        return sum(map(self._reservation, [*self.running, request])) <= self.spec.kv_blocks

    def _peak(self, request: Request) -> int:
        """Play it forward: everybody generates until its predicted end, then gives back what it holds."""
        partly = self.spec.block_size - 1  # the last block of each may hold one token only
        everybody = [(self._predicted_left(one), one.tokens + partly) for one in (*self.running, request)]
        return max(
            sum(held + steps for left, held in everybody if left >= steps) for steps in {left for left, _ in everybody}
        )

    def _predicted_left(self, request: Request) -> int:
        rungs = self.traffic.predicted_length[request.row].tolist()
        return next((rung - request.job.generated for rung in rungs if rung > request.job.generated), 1)

    def _reservation(self, request: Request) -> int:
        request.allotted = request.allotted or int(self.traffic.predicted_length[request.row][0])
        return min(self._needed(request.job.prompt_tokens + request.allotted - 1), self.spec.kv_blocks)

    def _overdrawn(self, request: Request, tokens: int) -> bool:
        if self.spec.admission != "reserve" or self._needed(tokens) <= self._reservation(request):
            return False
        request.allotted *= 2
        return True


def _predict(request: Request, jobs: Jobs) -> None:
    """Let the job say what the columns say."""
    columns = jobs.stages[-1 if request.predicted else 0]
    names = ("expected", "tail", "mu", "sigma", "cap", "initial_expected")
    request.job.told(**{name: float(getattr(columns, name)[request.row]) for name in names})
