"""The policy of this project: its two lanes, and the bound that its docstring claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.lengths import LogT, Point, wide_prior
from lengthwise.policies import Job, PolicyQueue, make_policy
from lengthwise.policies.lengthwise import (
    FAST_ROUND,
    FAST_WORK_FRACTION,
    SHORT_JOB_FRACTION,
    Lanes,
    _bin,
    is_short,
)

LENGTHS = st.lists(st.integers(1, 8000), min_size=1, max_size=200)
GRAIN = 16


def rounds_of(lengths: list[int], slots: int = 4) -> list[int]:
    lanes = Lanes(lambda: slots)
    return [lanes.enter(job(number, length)) for number, length in enumerate(lengths)]


def job(number: int | str, length: int) -> Job:
    return Job(str(number), 0.0, prediction=Point(length, 10_000))


@given(LENGTHS)
def test_the_work_of_the_fast_lane_is_at_most_its_share_plus_saved_credit(lengths: list[int]) -> None:
    rounds = rounds_of(lengths)
    for first in range(len(lengths)):
        # Of all arrivals from some time on; the credit saved until then is at most six mean jobs, here of the longest.
        fast = sum(length for length, turn in zip(lengths[first:], rounds[first:], strict=True) if turn == FAST_ROUND)
        assert fast <= FAST_WORK_FRACTION * sum(lengths[first:]) + 6 * max(lengths) + 1e-6


@given(LENGTHS, st.integers(1, 64))
def test_in_the_ordinary_lane_only_work_of_the_same_round_overtakes(lengths: list[int], slots: int) -> None:
    rounds = rounds_of(lengths, slots)
    clock = [sum(lengths[: n + 1]) / slots for n in range(len(lengths))]
    for n, turn in enumerate(rounds):
        if turn == FAST_ROUND:
            continue
        for later in range(n + 1, len(lengths)):
            if FAST_ROUND < rounds[later] < turn:
                assert clock[later] - clock[n] <= GRAIN


@given(st.integers(1, 5000), st.integers(1, 100))
def test_equal_jobs_are_served_in_order(length: int, count: int) -> None:
    queue = PolicyQueue(make_policy("lengthwise"), slots=4)
    for number in range(count):
        queue.push(job(number, length), float(number))
    out = [int(queue.pop(1e3).id) for _ in range(count)]  # type: ignore[union-attr]
    assert out == list(range(count))


def backlogged_queue(slots: int = 1) -> PolicyQueue:
    """A queue that has served many answers of 400 tokens and as many of 20, and has a backlog."""
    queue = PolicyQueue(make_policy("lengthwise"), slots=slots)
    for number in range(400):
        queue.push(job(number, 400 if number % 2 else 20), float(number))
    while queue.pop(400.0) is not None:
        pass
    for number in range(400, 420):
        queue.push(job(number, 400), float(number))
    return queue


def test_a_short_job_passes_all_waiting_jobs() -> None:
    queue = backlogged_queue()
    queue.push(job(1000, 20), 500.0)
    first = queue.pop(500.0)
    assert first is not None
    assert first.id == "1000"


def test_the_shortest_third_of_the_jobs_takes_the_fast_lane() -> None:
    lanes = Lanes(lambda: 4)
    for number in range(3000):
        lanes.enter(job(number, 20 + number * 7 % 600))
    fast = [length for length in range(20, 620) if is_short(lanes, length, _bin(length))]
    assert fast == list(range(20, 20 + len(fast)))
    assert len(fast) / 600 == pytest.approx(SHORT_JOB_FRACTION, abs=0.04)


def test_short_jobs_that_outlive_their_predictions_are_charged_to_the_fast_lane() -> None:
    exact, too_short = (Lanes(lambda: 4) for _ in range(2))
    for number in range(2000):
        length = 40 if number % 3 == 0 else 400
        for lanes in (exact, too_short):
            done = job(number, length)
            lanes.enter(done)
            done.generated = 400 if lanes is too_short else length
            lanes.finished(done)
    exact.credit = too_short.credit = 300.0
    fast = [sum(lanes.enter(job(n, 40)) == FAST_ROUND for n in range(20)) for lanes in (exact, too_short)]
    assert fast[0] >= 7
    assert fast[1] <= 1


def test_many_very_short_jobs_share_the_fast_lane() -> None:
    rounds = rounds_of([400 if number % 5 == 0 else 8 for number in range(1000)])
    late = rounds[500:]
    assert all((turn == FAST_ROUND) == (number % 5 != 0) for number, turn in enumerate(late))


@pytest.mark.parametrize("length", [1, 20, 400, 5000])
def test_jobs_of_equal_length_do_not_use_the_fast_lane(length: int) -> None:
    assert FAST_ROUND not in rounds_of([length] * 200)
    assert FAST_ROUND not in rounds_of([round(length * (1 + number % 7 / 50)) for number in range(200)])


def test_predictions_shrunk_to_the_mean_use_the_fast_lane_as_often_as_true_lengths() -> None:
    lengths = [100 * 1.2 ** (number * 7 % 10) for number in range(2000)]
    middle = math.exp(sum(map(math.log, lengths)) / len(lengths))
    shrunk = [middle * (length / middle) ** 0.5 for length in lengths]
    fast = [[turn == FAST_ROUND for turn in rounds_of([round(n) for n in each])[1000:]] for each in (lengths, shrunk)]
    assert sum(fast[1]) == pytest.approx(sum(fast[0]), rel=0.1)


def test_a_wide_prediction_may_be_short_but_a_missing_one_never_is() -> None:
    lanes = Lanes(lambda: 1)
    for number in range(1000):
        lanes.enter(job(number, 3000 + number))
    lanes.credit = 1e9
    assert lanes.enter(Job("wide", 0.0, prediction=LogT(math.log(350.0), 1.1, 10_000))) == FAST_ROUND
    assert lanes.enter(Job("none", 0.0)) != FAST_ROUND
    assert lanes.enter(Job("prior", 0.0, prediction=wide_prior(), max_tokens=9000)) != FAST_ROUND


def test_a_late_prediction_moves_a_short_job_forward_and_no_job_back() -> None:
    queue = backlogged_queue()
    late = Job("late", 500.0)
    queue.push(late, 500.0)
    before = late.round_number
    assert before != FAST_ROUND
    late.update_prediction(Point(900, 10_000))
    queue.update(late, 500.0)
    assert late.round_number <= before
    late.update_prediction(Point(15, 10_000))
    queue.update(late, 500.0)
    first = queue.pop(500.0)
    assert first is late


def test_a_changed_prediction_is_counted_once() -> None:
    lanes, other = Lanes(lambda: 2), Lanes(lambda: 2)
    one = job(0, 700)
    turn = lanes.enter(one)
    one.update_prediction(Point(300, 10_000))
    lanes.prediction_changed(one, turn, 700.0)
    other.enter(job(0, 300))
    assert lanes.credit == pytest.approx(other.credit)
    assert lanes.total == pytest.approx(other.total)
    assert lanes.count == pytest.approx(other.count)
    assert sum(lanes.work) == pytest.approx(sum(other.work))
    assert sum(lanes.jobs) == pytest.approx(lanes.count)


@pytest.mark.parametrize(("before", "after"), [(700, 300), (300, 700), (300, 300)])
def test_a_new_prediction_keeps_the_round_in_the_ordinary_lane(before: int, after: int) -> None:
    lanes = Lanes(lambda: 2)
    for number in range(200):
        lanes.enter(job(number, 500))
    lanes.credit = 0.0
    one = job("one", before)
    turn = lanes.enter(one)
    lanes.enter(job("later", 500))
    lanes.credit = 0.0
    one.update_prediction(Point(after, 10_000))
    assert lanes.prediction_changed(one, turn, float(before)) == turn


@pytest.mark.parametrize("history", [None, 60])
def test_a_batch_with_late_predictions_gains_almost_as_much_as_with_early_ones(history: int | None) -> None:
    rng = np.random.default_rng(0)
    lengths = [max(1, min(256, round(each))) for each in np.exp(rng.normal(4.0, 1.0, 400)).tolist()]

    def mean_work_before(late: bool) -> float:
        """Return the mean number of tokens served before a job."""
        queue = PolicyQueue(make_policy("lengthwise"), slots=4)
        prior = None if history is None else Point(history, 256)
        jobs = [
            Job(str(n), 0.0, prediction=prior if late else Point(length, 256), max_tokens=256)
            for n, length in enumerate(lengths)
        ]
        for each in jobs:
            queue.push(each, 0.0)
        if late:
            for each, length in zip(jobs, lengths, strict=True):
                each.update_prediction(Point(length, 256))
                queue.update(each, 1.0)
        waited, served = 0, 0
        while (taken := queue.pop(2.0)) is not None:
            waited += served
            served += lengths[int(taken.id)]
        return waited / len(jobs)

    first_come = sum(sum(lengths[:n]) for n in range(len(lengths))) / len(lengths)
    gained = [first_come - mean_work_before(late) for late in (False, True)]
    assert gained[0] > 0.1 * first_come
    assert gained[1] > 0.8 * gained[0]


def test_predictions_far_below_the_prior_leave_the_fast_lane_open_for_later_jobs() -> None:
    lanes = Lanes(lambda: 4)
    jobs = [Job(str(n), 0.0, max_tokens=256) for n in range(600)]
    turns = [lanes.enter(each) for each in jobs]
    for n, (each, turn) in enumerate(zip(jobs, turns, strict=True)):
        each.update_prediction(Point(20 if n % 3 == 0 else 80, 256))
        lanes.prediction_changed(each, turn, 256.0)
    assert sum(lanes.enter(job(n, 20)) == FAST_ROUND for n in range(100)) >= 20


def test_length_statistics_fade_and_never_overflow() -> None:
    lanes = Lanes(lambda: 1)
    lanes.unit = 9e11
    for number in range(3000):
        lanes.enter(job(number, 100))
    assert lanes.unit < 1e12
    assert math.isclose(lanes.total / lanes.count, 100.0, rel_tol=1e-6)
