"""Laws that every policy keeps in the queue that every host uses; a new policy joins by being registered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lengthwise.policies import POLICIES, Job, JobColumns, Policy, PolicyQueue, QueueView, make_policy
from tests.lengths.beliefs import beliefs

policies = st.sampled_from(sorted(POLICIES)).map(make_policy)
views = st.builds(QueueView, st.integers(0, 10_000), st.integers(0, 512), st.integers(1, 512))
times = st.floats(0, 1e6)


@st.composite
def jobs(draw: st.DrawFn, job_id: str = "a") -> Job:
    return Job(
        id=job_id,
        arrival=draw(times),
        prompt_tokens=draw(st.integers(0, 100_000)),
        belief=draw(st.none() | beliefs()),
        max_tokens=draw(st.none() | st.integers(1, 20_000)),
        priority=draw(st.integers(-2, 2)),
        generated=draw(st.integers(0, 20_000)),
    )


@given(policies, jobs(), views, times)
def test_keys_are_finite_for_any_belief_and_none(policy: Policy, job: Job, view: QueueView, now: float) -> None:
    assert math.isfinite(policy.key(job, view, now))


@given(policies, st.lists(jobs(), min_size=1, max_size=8), views, times)
def test_keys_as_arrays_are_the_single_keys(policy: Policy, many: list[Job], view: QueueView, now: float) -> None:
    keys = policy.keys(JobColumns.of(many), view, now)
    assert keys == pytest.approx([policy.key(job, view, now) for job in many])
    assert np.isfinite(keys).all()


@given(policies, st.lists(jobs(), max_size=6), jobs(), times)
def test_a_victim_is_one_of_the_running(policy: Policy, running: list[Job], candidate: Job, now: float) -> None:
    forced = policy.victim(running, None, now)
    assert (forced in running) if running else (forced is None)
    yields = policy.victim(running, candidate, now)
    assert yields is None or yields in running


@settings(deadline=None)
@given(policies, st.lists(jobs(), max_size=40), times)
def test_a_drain_serves_everybody_once_in_order(policy: Policy, many: list[Job], now: float) -> None:
    queue = PolicyQueue(policy, slots=4)
    for number, job in enumerate(many):
        job.id = str(number)
        queue.push(job, now)
    foretold = [job.id for job in queue]
    served = []
    while (first := queue.pop(now)) is not None:
        served.append(first.id)
    assert sorted(served, key=int) == [str(n) for n in range(len(many))]
    if policy.rekey != "on_level":
        assert served == foretold
    assert len(queue) == 0


class QueueAgainstAList(RuleBasedStateMachine):
    """The queue beside a plain list that is sorted anew at every question."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = make_policy("sjf")
        self.queue = PolicyQueue(self.policy, slots=4)
        self.model: list[Job] = []
        self.served: list[str] = []
        self.now = 0.0
        self.count = 0

    def _order(self) -> list[Job]:
        view = self.queue.view
        return sorted(self.model, key=lambda job: (job.priority, self.policy.key(job, view, self.now)))

    @rule(job=jobs(), wait=st.floats(0, 10))
    def push(self, job: Job, wait: float) -> None:
        self.now += wait
        job.id = str(self.count)
        self.count += 1
        self.queue.push(job, self.now)
        self.model.append(job)

    @rule()
    def pop(self) -> None:
        expected = self._order()
        job = self.queue.pop(self.now)
        assert job is (expected[0] if expected else None)
        if job is not None:
            self.model.remove(job)
            self.served.append(job.id)

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 1_000))
    def remove(self, pick: int) -> None:
        job = self.model.pop(pick % len(self.model))
        assert self.queue.remove(job.id) is job
        assert self.queue.remove(job.id) is None

    @precondition(lambda self: self.model)
    @rule(pick=st.integers(0, 1_000), belief=beliefs())
    def believe(self, pick: int, belief: object) -> None:
        job = self.model[pick % len(self.model)]
        job.believe(belief)  # type: ignore[arg-type]
        self.queue.update(job, self.now)

    @rule(name=st.sampled_from(sorted(POLICIES)))
    def change_policy(self, name: str) -> None:
        self.policy = make_policy(name)
        self.queue.use(self.policy, self.now)

    @invariant()
    def nothing_is_lost_or_served_twice(self) -> None:
        assert len(self.queue) == len(self.model)
        assert [job.id for job in self.queue] == [job.id for job in self._order()]
        assert len(set(self.served)) == len(self.served)

    @invariant()
    def dead_entries_are_bounded(self) -> None:
        assert len(self.queue._heap) <= 2 * len(self.queue) + 65


TestQueueAgainstAList = QueueAgainstAList.TestCase
TestQueueAgainstAList.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
