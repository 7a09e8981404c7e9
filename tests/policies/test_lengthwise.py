"""The policy of this project: its two lanes, and the bound that its docstring claims."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.lengths import LogT, Point, wide_prior
from lengthwise.policies import Job, PolicyQueue, make_policy
from lengthwise.policies.lengthwise import (
    FAST_ROUND,
    FAST_WORK_FRACTION,
    MAX_CREDIT_JOBS,
    MAX_LLMS,
    SHORT_JOB_FRACTION,
    TOKENS_PER_ROUND,
    Lanes,
    is_short,
)

LENGTHS = st.lists(st.integers(1, 8000), min_size=1, max_size=200)


def rounds_of(lengths: list[int], slots: int = 4) -> list[int]:
    lanes = Lanes(lambda: slots)
    return [lanes.enter(job(number, length)) for number, length in enumerate(lengths)]


def job(number: int | str, length: int) -> Job:
    return Job(str(number), 0.0, prediction=Point(length, 10_000))


@dataclass(eq=False)
class Served:
    """A job in a queue of `lengthwise` in front of slots that generate one token a tick each."""

    job: Job
    tokens: int
    arrived: int
    credit_then: float
    """The credit once it has arrived."""
    admitted: int = -1
    ended: int = -1

    def account(self, tick: int) -> float:
        """Return its true length if it has ended by a tick, else its work."""
        return self.tokens if 0 <= self.ended <= tick else self.job.counted


def lanes_of(one: Job) -> Lanes:
    assert isinstance(one.rounds, Lanes)
    return one.rounds


@dataclass
class Engine:
    """Serves requests of (ticks since the last one, predicted tokens, true tokens)."""

    slots: int
    served: list[Served] = field(default_factory=list)
    order: list[Served] = field(default_factory=list)
    """As admitted."""

    def serve(self, requests: list[tuple[int, int, int]]) -> None:
        queue, tick, due = PolicyQueue(make_policy("lengthwise"), slots=self.slots), 0, 0
        running: list[Served] = []
        pending = list(enumerate(requests))
        while pending or running or len(queue):
            while pending and due + pending[0][1][0] <= tick:
                number, (gap, predicted, tokens) = pending.pop(0)
                due += gap
                one = job(number, predicted)
                queue.push(one, float(tick))
                self.served.append(Served(one, tokens, tick, lanes_of(one).credit))
            while len(running) < self.slots and (taken := queue.pop(float(tick))) is not None:
                each = self.served[int(taken.id)]
                each.admitted = tick
                running.append(each)
                self.order.append(each)
            tick += 1
            for each in [each for each in running if tick - each.admitted >= each.tokens]:
                running.remove(each)
                each.ended, each.job.generated = tick, each.tokens
                queue.finished(each.job)


@st.composite
def backlogs(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Requests of a few lengths that arrive faster than they are served, so that the fast lane uses up its credit."""
    kinds = draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(10, 60), st.integers(10, 60)), min_size=2, max_size=4)
    )
    exact = draw(st.booleans())
    drawn = draw(st.lists(st.sampled_from(kinds), min_size=60, max_size=120))
    return [(gap, tokens if exact else predicted, tokens) for gap, predicted, tokens in drawn]


ANY_REQUESTS = st.tuples(st.integers(0, 12), st.integers(1, 60), st.integers(1, 60))
REQUESTS = st.one_of(st.lists(ANY_REQUESTS, min_size=1, max_size=120), backlogs())


@given(REQUESTS, st.integers(1, 4))
def test_whatever_the_predictions_later_jobs_overtake_with_a_quarter_of_the_work_and_two_constants(
    requests: list[tuple[int, int, int]], slots: int
) -> None:
    """The bound of the docstring."""
    engine = Engine(slots)
    engine.serve(requests)
    for place, one in enumerate(engine.order):
        if one.job.round_number == FAST_ROUND:
            continue
        later = [each for each in engine.served if int(each.job.id) > int(one.job.id)]
        arriving = sum(each.job.counted for each in later if each.arrived <= one.admitted)
        before = [each for each in engine.order[:place] if each in later]
        fast = [each for each in before if each.job.round_number == FAST_ROUND]
        last = max((each.arrived for each in fast), default=0)
        overtaking = sum(each.account(last) for each in fast)
        earlier = [each for each in engine.served if int(each.job.id) < int(one.job.id) and each.job.price > 0.0]
        given_back = sum(
            max(0.0, each.job.counted - each.tokens) for each in earlier if one.arrived <= each.ended <= last
        )
        assert overtaking <= FAST_WORK_FRACTION * arriving + max(0.0, one.credit_then) + given_back + 1e-6
        in_round = sum(each.job.counted for each in before if each not in fast)
        assert in_round <= TOKENS_PER_ROUND * slots + 1e-6


