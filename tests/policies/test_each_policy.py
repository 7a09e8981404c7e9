"""Each policy by hand: what it prefers, what it does without a signal, and its victims."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job, JobColumns, Policy, PolicyQueue, QueueView, make_policy
from lengthwise.policies.base import choose_victim

VIEW = QueueView(waiting=10, running=4, slots=4)
CERTAIN = LogT(math.log(300), 0.1, 8192)
HEAVY = LogT(math.log(300), 1.2, 8192)  # the same median, a heavy tail


def order(spec: str, jobs: list[Job], now: float = 0.0, slots: int = 4) -> list[str]:
    queue = PolicyQueue(make_policy(spec), slots)
    for job in jobs:
        queue.push(job, now)
    served = []
    while (first := queue.pop(now)) is not None:
        served.append(first.id)
    return served


def prefers(policy: str | Policy, first: Job, second: Job, now: float = 0.0, view: QueueView = VIEW) -> bool:
    policy = make_policy(policy) if isinstance(policy, str) else policy
    return policy.key(first, view, now) < policy.key(second, view, now)


def test_sjf_and_ltr_order_by_the_median_and_sept_by_the_mean() -> None:
    certain, heavy = Job("certain", 1.0, prediction=CERTAIN), Job("heavy", 0.0, prediction=HEAVY)
    longer = Job("longer", 0.0, prediction=Point(310))
    assert prefers("sept", certain, heavy)
    for spec in ("sjf", "ltr"):
        assert make_policy(spec).key(certain, VIEW, 0.0) == make_policy(spec).key(heavy, VIEW, 0.0)
        assert prefers(spec, heavy, longer)
    assert not prefers("sept", heavy, longer)


def test_lept_runs_the_longest_expected_first_and_evicts_the_last_admitted() -> None:
    certain, heavy = Job("certain", 0.0, prediction=CERTAIN), Job("heavy", 1.0, prediction=HEAVY)
    assert prefers("lept", heavy, certain)
    assert choose_victim(make_policy("lept"), [heavy, certain], None, 0.0) is certain


def test_a_point_estimate_is_cut_at_max_tokens() -> None:
    cut = Job("cut", 0.0, prediction=Point(4000), max_tokens=100)
    assert prefers("sjf", cut, Job("b", 0.0, prediction=Point(150)))
    assert prefers("ltr", cut, Job("b", 0.0, prediction=Point(150)))


def test_the_victim_under_ltr_is_the_longest_predicted_at_any_progress() -> None:
    nearly_done, started = Job("a", 0.0, prediction=Point(900)), Job("b", 1.0, prediction=Point(500))
    nearly_done.generated = 899
    assert choose_victim(make_policy("ltr"), [nearly_done, started], None, 0.0) is nearly_done
    assert choose_victim(make_policy("sjf"), [nearly_done, started], None, 0.0) is started
    assert choose_victim(make_policy("sept"), [nearly_done, started], None, 0.0) is started


def test_tie_prefers_short_but_certain_over_short_but_heavy_tailed() -> None:
    assert prefers("tie", Job("certain", 0.0, prediction=CERTAIN), Job("heavy", 0.0, prediction=HEAVY))


def test_tie_is_the_papers_score_and_its_aging_in_logarithms() -> None:
    job = Job("a", 100.0, prediction=HEAVY)
    score = job.expected + 0.2 * job.tail
    aged = {now: score * 0.9 ** ((now - 100.0) / 30.0) for now in (100.0, 400.0)}
    policy = make_policy("tie:beta=0.2")
    common = {now: now / 30.0 * math.log(1 / 0.9) for now in aged}
    for now, value in aged.items():
        assert policy.key(job, VIEW, now) - common[now] == pytest.approx(math.log(value))


@pytest.mark.parametrize(
    ("waiting", "slots", "beta"), [(0, 8, 0.1), (11, 8, 0.1), (13, 8, 0.2), (24, 8, 0.3), (1000, 8, 0.5), (3, 256, 0.1)]
)
def test_ties_beta_rises_with_the_queue_in_five_steps(waiting: int, slots: int, beta: float) -> None:
    view = QueueView(waiting, slots, slots)
    job = Job("a", 5.0, prediction=HEAVY)
    assert make_policy("tie").key(job, view, 0.0) == pytest.approx(make_policy(f"tie:beta={beta}").key(job, view, 0.0))


def test_tie_serves_a_long_wait_first_unless_gamma_is_1() -> None:
    """With gamma 0.9 and tau 30 s, a score 20 times as large ties after 853 s."""
    long, short = Job("long", 0.0, prediction=Point(2000)), Job("short", 852.0, prediction=Point(100))
    assert prefers("tie", short, long)
    short.arrival = 854.0
    assert prefers("tie", long, short)
    assert prefers("tie:gamma=1", short, long)


def test_srpt_orders_by_the_expected_remaining_length() -> None:
    long, short = Job("long", 0.0, prediction=Point(1000)), Job("short", 0.0, prediction=Point(200))
    assert prefers("srpt", short, long)
    long.generated = 900
    assert prefers("srpt", long, short)


def test_srpt_preempts_the_most_remaining_but_not_beyond_c() -> None:
    running = [Job("far", 0.0, prediction=Point(1000)), Job("near", 0.0, prediction=Point(400))]
    running[0].generated, running[1].generated = 600, 10
    short, middling = Job("short", 0.0, prediction=Point(50)), Job("middling", 0.0, prediction=Point(395))
    assert choose_victim(make_policy("srpt:c=0.8"), running, short, 0.0) is running[0]
    assert choose_victim(make_policy("srpt:c=0.8"), running, middling, 0.0) is running[0]  # 400 remaining against 395
    assert choose_victim(make_policy("srpt:c=0.5"), running, short, 0.0) is running[1]
    assert choose_victim(make_policy("srpt:c=0.5"), running, middling, 0.0) is None
    assert choose_victim(make_policy("srpt:c=0.5"), running, None, 0.0) is running[1]
    assert choose_victim(make_policy("srpt:c=0"), running, short, 0.0) is None
    running[1].generated = 0
    assert (
        choose_victim(make_policy("srpt:c=0"), running, short, 0.0) is running[1]
    )  # a job without a token may be preempted


def test_srpts_limit_uses_the_initial_prediction_after_a_refinement() -> None:
    running = Job("a", 0.0, prediction=Point(100))
    running.generated = 90
    running.update_prediction(Point(1000))
    assert running.initial_expected == 100
    assert choose_victim(make_policy("srpt:c=0.8"), [running], Job("b", 0.0, prediction=Point(5)), 0.0) is None
    assert choose_victim(make_policy("srpt:c=1"), [running], Job("b", 0.0, prediction=Point(5)), 0.0) is running


def test_the_last_prediction_before_the_first_token_is_the_initial_one() -> None:
    job = Job("a", 0.0)
    prior = job.initial_expected
    job.update_prediction(Point(70))
    job.update_prediction(Point(100))
    assert prior != job.initial_expected == 100
    job.generated = 1
    job.update_prediction(Point(50))
    assert job.initial_expected == 100


def test_gittins_is_srpt_where_lengths_are_certain() -> None:
    jobs = [Job(str(n), 0.0, prediction=Point(100 * (n + 1))) for n in range(5)]
    for job in jobs[1:]:
        job.generated = 60
    columns = JobColumns.of(jobs)
    assert np.array_equal(make_policy("gittins").keys(columns, VIEW, 0.0), make_policy("srpt").keys(columns, VIEW, 0.0))


def test_gittins_prefers_a_good_chance_of_a_short_answer_and_ranks_worse_with_age() -> None:
    even, gamble = (
        Job("even", 0.0, prediction=Point(400)),
        Job("gamble", 0.0, prediction=LogT(math.log(300), 1.5, 8192)),
    )
    assert gamble.expected > even.expected
    assert prefers("gittins", gamble, even)
    ranks = []
    for generated in (0, 100, 500, 2000):
        gamble.generated = generated
        ranks.append(make_policy("gittins").key(gamble, VIEW, 0.0))
    assert ranks == sorted(ranks)
    assert prefers("gittins", even, gamble)


def test_gittins_preempts_by_a_margin_so_that_equal_jobs_do_not_alternate() -> None:
    running, waiting = Job("a", 0.0, prediction=HEAVY), Job("b", 0.0, prediction=HEAVY)
    gittins = make_policy("gittins")

    def preempted_at(runner: Job, other: Job) -> int:
        for generated in range(runner.generated, 8192, 16):
            runner.generated = generated
            if choose_victim(gittins, [runner], other, 0.0) is runner:
                return generated
        raise AssertionError("never preempted")

    first = preempted_at(running, waiting)
    second = preempted_at(waiting, running)
    assert first > 50
    assert second > 1.5 * first


def test_hrrn_serves_the_longest_wait_relative_to_length() -> None:
    long, short = Job("long", 0.0, prediction=Point(1000)), Job("short", 9.5, prediction=Point(50))
    assert not prefers("hrrn", short, long, now=10.0)  # 0.5 s for 50 tokens, 10 s for 1,000: as 1 to 1
    assert prefers("hrrn", short, long, now=10.5)
    assert prefers("hrrn", long, short, now=9.9)


def test_lpm_runs_the_longest_cached_prefix_first_and_equal_ones_by_arrival() -> None:
    none, first, later, most = (
        Job(name, arrival, 1000, cached_tokens=cached)
        for name, arrival, cached in (("none", 0.0, 0), ("first", 1.0, 64), ("later", 2.0, 64), ("most", 3.0, 900))
    )
    assert order("lpm", [none, first, later, most]) == ["most", "first", "later", "none"]


def test_boost_needs_no_prediction_and_bounds_its_head_start() -> None:
    large, small = Job("large", 0.0, 8000), Job("small", 20.0, 10)
    assert prefers("boost", small, large)
    keys = [
        make_policy("boost").key(Job("x", 3.0, 500, prediction=prediction), VIEW, 0.0) for prediction in (None, HEAVY)
    ]
    assert keys[0] == keys[1]
    assert prefers("boost", large, Job("tiny", 84.0, 1))
    cached = Job("cached", 20.0, 8000, cached_tokens=7990)
    assert prefers("boost", cached, large)
    assert order("boost:horizon=0", [large, small]) == ["large", "small"]


def test_preble_visits_ten_hit_groups_with_shares_that_fall_from_100_to_10() -> None:
    jobs = []
    for number in range(400):
        jobs.append(Job(f"cold {number}", float(number), 100))
        jobs.append(Job(f"hot {number}", float(number), 100, cached_tokens=95))
        jobs.append(Job(f"warm {number}", float(number), 100, cached_tokens=50))
    served = order("preble", jobs)
    groups = [name.split()[0] for name in served]
    assert groups[:100] == ["hot"] * 100
    assert groups[100:160] == ["warm"] * 60
    assert groups[160:170] == ["cold"] * 10
    assert groups[170:270] == ["hot"] * 100
    for group in ("hot", "warm", "cold"):
        assert [name for name in served if name.startswith(group)] == [f"{group} {n}" for n in range(400)]


def test_preble_without_a_cache_is_first_come_first_served() -> None:
    jobs = [Job(str(n), float(n), 10 * n) for n in range(30)]
    assert order("preble", jobs) == [str(n) for n in range(30)]


def test_a_job_without_a_prediction_never_counts_as_short() -> None:
    unknown, short, long = (
        Job("unknown", 0.0),
        Job("s", 0.0, prediction=Point(20)),
        Job("l", 0.0, prediction=Point(6000)),
    )
    for spec in ("sjf", "ltr", "sept", "tie", "srpt", "gittins"):
        assert prefers(spec, short, unknown)
        assert prefers(spec, unknown, long)
    assert prefers("hrrn", short, unknown, now=1.0)
    assert prefers("hrrn", unknown, long, now=1.0)
