"""PolicyQueue, Job and the simplest policies by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import Histogram, LogT, Point
from lengthwise.policies import Fcfs, Job, PolicyQueue, QueueView, Sjf, make_policy
from lengthwise.policies.base import choose_victim
from tests.policies.raising import CALLS, raising

VIEW = QueueView(slots=4)


def served(queue: PolicyQueue) -> list[str]:
    order = []
    while (job := queue.pop(0.0)) is not None:
        order.append(job.id)
    return order


def test_fcfs_serves_in_order_of_arrival() -> None:
    queue = PolicyQueue(Fcfs())
    for name, arrival in (("b", 2.0), ("a", 1.0), ("c", 3.0)):
        queue.push(Job(name, arrival), 3.0)
    assert served(queue) == ["a", "b", "c"]


def test_sjf_serves_a_job_without_a_prediction_between_short_and_long_ones() -> None:
    queue = PolicyQueue(Sjf())
    queue.push(Job("long", 0.0, prediction=Point(4000)), 0.0)
    queue.push(Job("unknown", 1.0), 1.0)
    queue.push(Job("short", 2.0, prediction=Point(10)), 2.0)
    assert served(queue) == ["short", "unknown", "long"]


def test_max_tokens_caps_the_expected_length() -> None:
    job = Job("a", 0.0, prediction=LogT(8, 1, 131_072), max_tokens=50)
    assert job.expected <= 50
    assert job.tail == 50
    assert Job("b", 0.0, max_tokens=20).expected <= 20


def test_priority_precedes_any_key() -> None:
    queue = PolicyQueue(Sjf())
    queue.push(Job("short", 0.0, prediction=Point(1)), 0.0)
    queue.push(Job("urgent", 0.0, prediction=Point(1000), priority=-1), 0.0)
    assert served(queue) == ["urgent", "short"]


def test_the_kill_switch_restores_arrival_order() -> None:
    queue = PolicyQueue(Sjf())
    queue.push(Job("first", 0.0, prediction=Point(1000)), 0.0)
    queue.push(Job("second", 1.0, prediction=Point(1)), 1.0)
    queue.use(Fcfs(), 2.0)
    assert served(queue) == ["first", "second"]


def test_the_victim_is_the_last_admitted_under_fcfs_and_the_most_remaining_under_sjf() -> None:
    running = [
        Job("a", 0.0, prediction=Point(900)),
        Job("b", 1.0, prediction=Point(500)),
        Job("c", 2.0, prediction=Point(600)),
    ]
    running[0].generated = 800
    assert choose_victim(Fcfs(), running, None, 0.0) is running[2]
    assert choose_victim(Sjf(), running, None, 0.0) is running[2]
    running[2].generated = 200
    assert choose_victim(Sjf(), running, None, 0.0) is running[1]


def test_a_late_prediction_moves_a_waiting_job() -> None:
    queue = PolicyQueue(Sjf())
    early, late = Job("early", 0.0), Job("late", 1.0)
    queue.push(early, 0.0)
    queue.push(late, 1.0)
    late.update_prediction(Histogram([0, 10], [1.0]))
    queue.update(late, 2.0)
    assert served(queue) == ["late", "early"]


def test_a_preempted_job_is_ahead_of_equal_keys() -> None:
    queue = PolicyQueue(Sjf())
    for name in ("a", "b"):
        queue.push(Job(name, 0.0, prediction=Point(10)), 0.0)
    queue.push(Job("preempted", 0.0, prediction=Point(10)), 1.0, front=True)
    queue.push(Job("preempted later", 0.0, prediction=Point(10)), 1.0, front=True)
    assert served(queue) == ["preempted later", "preempted", "a", "b"]


@given(st.lists(st.integers(1, 50), max_size=40), st.lists(st.integers(0, 39)), st.integers(0, 45))
def test_the_first_jobs_are_those_of_the_whole_order(lengths: list[int], removed: list[int], count: int) -> None:
    queue = PolicyQueue(Sjf())
    for number, length in enumerate(lengths):
        queue.push(Job(str(number), 0.0, prediction=Point(length), priority=length % 2), 0.0)
    for number in removed:
        if str(number) in queue:
            queue.remove(str(number))
    assert queue.first(count) == list(queue)[:count]


def test_a_job_waits_once() -> None:
    queue = PolicyQueue(Fcfs())
    queue.push(Job("a", 0.0), 0.0)
    with pytest.raises(InputError, match="waiting already"):
        queue.push(Job("a", 1.0), 1.0)
    with pytest.raises(InputError, match="does not wait here"):
        queue.update(Job("b", 1.0), 1.0)


def test_a_job_prints_on_one_short_line() -> None:
    assert repr(Job("a", 1.5, 20, prediction=Point(7))) == (
        "Job('a', arrival=1.5, prompt_tokens=20, generated=0, prediction=7 tokens)"
    )
    assert repr(LogT(5.85793315, 1.0, 8192)) == "LogT(mu=5.85793, sigma=1, cap=8192)"
    assert repr(Histogram([0, 10, 20], [0.5, 0.5])) == "Histogram(2 bins from 0 to 20 tokens, median=10, cap=20)"


@pytest.mark.parametrize(
    ("call", "after"),
    [(call, after) for call in [*CALLS, "select"] for after in (0, 2) if (call, after) != ("rounds", 2)],
)
def test_a_policy_that_raises_loses_no_job_and_the_queue_continues_in_order_of_arrival(
    call: str, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = []
    queue = PolicyQueue(raising(call, after), on_failure=errors.append)
    popped = [Job(str(n), float(n)) for n in range(3)]
    waiting = [Job(str(n), float(n)) for n in range(3, 12)]
    for job in [*popped, *waiting]:
        queue.push(job, job.arrival)
    popped = [queue.pop(20.0 + n) or popped[0] for n in range(3)]
    for n, job in enumerate(list(queue)):
        job.update_prediction(Point(n + 1))
        queue.update(job, 30.0 + n)
    for job in popped:
        queue.finished(job)
        assert queue.victim(popped, job, 40.0) is None
        assert queue.victim(popped, None, 40.0) in popped
    queue.pop(50.0)
    queue.push(popped[0], 51.0, front=True)
    assert len(errors) == 1, "the policy that replaces it does not raise"
    assert queue.policy.name == "fcfs"
    assert "failed" in caplog.text
    order = [job.arrival for job in iter(lambda: queue.pop(60.0), None)]
    assert len(order) == 9
    assert order == sorted(order)


def test_a_queue_falls_back_when_it_is_changed_to_a_policy_that_raises() -> None:
    queue = PolicyQueue(Sjf())
    for n in range(4):
        queue.push(Job(str(n), float(n), prediction=Point(9 - n)), 5.0)
    queue.use(raising("keys", after=0), 6.0)
    assert [job.id for job in queue] == ["0", "1", "2", "3"]


def test_a_priority_of_400_digits_stops_no_policy_from_being_used() -> None:
    queue = PolicyQueue(make_policy("hrrn"))
    for n in range(3):
        queue.push(Job(str(n), float(n), priority=10**400 if n == 0 else 0), 3.0)
    queue.use(Fcfs(), 4.0)
    assert [job.id for job in iter(lambda: queue.pop(5.0), None)] == ["1", "2", "0"]
