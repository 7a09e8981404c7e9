"""The time of a session by policy."""

from __future__ import annotations

import numpy as np

from experiments.sessions import (
    ALONE,
    ATTAINED,
    NOISY_REST,
    STUDY,
    TRUE_REST,
    LeastAttained,
    LeastRest,
    SessionsGrid,
    SessionTimes,
    castillo_turns,
    mean_rest_of_kinds,
    rest_of_sessions,
    sessions_seed,
    tables,
)
from lengthwise.intervals import Ratio
from lengthwise.lengths import Point
from lengthwise.policies import Fcfs, Job, PolicyQueue
from lengthwise.workloads import Workload


def test_every_kind_of_agent_has_as_many_sessions_in_a_closed_loop() -> None:
    workload = castillo_turns(600, 1)
    assert workload.has_think_times
    kinds = set(workload.table["template"].to_pylist())
    assert len(kinds) == 5
    assert (workload.next_turn >= 0).sum() == workload.table["think_s"].drop_null().to_numpy().size


def test_the_session_with_the_fewest_tokens_so_far_comes_first() -> None:
    queue = PolicyQueue(LeastAttained(Fcfs()))
    first = Job("0", 0.0, prediction=Point(5), session="old")
    queue.push(first, 0.0)
    queue.pop(0.0)
    first.generated = 500
    queue.finished(first)
    for name in ("old", "new"):
        queue.push(Job(name, 1.0, session=name), 1.0)
    assert [job.id for job in queue] == ["new", "old"]


def test_the_rest_of_a_session_is_this_turn_and_those_after_it() -> None:
    workload = castillo_turns(300, 1)
    rest = rest_of_sessions(workload)
    names, tokens = workload.table["session"].to_pylist(), workload.output_tokens.tolist()
    for row in (0, 17, 150, 299):
        assert rest[row] == sum(tokens[later] for later in range(row, 300) if names[later] == names[row])


def test_the_mean_rest_is_that_of_the_kind_at_the_turn() -> None:
    table = {
        "arrival_s": [0.0] * 6,
        "input_tokens": [8] * 6,
        "output_tokens": [10, 20, 30, 40, 5, 7],
        "session": ["a", "a", "b", "b", "b", "c"],
        "template": ["x"] * 5 + ["y"],
        "think_s": [None, 1.0, None, 1.0, 1.0, None],
    }
    found = mean_rest_of_kinds(Workload.from_table(table, name="by hand"))
    assert found.tolist() == [52.5, 32.5, 52.5, 32.5, 5.0, 7.0]


def test_the_session_with_the_least_rest_comes_first() -> None:
    queue = PolicyQueue(LeastRest(Fcfs(), np.array([900.0, 100.0, 400.0])))
    for row in range(3):
        queue.push(Job(str(row), 0.0), 0.0)
    assert [job.id for job in queue] == ["1", "2", "0"]


def test_alone_no_session_waits_and_the_true_rest_lies_between() -> None:
    grid = SessionsGrid(requests=300, slots=4, policies=(TRUE_REST, NOISY_REST, ALONE))
    mean = {label: times[0] for label, times in sessions_seed("CASTILLO turns", 1.5, 0, grid).items()}
    assert mean[ALONE] < mean[TRUE_REST] < mean["fcfs"]
    assert mean[ALONE] < mean[NOISY_REST] < mean["fcfs"]


def test_there_is_a_table_for_each_workload_and_an_answer_for_each_load() -> None:
    ratio = Ratio(1.2, 1.1, 1.3)
    found = [
        SessionTimes(workload, 1.1, policy, 9.0, ratio, ratio, ratio, 0.4, 0.9)
        for workload in ("CASTILLO turns", "ReAct agents")
        for policy in ("fcfs", ATTAINED, "sessions(fcfs)")
    ]
    assert [len(table.rows) for table in tables(found)] == [3, 3]
    assert "ReAct agents, load 1.1: 1.20x at p99 1.20, 40% of what the true rest saves" in STUDY.output(found).verdict
