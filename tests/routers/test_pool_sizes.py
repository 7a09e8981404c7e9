"""The number of engines that compute prompts follows the predicted work."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.routers.pool_sizes import PoolDemand, prefill_engines, slowdown

WORK = st.floats(0.0, 40.0)
SECONDS = st.floats(1e-3, 100.0)
DEMAND = st.builds(PoolDemand, WORK, WORK, SECONDS, SECONDS)


@given(DEMAND, st.integers(2, 32), st.data())
def test_each_pool_keeps_an_engine_and_a_change_is_worth_the_margin(
    demand: PoolDemand, engines: int, data: st.DataObject
) -> None:
    current = data.draw(st.integers(1, engines - 1))
    chosen = prefill_engines(demand, engines, current)
    assert 1 <= chosen < engines
    if chosen != current:
        assert demand.latency_s(current, engines) > 1.1 * demand.latency_s(chosen, engines)
        assert prefill_engines(demand, engines, chosen) == chosen


@given(DEMAND, st.integers(2, 32), st.floats(1.0, 4.0))
def test_more_work_in_a_pool_never_gives_it_fewer_engines(demand: PoolDemand, engines: int, factor: float) -> None:
    def best(changed: PoolDemand) -> int:
        return prefill_engines(changed, engines, 1, margin=0.0)

    assert best(replace(demand, prefill=factor * demand.prefill)) >= best(demand)
    assert best(replace(demand, decode=factor * demand.decode)) <= best(demand)


@given(st.floats(0.0, 0.94), st.floats(1e-3, 5.0))
def test_slowdown_is_that_of_processor_sharing_and_rises_beyond_capacity(utilisation: float, more: float) -> None:
    assert slowdown(utilisation) == pytest.approx(1 / (1 - utilisation))
    assert slowdown(utilisation + more) > slowdown(utilisation)


def test_the_pools_have_the_ratio_of_the_work() -> None:
    assert prefill_engines(PoolDemand(6.0, 1.0, 1.0, 1.0), 8, 4) == 6
    assert prefill_engines(PoolDemand(1.0, 6.0, 1.0, 1.0), 8, 4) == 2
    assert prefill_engines(PoolDemand(60.0, 10.0, 1.0, 1.0), 8, 4) == 6, "overloaded, too"
    assert prefill_engines(PoolDemand(0.0, 0.0, 1.0, 1.0), 8, 5) == 5
