"""The number by which stock engines order a request follows the policy's order, and no request waits forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.engine_groups import SPREAD_S, EnginePriority

ORDERS = st.lists(st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)), min_size=1, max_size=400)


@given(ORDERS, st.floats(0, 1e6), st.floats(0, 5))
def test_no_request_is_overtaken_by_one_sent_after_the_spread(
    orders: list[tuple[int, float]], start: float, gap: float
) -> None:
    priority = EnginePriority()
    numbers = [priority.number(order, 0, start + gap * n) for n, order in enumerate(orders)]
    for n, number in enumerate(numbers):
        assert all(number <= later for m, later in enumerate(numbers[n:]) if gap * m > SPREAD_S + 0.1)


@given(ORDERS, st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)), st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)))
def test_priorities_of_requests_sent_together_follow_the_order(
    orders: list[tuple[int, float]], one: tuple[int, float], other: tuple[int, float]
) -> None:
    first, second = EnginePriority(), EnginePriority()
    for order in orders:
        first.number(order, 0, 0.0)
        second.number(order, 0, 0.0)
    low, high = sorted((one, other))
    assert first.number(low, 0, 1.0) <= second.number(high, 0, 1.0)


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.tuples(st.integers(0, 3), st.floats(-1e9, 1e9)))
def test_the_priority_fits_into_64_bits(own: int, order: tuple[int, float]) -> None:
    priority = EnginePriority()
    priority.number(order, own, 0.0)
    assert -(1 << 63) <= priority.number(order, own, 1e8) < 1 << 63
