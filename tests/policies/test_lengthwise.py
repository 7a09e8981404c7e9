"""The policy of this project: its two lanes, and the bound that its docstring claims."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.lengths import Point
from lengthwise.policies import Job, PolicyQueue, make_policy
from lengthwise.policies.lengthwise import FAST, SHARE, Lanes

LENGTHS = st.lists(st.integers(1, 8000), min_size=1, max_size=200)
GRAIN = 16


def rounds_of(lengths: list[int], slots: int = 4) -> list[int]:
    lanes = Lanes(lambda: slots)
    return [lanes.enter(job(number, length)) for number, length in enumerate(lengths)]


def job(number: int, length: int) -> Job:
    return Job(str(number), float(number), belief=Point(length, 10_000))


@given(LENGTHS)
def test_the_fast_lane_takes_no_more_than_its_share_and_what_it_saved_up(lengths: list[int]) -> None:
    rounds = rounds_of(lengths)
    for first in range(len(lengths)):
        # Of all that comes from some moment on; credit saved up by then is at most six mean jobs, here of the longest.
        fast = sum(length for length, turn in zip(lengths[first:], rounds[first:], strict=True) if turn == FAST)
        assert fast <= SHARE * sum(lengths[first:]) + 6 * max(lengths) + 1e-6


@given(LENGTHS, st.integers(1, 64))
def test_in_the_slow_lane_later_work_overtakes_by_at_most_its_own_length(lengths: list[int], slots: int) -> None:
    rounds = rounds_of(lengths, slots)
    clock = [sum(lengths[: n + 1]) / slots for n in range(len(lengths))]
    for n, turn in enumerate(rounds):
        if turn == FAST:
            continue
        for later in range(n + 1, len(lengths)):
            if FAST < rounds[later] < turn:
                assert clock[later] - clock[n] <= lengths[n] + GRAIN


@given(st.integers(1, 5000), st.integers(1, 100))
def test_equals_come_in_order(length: int, count: int) -> None:
    queue = PolicyQueue(make_policy("lengthwise"), slots=4)
    for number in range(count):
        queue.push(job(number, length), float(number))
    out = [int(queue.pop(1e3).id) for _ in range(count)]  # type: ignore[union-attr]
    assert out == list(range(count))


def warmed(slots: int = 1) -> PolicyQueue:
    """A queue that has seen many answers of 400 tokens and as many of 20, and in which much waits."""
    queue = PolicyQueue(make_policy("lengthwise"), slots=slots)
    for number in range(400):
        queue.push(job(number, 400 if number % 2 else 20), float(number))
    while queue.pop(400.0) is not None:
        pass
    for number in range(400, 420):
        queue.push(job(number, 400), float(number))
    return queue


def test_a_short_one_passes_all_who_wait() -> None:
    queue = warmed()
    queue.push(job(1000, 20), 500.0)
    first = queue.pop(500.0)
    assert first is not None
    assert first.id == "1000"


def test_a_late_belief_brings_a_short_one_forward_and_sets_nobody_back() -> None:
    queue = warmed()
    late = Job("late", 500.0)
    queue.push(late, 500.0)
    before = late.in_round
    assert before != FAST
    late.believe(Point(6000, 10_000))
    queue.update(late, 500.0)
    assert late.in_round <= before
    late.believe(Point(15, 10_000))
    queue.update(late, 500.0)
    first = queue.pop(500.0)
    assert first is late


def test_what_changes_is_counted_once() -> None:
    lanes, other = Lanes(lambda: 2), Lanes(lambda: 2)
    one = job(0, 700)
    turn = lanes.enter(one)
    one.believe(Point(300, 10_000))
    lanes.changed(one, turn, 700.0)
    other.enter(job(0, 300))
    assert lanes.clock == pytest.approx(other.clock)
    assert lanes.total == pytest.approx(other.total)
    assert sum(lanes.work) == pytest.approx(sum(other.work))


def test_the_picture_of_what_comes_is_renewed_and_never_overflows() -> None:
    lanes = Lanes(lambda: 1)
    lanes.unit = 9e11
    for number in range(3000):
        lanes.enter(job(number, 100))
    assert lanes.unit < 1e12
    assert math.isclose(lanes.total / lanes.count, 100.0, rel_tol=1e-6)
