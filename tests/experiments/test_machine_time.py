"""The machine's own time: it passes by the cost model in a step, by the clock between steps, and never backwards."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.simulator_error.machine_time import MachineTime
from lengthwise.simulator import StepCost

SECOND = StepCost(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def log(begin: list[float], took: list[float]) -> pa.Table:
    ones = np.ones(len(begin))
    return pa.table(
        {
            "start_s": np.array(begin),
            "seconds": np.array(took),
            "prompt_tokens": ones,
            "prompt_pairs": ones,
            "decodes": ones,
            "context_tokens": ones,
        }
    )


def test_a_stall_is_no_time_and_a_pause_is() -> None:
    # A step of a second that took four, three seconds of nothing, and one that took half; the last ends at 8.
    time = MachineTime.of(log([1000.5, 1007.5], [4.0, 0.5]), SECOND, last_end=8.0)
    clock = np.array([0.0, 0.5, 2.5, 4.5, 7.5, 8.0, 9.0])
    assert time.at(clock).tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5, 4.5, 5.5, 6.5])


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0.01, 5)), min_size=1, max_size=20),
    st.lists(st.floats(-50, 200), min_size=1, max_size=20),
)
def test_there_and_back_is_the_same_moment(steps: list[tuple[float, float]], moments: list[float]) -> None:
    begin, now = [], 0.0
    for pause, took in steps:
        begin.append(now + pause)
        now += pause + took
    time = MachineTime.of(log(begin, [took for _, took in steps]), SECOND, last_end=now)
    clock = np.sort(moments)
    assert time.on_the_clock(time.at(clock)) == pytest.approx(clock, abs=1e-5)
    assert (np.diff(time.at(clock)) >= 0).all()
