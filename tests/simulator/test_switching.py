"""The work that decides how many engines compute prompts is that of the window and of what waits."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from lengthwise.routers.pool_sizes import PoolDemand
from lengthwise.simulator import predict_workload
from lengthwise.simulator.switching import WorkMeter
from lengthwise.simulator.traffic import Traffic
from tests.simulator.builders import UNEVEN, engine, requests

NOTHING = np.empty(0, np.int64)


def meter(traffic: Traffic, *, factor: float = 1.0) -> WorkMeter:
    """Return a meter whose predictions are the true lengths, times a factor."""
    expected = factor * traffic.workload.output_tokens.astype(np.float64)
    return WorkMeter(traffic, traffic.requests, (expected, expected), engine(UNEVEN, seqs=8, blocks=1000), 10.0)


def traffic(every_s: float = 1.0, n: int = 40) -> Traffic:
    workload = requests([(100, 50)] * n, [every_s * row for row in range(n)])
    return Traffic.of(workload, predict_workload(workload, "oracle"))


def demand(some: Traffic, now: float, *, factor: float = 1.0, queued: int = 0, handed: int = 0) -> PoolDemand:
    found = meter(some, factor=factor).demand(now, np.arange(queued), np.arange(handed))
    assert found is not None
    return found


def test_demand_is_the_work_per_second_of_the_last_seconds() -> None:
    steady, twice = demand(traffic(), 20.0), demand(traffic(0.5, 80), 20.0)
    assert twice.prefill == pytest.approx(2 * steady.prefill)
    assert twice.decode == pytest.approx(2 * steady.decode)
    assert (twice.prefill_s, twice.decode_s) == pytest.approx((steady.prefill_s, steady.decode_s))
    assert astuple(demand(traffic(), 5.0)) == pytest.approx(astuple(steady)), "at the start the window is shorter"
    assert meter(traffic()).demand(60.0, NOTHING, NOTHING) is None, "nothing has arrived for ten seconds"


def test_what_waits_and_longer_predictions_add_work_to_their_pool() -> None:
    some = traffic()
    usual = demand(some, 20.0)
    queued, handed, longer = demand(some, 20.0, queued=10), demand(some, 20.0, handed=10), demand(some, 20.0, factor=3)
    assert queued.prefill == pytest.approx(2 * usual.prefill)
    assert handed.decode == pytest.approx(2 * usual.decode)
    assert (queued.decode, handed.prefill) == (usual.decode, usual.prefill)
    assert longer.decode > 3 * usual.decode, "contexts are longer, too"
    assert longer.prefill == usual.prefill


def test_cached_prompts_are_no_work() -> None:
    some = traffic()
    usual = demand(some, 20.0)
    some.requests["first_token"][:20], some.requests["initial_cached"][:20] = 1.0, 75
    assert demand(some, 20.0).prefill == pytest.approx(usual.prefill / 4)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_predictions_that_are_wrong_on_average_are_worth_less_work(factor: float) -> None:
    some = traffic()
    assert meter(some, factor=factor).worth(20.0) == 1.0
    some.requests["started"][:30] = np.arange(30.0)
    some.requests["finish"][:20] = np.arange(20.0) + 10.0
    seen = meter(some, factor=factor).worth(29.5)
    generated = 20 * 50 + 49 / 10 * (29.5 - np.arange(20.0, 30.0)).sum()
    assert seen == pytest.approx((generated / (50 * factor) + 10) / 30)
    assert (seen < 1.0) == (factor > 1.2)
