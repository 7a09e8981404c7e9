"""Bursts on an engine: an order gains only if requests wait."""

from __future__ import annotations

import pytest

from experiments.frontier import Gains
from experiments.slots import STEPS, SlotsPoint, burst, fitted, tables
from lengthwise.intervals import Ratio
from lengthwise.simulator import EngineSpec, Fleet


@pytest.fixture
def engine() -> EngineSpec:
    return Fleet.parse("1*llama-3-8b@a100").engines[0]


def test_a_burst_that_fits_into_the_slots_is_the_same_under_both_policies(engine: EngineSpec) -> None:
    found = burst(256, 100, "lengthwise", "noisy:0.55", 0, engine)
    assert found["lengthwise"] == found["fcfs"]


def test_a_burst_that_waits_gains_per_token(engine: EngineSpec) -> None:
    found = burst(8, 200, "lengthwise", "noisy:0.55", 0, engine)
    assert found["lengthwise"][1] < 0.8 * found["fcfs"][1]


def test_the_kept_step_log_fits_an_engine_whose_steps_grow_with_the_batch() -> None:
    cost = fitted(STEPS).cost
    one, many = (cost.step_s(contexts=[500] * n) for n in (1, 256))
    assert 0.002 < one < many < 0.05


def test_the_tables_show_every_burst_and_each_number_of_slots_once() -> None:
    ratio = Ratio(1.1, 1.0, 1.2)
    gains = Gains(ratio, ratio, ratio, ratio, in_time=1.0)
    points = [SlotsPoint(slots, n, gains, 10.0, 1.0, 5.0, 6.0) for slots in (8, 16) for n in (1, 2)]
    by_burst, speed = tables(points)
    assert len(by_burst.rows) == 4
    assert [row[0] for row in speed.rows] == ["8", "16"]
