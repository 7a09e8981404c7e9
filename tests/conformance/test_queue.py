"""PolicyQueue against a list that is sorted at every step, under every policy."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lengthwise.policies import Job, PolicyQueue, make_policy, selects
from tests.conformance.strategies import jobs, specs
from tests.lengths.strategies import predictions


class QueueAgainstAList(RuleBasedStateMachine):
    """Push, pop, abort, preempt, predict, change the policy: no job is lost, served twice or out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PolicyQueue(make_policy("fcfs"), slots=1)
        self.model: list[Job] = []  # in order of arrival; preempted jobs first
        self.taken: list[Job] = []
        self.now = 0.0
        self.count = 0

    @initialize(spec=specs)
    def start(self, spec: str) -> None:
        self.queue = PolicyQueue(make_policy(spec), slots=1)

    def _order(self) -> list[Job]:
        policy, view = self.queue.policy, self.queue.view
        return sorted(self.model, key=lambda job: (job.priority, job.round_number, policy.key(job, view, self.now)))

    @rule(job=jobs(), wait=st.floats(0, 10))
    def push(self, job: Job, wait: float) -> None:
        self.now += wait
        self.queue.tokens_per_s = float(wait * 100)
        job.id, job.arrival, job.round_number = str(self.count), self.now, 0
        self.count += 1
        self.queue.push(job, self.now)
        self.model.append(job)

    @rule()
    def pop(self) -> None:
        expected, first = self._order(), self.queue.peek(self.now)
        job = self.queue.pop(self.now)
        assert job is first
        if selects(self.queue.policy) and job is not None:
            assert job in self.model
            assert job.priority == expected[0].priority
        else:
            assert job is (expected[0] if expected else None)
        if job is not None:
            self.model.remove(job)
            self.taken.append(job)

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 1_000), tokens=st.integers(0, 500))
    def preempt(self, pick: int, tokens: int) -> None:
        job = self.taken.pop(pick % len(self.taken))
        job.generated += tokens
        turns, before = job.rounds, job.round_number
        self.queue.push(job, self.now, front=True)
        if job.rounds is turns:  # the policy has not been changed meanwhile
            assert job.round_number == before
        self.model.insert(0, job)

    @precondition(lambda self: self.taken)
    @rule(pick=st.integers(0, 1_000))
    def finish(self, pick: int) -> None:
        self.queue.finished(self.taken.pop(pick % len(self.taken)))

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 1_000))
    def remove(self, pick: int) -> None:
        job = self.model.pop(pick % len(self.model))
        assert self.queue.remove(job.id) is job
        assert self.queue.remove(job.id) is None

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 1_000), prediction=predictions())
    def update_prediction(self, pick: int, prediction: object) -> None:
        job = self.model[pick % len(self.model)]
        job.update_prediction(prediction)  # type: ignore[arg-type]
        self.queue.update(job, self.now)

    @rule(spec=specs)
    def change_policy(self, spec: str) -> None:
        self.queue.use(make_policy(spec), self.now)

    @rule()
    def check_order(self) -> None:
        """A rule, not an invariant: refreshing re-keys stale jobs and must not be what makes the order right."""
        self.queue.refresh(self.now)
        assert [job.id for job in self.queue] == [job.id for job in self._order()]
        policy, view, places = self.queue.policy, self.queue.view, self.queue._places
        held = {
            entry[5]: entry[2]
            for entry in self.queue._heap
            if entry[5] in places and places[entry[5]].stamp == entry[4]
        }
        assert held == pytest.approx({job.id: policy.key(job, view, self.now) for job in self.model}, rel=1e-12)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.queue) == len(self.model)
        assert {job.id for job in self.queue} == {job.id for job in self.model}

    @invariant()
    def dead_entries_are_bounded(self) -> None:
        assert len(self.queue._heap) <= 2 * len(self.queue) + 65


TestQueueAgainstAList = QueueAgainstAList.TestCase
TestQueueAgainstAList.settings = settings(max_examples=40, stateful_step_count=40)
