from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lengthwise.predictors.start_order import HELD_PER_RUNNING, StartOrder


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[bool, int]]:
    """Starts (True) and ends of requests; each ends after it started, and all end."""
    events: list[tuple[bool, int]] = []
    running: list[int] = []
    started = 0
    for _ in range(draw(st.integers(0, 120))):
        if bool(running) and draw(st.booleans()):
            events.append((False, running.pop(draw(st.integers(0, len(running) - 1)))))
        else:
            running.append(started)
            events.append((True, started))
            started += 1
    return events + [(False, request) for request in draw(st.permutations(running))]


@given(histories())
def test_every_answer_is_released_once_and_few_are_held(events: list[tuple[bool, int]]) -> None:
    order: StartOrder[int] = StartOrder()
    running, held, released = set[int](), set[int](), list[int]()
    for starts, request in events:
        if starts:
            order.started(request)
            running.add(request)
            continue
        running.remove(request)
        found = order.ended(request, request)
        held = (held | {request}) - set(found)
        released += found
        assert len(held) <= HELD_PER_RUNNING * len(running)
    assert sorted(released) == sorted(request for starts, request in events if starts)
    assert len(order) == 0


@given(histories())
def test_answers_are_released_in_the_order_of_their_starts_unless_one_is_passed_over(
    events: list[tuple[bool, int]],
) -> None:
    order: StartOrder[int] = StartOrder()
    running, passed, released = set[int](), set[int](), list[int]()
    for starts, request in events:
        if starts:
            order.started(request)
            running.add(request)
            continue
        running.remove(request)
        found = order.ended(request, request)
        passed |= {each for each in running if any(each < later for later in found)}
        released += found
    kept = [each for each in released if each not in passed]
    assert kept == sorted(kept)


def test_a_request_that_runs_on_and_on_is_passed_over() -> None:
    order: StartOrder[int] = StartOrder()
    order.started(0)
    for request in range(1, HELD_PER_RUNNING + 2):
        order.started(request)
    ends = [order.ended(request, request) for request in range(1, HELD_PER_RUNNING + 2)]
    assert ends == [*([[]] * HELD_PER_RUNNING), list(range(1, HELD_PER_RUNNING + 2))]
    assert order.ended(0, 0) == [0]


def test_a_request_that_was_not_reported_to_run_delays_nothing() -> None:
    order: StartOrder[str] = StartOrder()
    order.started("runs")
    assert order.ended("unknown", "at once") == ["at once"]
    order.started("later")
    order.started("runs")
    assert order.ended("later", "held") == []
    assert order.rest() == ["held"]
    assert len(order) == 0
