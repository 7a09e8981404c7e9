"""The order in which a side of the race is shown."""

from __future__ import annotations

import math

from lengthwise.client.client import EngineClient
from lengthwise.client.load import Sample
from lengthwise.demo.race import Side, _Open


def side(waiting: list[int], running: list[int] = [], order: list[int] = []) -> Side:  # noqa: B006  (not changed)
    made = Side("http://127.0.0.1:1", "fcfs", "", EngineClient("http://127.0.0.1:1"))
    for number in sorted([*waiting, *running]):
        first = 1.0 if number in running else math.nan
        made.open[number] = _Open(number, number, Sample(number, 0.0, 10, first_token_s=first))
    made.order = order
    return made


def numbers(found: list[_Open]) -> list[int]:
    return [each.number for each in found]


def test_waiting_requests_are_in_the_order_that_the_gateway_reports() -> None:
    assert numbers(side([1, 2, 3], order=[3, 1, 2]).waiting()) == [3, 1, 2]


def test_those_that_have_left_the_queue_come_first_and_those_that_arrived_since_last() -> None:
    assert numbers(side([1, 2, 3, 4], order=[3, 2]).waiting()) == [1, 3, 2, 4]


def test_a_request_keeps_its_slot_to_the_end() -> None:
    made = side([], running=[1, 2])
    assert [each.slot for each in made.running(4)] == [0, 1]
    del made.open[1]
    made.open[3] = _Open(3, 3, Sample(3, 0.0, 10, first_token_s=1.0))
    assert {each.number: each.slot for each in made.running(4)} == {2: 1, 3: 0}
