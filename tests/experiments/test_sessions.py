"""The time of a session by policy."""

from __future__ import annotations

from experiments.sessions import ATTAINED, STUDY, LeastAttained, SessionTimes, castillo_turns, tables
from lengthwise.intervals import Ratio
from lengthwise.lengths import Point
from lengthwise.policies import Fcfs, Job, PolicyQueue


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


def test_there_is_a_table_for_each_workload_and_an_answer_for_each_load() -> None:
    ratio = Ratio(1.2, 1.1, 1.3)
    found = [
        SessionTimes(workload, 1.1, policy, 9.0, ratio, ratio, ratio)
        for workload in ("CASTILLO turns", "ReAct agents")
        for policy in ("fcfs", ATTAINED, "sessions(fcfs)")
    ]
    assert [len(table.rows) for table in tables(found)] == [3, 3]
    assert "ReAct agents, load 1.1: 1.20x at p99 1.20" in STUDY.output(found).verdict
