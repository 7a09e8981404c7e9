"""`ontime`: who can still start in time, overload, the share of late jobs, and limits of each request."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import Point
from lengthwise.policies import Job, PolicyQueue, make_policy, ontime
from lengthwise.policies.job import declared_limit
from lengthwise.simulator import Fleet, Outcome, simulate
from tests.policies.test_slo import served
from tests.simulator.builders import UNEVEN, engine, requests


def queue_of(lengths: list[int], *, spec: str = "ontime:ttft=100", rate: float = 10.0) -> PolicyQueue:
    """Return a queue of jobs that have arrived a second after each other."""
    queue = PolicyQueue(make_policy(spec), slots=1)
    queue.tokens_per_s = rate
    for number, length in enumerate(lengths):
        queue.push(Job(str(number), float(number), prediction=Point(length, 10_000)), float(number))
    return queue


def test_the_shortest_job_is_first_while_all_can_start_in_time() -> None:
    assert served(queue_of([400, 300, 20]), 3.0) == [2, 1, 0]


def test_no_job_passes_one_that_would_then_start_too_late() -> None:
    """A job of 200 tokens takes 20 s, and two times as long must fit into the slack of the first."""
    assert served(queue_of([400, 200]), 3.0)[0] == 1
    assert served(queue_of([400, 200]), 61.0)[0] == 0


def test_in_overload_the_shortest_job_that_can_still_start_is_first() -> None:
    """The third cannot start after the first two have run: no order keeps all limits."""
    assert served(queue_of([900, 800, 700, 30]), 4.0)[0] == 3
    assert served(queue_of([900, 800, 700]), 4.0)[0] == 2


def test_late_jobs_run_after_the_others_in_order_of_arrival() -> None:
    assert served(queue_of([400, 300, 20, 50], spec="ontime:ttft=2.5"), 4.6) == [3, 0, 1, 2]


def test_a_job_without_a_limit_counts_as_late_and_without_any_limit_the_order_is_fcfs() -> None:
    assert served(queue_of([400, 300, 20], spec="ontime"), 3.0) == [0, 1, 2]
    queue = queue_of([400, 300], spec="ontime")
    queue.push(Job("2", 2.0, prediction=Point(800, 10_000), ttft_limit_s=5.0), 2.0)
    assert served(queue, 3.0) == [2, 0, 1]


def test_a_limit_per_token_gives_a_long_answer_more_time() -> None:
    """A token takes 0.1 s: at 0.2 s per token a job may wait 0.1 s for each of its tokens, 10 and 2 s here."""
    assert served(queue_of([100, 20], spec="ontime:per_token=0.2"), 2.5) == [1, 0]
    assert served(queue_of([100, 20], spec="ontime:per_token=0.2"), 4.0) == [0, 1]


def test_a_limit_per_token_that_the_engine_cannot_keep_gives_the_order_of_arrival() -> None:
    assert served(queue_of([100, 20, 50], spec="ontime:per_token=0.05"), 3.0) == [0, 1, 2]


def test_a_deadline_leaves_time_for_the_answer() -> None:
    """The service of 100 tokens takes 10 s: a job due at 30 s can start until 20 s."""
    for now, first in ((19.0, "2"), (21.0, "0")):
        queue = queue_of([50, 50], spec="ontime")
        queue.push(Job("2", 2.0, prediction=Point(100, 10_000), deadline=30.0), 2.0)
        chosen = queue.peek(now)
        assert chosen is not None
        assert chosen.id == first


@pytest.mark.parametrize("spec", ["ontime", "ontime:ttft=5", "slo", "slo:seconds=5", "fair(ontime)", "lengthwise"])
def test_a_deadline_in_the_past_loses_no_job(spec: str) -> None:
    """It is the first of a policy with deadlines, and late for one that keeps what can be kept."""
    queue = PolicyQueue(make_policy(spec), slots=1)
    queue.tokens_per_s = 10.0
    for number, deadline in enumerate((math.inf, -1e9, 50.0, 0.0)):
        queue.push(Job(str(number), 40.0, prediction=Point(20, 100), deadline=deadline), 40.0)
    assert sorted(served(queue, 60.0)) == [0, 1, 2, 3]


def test_a_jobs_own_limits_replace_those_of_the_policy() -> None:
    queue = queue_of([50, 60], spec="ontime:ttft=2,per_token=5")
    queue.push(Job("2", 2.0, prediction=Point(900, 10_000), ttft_limit_s=50.0, per_token_limit_s=9.0), 2.0)
    assert served(queue, 6.0) == [2, 0, 1]


def test_without_a_rate_the_earliest_first_token_limit_is_first() -> None:
    queue = queue_of([400, 300], rate=0.0)
    queue.push(Job("2", 2.0, prediction=Point(100, 10_000), ttft_limit_s=1.0), 2.0)
    assert served(queue, 2.0) == [2, 0, 1]


@given(
    st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=2, max_size=60),
    st.sampled_from([0.05, 0.1, 0.5]),
)
def test_late_jobs_get_their_share_of_the_work_oldest_first(jobs: list[tuple[int, bool]], share: float) -> None:
    """Before a late job is admitted, others have at most (1 - share) / share of the late work, and one job more."""
    queue = queue_of([], spec=f"ontime:late_share={share}", rate=1.0)
    for number, (length, in_time) in enumerate(jobs):
        limit = 1e4 if in_time else math.inf
        queue.push(Job(str(number), float(number), prediction=Point(length, 10_000), ttft_limit_s=limit), float(number))
    order = served(queue, float(len(jobs)))
    late = [number for number in order if not jobs[number][1]]
    assert late == sorted(late)
    for number in late:
        before = order[: order.index(number)]
        others = sum(jobs[other][0] for other in before if jobs[other][1])
        behind = sum(jobs[other][0] for other in late[: late.index(number) + 1])
        longest = max((jobs[other][0] for other in before if jobs[other][1]), default=0)
        assert others <= behind * (1 - share) / share + longest + 1e-6 * others


@pytest.mark.parametrize("spec", ["ontime:ttft=0", "ontime:per_token=-1", "ontime:ttft=nan", "ontime:late_share=0"])
def test_a_limit_that_is_no_positive_number_is_refused_with_what_would_be_right(spec: str) -> None:
    with pytest.raises(InputError, match=r"give a number from 0\.001"):
        make_policy(spec)


def in_time(outcome: Outcome, *, ttft: float = math.inf, per_token: float = math.inf) -> float:
    found = outcome.latencies
    return float(np.mean((found["ttft_s"] <= ttft) & (found["per_token_s"] <= per_token)))


def overloaded(policy: str, predictor: str) -> Outcome:
    """Simulate an engine of 8 slots that gets 1.3 times what it can serve."""
    rng, n = np.random.default_rng(5), 1500
    lengths = [(8, int(length)) for length in np.clip(rng.lognormal(4.0, 1.0, n), 2, 800)]
    fleet = Fleet((engine(UNEVEN, seqs=8, blocks=4000, block_size=16),))
    whole = simulate(requests(lengths, [0.0] * n), fleet, "fcfs", predictor="oracle")
    arrivals = np.cumsum(rng.exponential(float(whole.finished_s.max()) / (1.3 * n), n))
    return simulate(requests(lengths, arrivals.tolist()), fleet, policy, predictor=predictor)


def test_most_first_tokens_are_in_time_in_an_overload_in_which_fcfs_keeps_few_and_none_starves() -> None:
    fcfs, ours = overloaded("fcfs", "oracle"), overloaded("ontime:ttft=0.5", "noisy:0.55")
    assert in_time(fcfs, ttft=0.5) < 0.15
    assert in_time(ours, ttft=0.5) > 0.6
    assert np.isfinite(ours.finished_s).all()
    assert ours.latencies["e2e_s"].max() <= 5 * fcfs.latencies["e2e_s"].max()


def test_lengths_decide_which_answers_keep_a_limit_per_token() -> None:
    spec = "ontime:per_token=0.03"
    known, unknown = (in_time(overloaded(spec, name), per_token=0.03) for name in ("noisy:0.55", "none"))
    assert known > 1.3 * unknown
    assert known > 1.3 * in_time(overloaded("lengthwise", "noisy:0.55"), per_token=0.03)


def test_clients_that_claim_short_answers_gain_nothing_once_some_have_finished() -> None:
    """The work of a predicted length is what finished jobs of that length took."""
    queue = queue_of([], rate=1.0)
    for number in range(200):
        claimed, honest = (Job(f"{each} {number}", 0.0, prediction=Point(each, 10_000)) for each in (2, 200))
        for done, tokens in ((claimed, 500), (honest, 200)):
            queue.push(done, 0.0)
            assert queue.pop(0.0) is done
            done.generated = tokens
            queue.finished(done)
    queue.push(Job("liar", 0.0, prediction=Point(2, 10_000)), 0.0)
    queue.push(Job("honest", 0.0, prediction=Point(200, 10_000)), 0.0)
    first = queue.peek(0.0)
    assert first is not None
    assert first.id == "honest"


def test_a_job_takes_only_limits_that_it_does_not_have() -> None:
    job = Job("a", 5.0, ttft_limit_s=3.0)
    job.use_limits(slo_s=10.0, ttft_s=1.0)
    job.use_limits(slo_s=1.0, per_token_s=0.2)
    assert (job.deadline, job.ttft_limit_s, job.per_token_limit_s) == (15.0, 3.0, 0.2)


def test_what_is_left_of_limits_falls_with_the_time_waited_and_is_never_zero() -> None:
    job = Job("a", 5.0, prediction=Point(100, 1000), deadline=15.0, ttft_limit_s=3.0, per_token_limit_s=0.2)
    assert job.limits_left(7.0) == pytest.approx({"slo_s": 8.0, "ttft_s": 1.0, "per_token_s": 0.18})
    assert job.limits_left(1000.0) == {"slo_s": 0.001, "ttft_s": 0.001, "per_token_s": 0.001}
    assert Job("b", 0.0).limits_left(1.0) == {}


@pytest.mark.parametrize("value", [0, -1, "nan", "-inf", "soon", "", None, True, [], 10**400 * -1])
def test_a_declared_limit_that_is_no_number_above_0_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="not a number of seconds above 0"):
        declared_limit(value)


@given(st.floats(min_value=0, exclude_min=True) | st.floats(min_value=0, exclude_min=True).map(repr))
def test_a_declared_limit_is_clamped(value: float | str) -> None:
    assert 1e-3 <= declared_limit(value) <= 86_400.0


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.sampled_from([0.5, 5.0, math.inf]), st.integers(1, 30)), min_size=1, max_size=20
    ),
    st.sampled_from([0.0, 0.5, 4.0, 50.0]),
    st.floats(0, 40),
)
def test_compiled_and_interpreted_choices_are_the_same(
    jobs: list[tuple[float, float, int]], rate: float, credit: float
) -> None:
    arrival, limit, work = np.array(sorted(jobs, key=lambda job: job[0] + job[1]), float).T
    none = np.full(len(jobs), math.inf)
    queue = arrival, arrival + limit, limit, none, work, work % 3, np.arange(len(jobs))[::-1].copy()
    arguments = queue, len(jobs), credit, 4, rate, 20.0
    assert ontime.compiled_choose()(*arguments) == ontime.choose(*arguments)
