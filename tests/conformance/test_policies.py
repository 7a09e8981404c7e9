"""Laws of every policy, plain, with parameters or wrapped; registered policies are included."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lengthwise.lengths import LengthDistribution
from lengthwise.policies import Job, JobColumns, Policy, PolicyQueue, QueueView, make_policy, selects
from lengthwise.policies.base import choose_victim
from tests.conformance.strategies import jobs, policies, preempting, specs, times, views, without_predictions
from tests.lengths.strategies import predictions


@given(specs)
def test_a_policys_name_makes_the_same_policy(spec: str) -> None:
    policy = make_policy(spec)
    again = make_policy(policy.name)
    assert again == policy
    assert again.name == policy.name
    assert isinstance(policy, Policy)


@given(policies, st.lists(jobs(), max_size=8), views, times)
def test_keys_as_arrays_are_the_single_keys_and_finite(
    policy: Policy, many: list[Job], view: QueueView, now: float
) -> None:
    keys = policy.keys(JobColumns.of(many), view, now)
    assert keys.shape == (len(many),)
    single = [policy.key(job, view, now) for job in many]
    assert all(math.isfinite(key) for key in single)
    assert keys == pytest.approx(single, rel=1e-12, abs=1e-12)


@given(policies, jobs(), views, views, times, times, st.integers(0, 20_000))
def test_a_key_depends_only_on_the_inputs_of_its_rekey_class(
    policy: Policy, job: Job, view: QueueView, other: QueueView, now: float, later: float, generated: int
) -> None:
    assume(policy.rekey != "on_time")
    if policy.rekey == "on_level":
        assume(policy.level(view) == policy.level(other))
    key = policy.key(job, view, now)
    assert policy.key(job, other, later) == key
    if policy.rekey != "on_progress":
        job.generated = generated
        assert policy.key(job, other, later) == key


@given(
    without_predictions.map(make_policy),
    st.lists(jobs(), min_size=1, max_size=6),
    jobs(),
    st.lists(predictions(), min_size=7, max_size=7),
    views,
)
def test_a_policy_without_predictions_ignores_them(
    policy: Policy, running: list[Job], candidate: Job, others: list[LengthDistribution], view: QueueView
) -> None:
    assert not policy.uses_predictions

    def decisions() -> tuple[object, ...]:
        columns = JobColumns.of(running)
        keys, scores = policy.keys(columns, view, 0.0).tolist(), policy.eviction_scores(columns, 0.0).tolist()
        rounds = policy.rounds()
        turns = [] if rounds is None else [rounds.enter(job) for job in running]
        return keys, scores, policy.find_victim(columns, candidate, 0.0), turns

    before = decisions()
    for job, prediction in zip([*running, candidate], others, strict=False):
        job.update_prediction(prediction)
    assert decisions() == before


@given(policies, st.integers(0, 3000), st.integers(1, 600), st.integers(0, 600), st.integers(0, 600))
def test_levels_are_few_and_rise_with_the_queue(
    policy: Policy, waiting: int, slots: int, running: int, other: int
) -> None:
    level = policy.level(QueueView(waiting, running, slots))
    assert 0 <= level <= 64
    assert policy.level(QueueView(waiting + 1, running, slots)) >= level
    assert policy.level(QueueView(waiting, other, slots)) == level


@given(policies, st.lists(jobs(), min_size=1, max_size=6), times)
def test_memory_pressure_preempts_one_job_and_the_last_admitted_among_equals(
    policy: Policy, running: list[Job], now: float
) -> None:
    scores = policy.eviction_scores(JobColumns.of(running), now)
    assert scores.shape == (len(running),)
    assert not np.isnan(scores).any()
    assert scores.max() > -np.inf
    equals = [job for job, score in zip(running, scores, strict=True) if score == scores.max()]
    assert choose_victim(policy, running, None, now) is equals[-1]
    assert choose_victim(policy, [], None, now) is None


@given(st.one_of(preempting().map(make_policy), policies), st.lists(jobs(), max_size=6), jobs(), times)
def test_a_victim_is_a_running_job_that_is_not_more_urgent(
    policy: Policy, running: list[Job], candidate: Job, now: float
) -> None:
    index = policy.find_victim(JobColumns.of(running), candidate, now)
    assert policy.find_victim(JobColumns.of(running), JobColumns.of([candidate]), now) == index
    assert choose_victim(policy, running, candidate, now) is (None if index is None else running[index])
    if index is None:
        return
    assert policy.preempts
    assert 0 <= index < len(running)
    assert running[index].priority >= candidate.priority


@given(preempting().map(make_policy), st.lists(jobs(), min_size=1, max_size=6), jobs(), times)
def test_a_victim_does_not_preempt_its_candidate_at_once(
    policy: Policy, running: list[Job], candidate: Job, now: float
) -> None:
    index = policy.find_victim(JobColumns.of(running), candidate, now)
    assume(index is not None)
    assert index is not None
    after = [*running[:index], *running[index + 1 :], candidate]
    assert policy.find_victim(JobColumns.of(after), running[index], now) != len(after) - 1


@given(
    st.one_of(preempting().map(make_policy), policies),
    st.lists(jobs(), min_size=1, max_size=6),
    jobs(),
    times,
    st.integers(1, 5_000),
)
def test_no_victim_stays_no_victim_with_progress_unless_hosts_check_again(
    policy: Policy, running: list[Job], candidate: Job, now: float, tokens: int
) -> None:
    certain = all(job.sigma == 0.0 and job.generated + tokens < job.expected for job in running)
    assume(policy.preempt_check_interval == 0 or certain)
    assume(policy.find_victim(JobColumns.of(running), candidate, now) is None)
    for job in running:
        job.generated += tokens
    assert policy.find_victim(JobColumns.of(running), candidate, now) is None


@given(policies, st.lists(jobs(), min_size=1, max_size=6), views, times)
def test_decisions_do_not_modify_their_arguments(policy: Policy, many: list[Job], view: QueueView, now: float) -> None:
    columns = JobColumns.of(many)
    before = copy.deepcopy(columns)
    first = policy.keys(columns, view, now).copy()
    policy.eviction_scores(columns, now)
    policy.find_victim(columns, many[0], now)
    assert np.array_equal(policy.keys(columns, view, now), first)
    for name in JobColumns.__dataclass_fields__:
        assert np.array_equal(getattr(columns, name), getattr(before, name))


@given(policies, st.lists(jobs(), max_size=40), times)
def test_a_drain_serves_every_job_once_in_order(policy: Policy, many: list[Job], now: float) -> None:
    queue = PolicyQueue(policy, slots=4)
    for number, job in enumerate(many):
        job.id = str(number)
        queue.push(job, now)
    queue.refresh(now)
    expected_order = [job.id for job in queue]
    most_urgent = {job.id for job in many if job.priority == min(each.priority for each in many)}
    served = []
    while (first := queue.pop(now)) is not None:
        served.append(first.id)
    assert sorted(served, key=int) == [str(n) for n in range(len(many))]
    if selects(policy):
        assert not many or served[0] in most_urgent
    elif policy.level(QueueView(len(many), 0, 4)) == policy.level(QueueView(0, 0, 4)):
        assert served == expected_order
    assert len(queue) == 0
