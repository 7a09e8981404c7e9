"""`sessions(POLICY)`: order by the rest of a session, its bound, and what counts for whom."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.lengths import Point
from lengthwise.policies import Job, PolicyQueue, make_policy
from lengthwise.policies.sessions import MAX_SESSIONS, MAX_TENANTS, MAX_WORK, _ByRest, _Turns

SLOTS = 2


def play(queue: PolicyQueue, session: str, turns: int, *, tokens: int = 100, **known: Any) -> None:
    """Serve a session of so many turns, one after the other."""
    for turn in range(turns):
        job = Job(f"{known} {session} {turn}", 0.0, prediction=Point(tokens), session=session, **known)
        queue.push(job, 0.0)
        assert queue.pop(0.0) is job
        job.generated = tokens
        queue.finished(job)


def order(queue: PolicyQueue, *jobs: Job) -> list[str]:
    for job in jobs:
        queue.push(job, 0.0)
    return [popped.id for _ in jobs if (popped := queue.pop(0.0)) is not None]


def turn(name: str, tokens: int = 100, **known: Any) -> Job:
    return Job(name, 0.0, prediction=Point(tokens), session=name, **known)


def test_the_turns_to_come_are_learned_by_template_and_tenant() -> None:
    queue = PolicyQueue(make_policy("sessions(fcfs)"), slots=SLOTS)
    for number in range(30):
        play(queue, f"long {number}", 12, template="coder", tenant="a")
        play(queue, f"short {number}", 1, template="chat", tenant="a")
    coder, chat = turn("coder", template="coder", tenant="a"), turn("chat", template="chat", tenant="a")
    assert order(queue, coder, chat) == ["chat", "coder"]


def test_a_session_near_its_end_comes_before_one_that_begins() -> None:
    queue = PolicyQueue(make_policy("sessions(fcfs)"), slots=SLOTS)
    for number in range(30):
        play(queue, f"past {number}", 10)
    play(queue, "old", 9)
    assert order(queue, turn("new"), turn("old")) == ["old", "new"]


def test_the_turns_to_come_are_those_of_complete_sessions() -> None:
    turns = _Turns()
    for length in (3, 5) * 500:
        for number in range(1, length + 1):
            turns.follow(number)
            turns.finish(number, 100.0)
    expected = {1: 3.0, 2: 2.0, 3: 1.0, 4: 1.0, 5: 0.0}
    assert {turn: turns.further(turn, 0.0) for turn in expected} == pytest.approx(expected, rel=0.05)


def test_turns_that_wait_say_nothing_of_the_turns_to_come() -> None:
    state = _ByRest(2.0, 8192.0, lambda: SLOTS)

    def enter(session: str, turn: int) -> Job:
        job = Job(f"{session} {turn}", 0.0, prediction=Point(50), session=session)
        state.enter(job)
        return job

    for number in range(20):
        for turn in range(6):
            state.finished(enter(f"past {number}", turn))
    before = state.tenants[""].all.further(1, 0.5)
    for number in range(200):
        enter(f"waiting {number}", 0)
    assert state.tenants[""].all.further(1, 0.5) == before > 3.5


def test_predicted_lengths_count_as_far_as_turns_of_the_template_have_borne_them_out() -> None:
    def rounds(true: bool) -> list[int]:
        """Return the places of a turn predicted short and of one predicted long."""
        state = _ByRest(2.0, 8192.0, lambda: SLOTS)
        for number in range(200):
            predicted = (10, 1000)[number % 2]
            job = Job(str(number), 0.0, prediction=Point(predicted), session=str(number), template="t")
            state.enter(job)
            job.generated = predicted if true else 100
            state.finished(job)
        state.arrived = 0.0
        return [
            state.enter(Job(f"new {n}", 0.0, prediction=Point(n), session=f"{n}", template="t")) for n in (10, 1000)
        ]

    right, wrong = rounds(true=True), rounds(true=False)
    assert right[1] - right[0] > 10 * (wrong[1] - wrong[0]) >= 0


def test_what_a_tenant_claims_changes_nothing_for_another() -> None:
    def place(claims: bool) -> list[int]:
        state = _ByRest(2.0, 8192.0, lambda: SLOTS)
        for number in range(40 if claims else 0):
            state.enter(Job(str(number), 0.0, prediction=Point(1), session="same", template="t", tenant="liar"))
        state.arrived = 0.0
        jobs = [
            Job(f"mine {number}", 0.0, prediction=Point(50), session="same", template="t", tenant="me")
            for number in range(9)
        ]
        return [state.enter(job) for job in jobs]

    assert place(claims=False) == place(claims=True)


def test_without_a_name_a_session_is_the_one_whose_prompt_is_continued() -> None:
    def turns(*prompts: list[int]) -> list[int]:
        state = _ByRest(2.0, 8192.0, lambda: SLOTS)
        for number, blocks in enumerate(prompts):
            state.enter(Job(str(number), 0.0, blocks=blocks, prediction=Point(9)))
        tenant = state.tenants[""]
        return sorted(session.turns for _, session in tenant.by_last_block.values())

    assert turns([1, 2], [1, 2, 3], [1, 2, 3, 4, 5]) == [3]
    assert turns([1, 2], [1, 3], [1, 4]) == [1, 1, 1]  # a system prompt in common is no session
    assert turns([1, 2], [1, 2]) == [1]  # nor is the same prompt again


@given(
    st.lists(
        st.tuples(st.integers(1, 20_000), st.integers(0, 2), st.sampled_from(["a", "b", None]), st.integers(0, 3)),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from(["fcfs", "sjf", "lengthwise", "ontime"]),
    st.sampled_from([(2, 64), (0, 8192), (5, 1000)]),
)
def test_no_request_is_overtaken_by_one_that_more_work_came_before(
    traffic: list[tuple[int, int, str | None, int]], inside: str, parameters: tuple[int, int]
) -> None:
    weight, most = parameters
    queue = PolicyQueue(make_policy(f"sessions({inside}):weight={weight},most={most}"), slots=SLOTS)
    admitted, work, arrived = [], 0.0, {}
    for number, (tokens, session, tenant, pops) in enumerate(traffic):
        job = Job(str(number), float(number), prediction=Point(tokens), session=str(session), tenant=tenant)
        arrived[job.id] = work
        work += max(1.0, min(job.expected, MAX_WORK)) / SLOTS
        queue.push(job, float(number))
        admitted += [first for _ in range(pops) if (first := queue.pop(float(number))) is not None]
    while (last := queue.pop(1e3)) is not None:
        admitted.append(last)
    assert len(admitted) == len(traffic)
    for place, job in enumerate(admitted):
        for other in admitted[:place]:
            if int(other.id) > int(job.id):
                assert arrived[other.id] - arrived[job.id] <= weight * most + 16.0 + 1e-6


def test_names_that_are_claimed_take_bounded_memory() -> None:
    state = _ByRest(2.0, 8192.0, lambda: SLOTS)
    for number in range(MAX_SESSIONS + 50):
        state.enter(Job(str(number), 0.0, prediction=Point(1), session=str(number)))
    assert len(state.tenants[""].named) == MAX_SESSIONS
    for number in range(MAX_TENANTS + 50):
        state.enter(Job(f"of {number}", 0.0, prediction=Point(1), tenant=str(number)))
    assert len(state.tenants) == MAX_TENANTS


@pytest.mark.parametrize("inside", ["fcfs", "slo"])
def test_a_late_prediction_moves_a_request(inside: str) -> None:
    queue = PolicyQueue(make_policy(f"sessions({inside})"), slots=SLOTS)
    first, second = Job("first", 0.0, session="1"), turn("second")
    for job in (first, second):
        queue.push(job, 0.0)
    first.update_prediction(Point(4000))
    queue.update(first, 1.0)
    served = [popped.id for _ in range(2) if (popped := queue.pop(1.0)) is not None]
    assert served == ["second", "first"]