@given(REQUESTS)
def test_the_credit_is_at_most_twenty_mean_jobs(requests: list[tuple[int, int, int]]) -> None:
    engine = Engine(2)
    engine.serve(requests)
    most = max(each.job.counted for each in engine.served)
    assert all(each.credit_then <= MAX_CREDIT_JOBS * most + 1e-6 for each in engine.served)


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


def test_the_shortest_jobs_take_the_fast_lane() -> None:
    lanes = Lanes(lambda: 4)
    for number in range(3000):
        lanes.enter(job(number, 20 + number * 7 % 600))
    fast = [length for length in range(20, 620) if is_short(lanes, length)]
    assert fast == list(range(20, 20 + len(fast)))
    assert len(fast) / 600 == pytest.approx(SHORT_JOB_FRACTION, abs=0.04)


def finish(lanes: Lanes, predicted: int, tokens: int, *, llm: str | None = None) -> int:
    """Let a job arrive and finish; return its round."""
    done = Job("done", 0.0, prediction=Point(predicted, 10_000), llm=llm)
    turn = lanes.enter(done)
    done.generated = tokens
    lanes.finished(done)
    return turn


def test_jobs_that_claim_to_be_short_and_are_not_lose_the_fast_lane() -> None:
    lanes = Lanes(lambda: 4)
    rng = np.random.default_rng(0)
    turns = []
    for number in range(1000):
        tokens = int(rng.integers(50, 800))
        turns.append(finish(lanes, 1 if number % 5 == 0 else tokens, tokens) == FAST_ROUND)
    liars, honest = turns[300::5], [turn for number, turn in enumerate(turns[300:]) if number % 5]
    assert sum(liars) == 0
    assert np.mean(honest) > 0.25


def test_a_job_of_the_fast_lane_pays_for_what_it_takes_beyond_its_work() -> None:
    lanes = Lanes(lambda: 4)
    for number in range(600):
        finish(lanes, length := 40 if number % 3 == 0 else 400, length)
    before = lanes.credit
    assert finish(lanes, 40, 9000) == FAST_ROUND
    assert lanes.credit == pytest.approx(before - 9000, abs=50)
    assert finish(lanes, 40, 40) != FAST_ROUND


def test_a_job_of_the_fast_lane_gets_back_what_it_does_not_take() -> None:
    lanes = Lanes(lambda: 4)
    for number in range(600):
        finish(lanes, length := 40 if number % 3 == 0 else 400, length)
    lanes.credit = 100.0
    assert finish(lanes, 40, 1) == FAST_ROUND
    assert lanes.credit == pytest.approx(100 + FAST_WORK_FRACTION * 40 - 1, abs=1.0)


@pytest.mark.parametrize("shown", ["nothing", "the opposite"])
def test_predictions_are_used_as_far_as_finished_jobs_bear_them_out(shown: str) -> None:
    lanes, rng = Lanes(lambda: 4), np.random.default_rng(1)
    lengths = np.exp(rng.normal(5.0, 1.0, 3000)).clip(2, 4000).astype(int)
    predicted = rng.permutation(lengths) if shown == "nothing" else (20_000 // lengths).clip(1)
    fast = [finish(lanes, *each) == FAST_ROUND for each in zip(predicted.tolist(), lengths.tolist(), strict=True)]
    late, mean = np.array(fast[1000:]), lengths[1000:].mean()
    if shown == "nothing":
        assert late.mean() < 0.2
    else:
        assert late.mean() > 0.25
        assert lengths[1000:][late].mean() < 0.5 * mean


def test_each_llm_has_its_own_ratios_of_true_and_predicted_lengths() -> None:
    lanes = Lanes(lambda: 4)
    for number in range(900):
        length = 40 if number % 3 == 0 else 400
        finish(lanes, length, length, llm="exact")
        finish(lanes, 40, 400, llm="longer than predicted")
    assert finish(lanes, 40, 40, llm="exact") == FAST_ROUND
    assert finish(lanes, 40, 400, llm="longer than predicted") != FAST_ROUND


def test_the_names_of_many_llms_take_bounded_memory() -> None:
    lanes = Lanes(lambda: 4)
    for number in range(MAX_LLMS + 100):
        finish(lanes, 100, 100, llm=f"llm-{number}")
    assert len(lanes.calibrations) == MAX_LLMS + 1


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
    fast = []
    for predicted in (lengths, shrunk):
        lanes = Lanes(lambda: 4)
        turns = [finish(lanes, round(one), round(true)) for one, true in zip(predicted, lengths, strict=True)]
        fast.append(turns[1000:].count(FAST_ROUND))
    assert fast[1] == pytest.approx(fast[0], rel=0.1)


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
