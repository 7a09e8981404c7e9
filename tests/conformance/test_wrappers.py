"""The claims of the wrappers, around any policy: the starvation bound, fair shares, strict classes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.lengths import Point
from lengthwise.policies import WRAPPERS, Job, JobColumns, PolicyQueue, make_policy, selects
from lengthwise.policies.base import choose_victim
from tests.conformance.strategies import jobs, plain, preempting

lengths = st.integers(1, 2_000)


@given(
    plain,
    st.integers(0, 6),
    st.integers(0, 50),
    st.lists(st.tuples(st.floats(0, 20), lengths, st.integers(0, 2)), min_size=1, max_size=60),
)
def test_bounded_limits_overtaking_by_count_and_by_time(
    inside: str, overtakes: int, wait: int, traffic: list[tuple[float, int, int]]
) -> None:
    queue = PolicyQueue(make_policy(f"bounded({inside}):overtakes={overtakes},wait={wait}"), slots=2)
    now, arrived, admitted = 0.0, 0, []
    for gap, length, pops in traffic:
        now += gap
        queue.push(Job(str(arrived), now, 7, prediction=Point(length), tenant=str(length % 3)), now)
        arrived += 1
        admitted += [job for _ in range(pops) if (job := queue.pop(now)) is not None]
    while (last := queue.pop(now)) is not None:
        admitted.append(last)
    assert len(admitted) == arrived
    for place, job in enumerate(admitted):
        overtakers = [other for other in admitted[:place] if int(other.id) > int(job.id)]
        assert len(overtakers) <= overtakes
        assert all(other.arrival - job.arrival <= wait for other in overtakers)


def fill(queue: PolicyQueue, tenant: str, lengths: list[int]) -> None:
    for length in lengths:
        number = len(queue)
        queue.push(Job(f"{tenant} {number}", float(number), prediction=Point(length), tenant=tenant), float(number))


@settings(max_examples=30)
@given(
    plain.filter(lambda spec: spec != "preble"),
    st.integers(1, 60),
    st.lists(st.integers(1, 4), min_size=300, max_size=400),
    st.lists(st.integers(5, 20), min_size=100, max_size=150),
)
def test_fair_serves_waiting_tenants_equally_within_two_quanta_and_two_requests(
    inside: str, quantum: int, greedy: list[int], modest: list[int]
) -> None:
    """Although one tenant has more, shorter and older requests."""
    queue = PolicyQueue(make_policy(f"fair({inside}):quantum={quantum}"), slots=2)
    fill(queue, "greedy", greedy)
    fill(queue, "modest", modest)
    admitted = {"greedy": 0, "modest": 0}
    while admitted["greedy"] < sum(greedy) and admitted["modest"] < sum(modest):
        job = queue.pop(1000.0)
        assert job is not None
        assert job.tenant is not None
        admitted[job.tenant] += job.charged
        assert abs(admitted["greedy"] - admitted["modest"]) <= 2 * quantum + 2 * max(*greedy, *modest)


@pytest.mark.parametrize("inside", ["fcfs", "sjf", "hrrn", "srpt"])
def test_fair_gives_no_credit_for_an_unused_share(inside: str) -> None:
    queue = PolicyQueue(make_policy(f"fair({inside}):quantum=50"), slots=2)
    fill(queue, "early", [10] * 500)
    for _ in range(200):
        assert queue.pop(1000.0) is not None
    fill(queue, "late", [10] * 100)
    next_served = [job.tenant for _ in range(60) if (job := queue.pop(1000.0)) is not None]
    assert 25 <= next_served.count("late") <= 35


def test_fair_replaces_the_expected_charge_by_the_true_one() -> None:
    queue = PolicyQueue(make_policy("fair(fcfs):quantum=10"), slots=2)
    wrong = Job("0", 0.0, prediction=Point(1), tenant="under-predicted")
    queue.push(wrong, 0.0)
    assert queue.pop(0.0) is wrong
    wrong.generated = 1000
    queue.finished(wrong)
    fill(queue, "under-predicted", [1])
    fill(queue, "exact", [1] * 50)
    served = [job.tenant for _ in range(51) if (job := queue.pop(1.0)) is not None]
    assert served.index("under-predicted") == 50


@given(plain, st.lists(jobs(), min_size=1, max_size=6), jobs(), st.floats(0, 100))
def test_classes_preempts_the_least_urgent_for_memory_and_for_more_urgent_jobs(
    inside: str, running: list[Job], candidate: Job, now: float
) -> None:
    policy = make_policy(f"classes({inside})")
    least_urgent = max(job.priority for job in running)
    victim = choose_victim(policy, running, None, now)
    assert victim is not None
    assert victim.priority == least_urgent
    taken = choose_victim(policy, running, candidate, now)
    if candidate.priority < least_urgent:
        assert taken is not None
        assert taken.priority == least_urgent
    elif taken is not None:
        assert taken.priority == candidate.priority


@given(preempting(depth=0), st.lists(jobs(), min_size=1, max_size=6), jobs(), st.floats(0, 100))
def test_rounds_also_hold_for_running_jobs(inside: str, running: list[Job], candidate: Job, now: float) -> None:
    candidate.update_prediction(Point(1))
    candidate.generated = candidate.priority = 0
    for wrapper in ("fair", "bounded"):
        policy = make_policy(f"{wrapper}({inside})")
        victim = choose_victim(policy, running, None, now)
        assert victim is not None
        assert victim.round_number == max(job.round_number for job in running)
        index = policy.find_victim(JobColumns.of(running), candidate, now)
        assert index is None or running[index].round_number >= candidate.round_number


@given(
    st.lists(st.tuples(lengths, st.floats(0.1, 60.0)), min_size=1, max_size=40), st.sampled_from(["fair", "classes"])
)
def test_around_a_policy_that_selects_one_tenant_of_one_class_is_served_as_without_the_wrapper(
    traffic: list[tuple[int, float]], wrapper: str
) -> None:
    orders = []
    for spec in ("ontime:per_token=5", f"{wrapper}(ontime:per_token=5)"):
        queue = PolicyQueue(make_policy(spec), slots=2)
        queue.tokens_per_s = 10.0
        for number, (length, limit) in enumerate(traffic):
            queue.push(Job(str(number), float(number), prediction=Point(length), ttft_limit_s=limit), float(number))
        now = float(len(traffic))
        orders.append([job.id for _ in traffic if (job := queue.pop(now)) is not None])
    assert orders[0] == orders[1]


def test_a_wrapper_selects_if_its_inner_policy_does() -> None:
    for wrapper in WRAPPERS:
        assert selects(make_policy(f"{wrapper}(slo)"))
        assert not selects(make_policy(f"{wrapper}(lengthwise)"))


@given(st.integers(0, 300), st.integers(200, 600))
def test_background_puts_the_predicted_longest_behind_all_others_and_only_them(seed: int, count: int) -> None:
    rng = random.Random(seed)
    drawn = [round(rng.lognormvariate(5.0, 1.0)) + 1 for _ in range(count)]
    queue = PolicyQueue(make_policy("background(fcfs):share=0.1"), slots=2)
    for length in drawn:
        queue.push(Job(f"before {len(queue)}", 0.0, prediction=Point(length)), 0.0)
    while queue.pop(0.0) is not None:
        pass
    queue.push(Job("longest", 0.0, prediction=Point(2 * max(drawn))), 0.0)
    queue.push(Job("unknown", 1.0), 1.0)
    for number, length in enumerate(sorted(drawn)[: int(0.8 * count)]):
        queue.push(Job(str(number), 2.0, prediction=Point(length)), 2.0)
    order = [job.id for _ in range(len(queue)) if (job := queue.pop(2.0)) is not None]
    assert order[0] == "unknown"
    assert order[-1] == "longest"


def test_background_follows_a_prediction_that_arrives_late() -> None:
    queue = PolicyQueue(make_policy("background(fcfs)"), slots=2)
    for number in range(400):
        queue.push(Job(str(number), 0.0, prediction=Point(10 + number % 50)), 0.0)
        queue.pop(0.0)
    first, second = Job("first", 1.0), Job("second", 2.0, prediction=Point(20))
    for job in (first, second):
        queue.push(job, job.arrival)
    first.update_prediction(Point(5000))
    queue.update(first, 3.0)
    assert [job.id for job in queue] == ["second", "first"]
