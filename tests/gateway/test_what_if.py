"""Recorded traffic in the simulator: its clock is fitted, and ratios are worded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.gateway.dashboard import LiveFleet, WhatIf
from lengthwise.gateway.recent_requests import ROW, Rows
from lengthwise.gateway.what_if import LastHour, answers
from lengthwise.simulator import simulate

ENGINE = "llama-3-8b@a100"
NOW = LiveFleet("fcfs", 1, 8, 40_000, "lengthwise")


def recorded(speed: float, n: int = 120) -> Rows:
    """Return requests of an engine that is `speed` times as fast as the simulated one."""
    rng = np.random.default_rng(0)
    rows = np.zeros(n, ROW)
    rows["arrival_s"] = np.cumsum(rng.exponential(0.3, n))
    rows["output_tokens"] = np.maximum(2, rng.lognormal(4.5, 1.0, n)).astype(int)
    rows["input_tokens"] = 100
    rows["mu"], rows["sigma"], rows["max_tokens"] = np.log(rows["output_tokens"]), 0.3, 8192
    served = simulate(
        LastHour.of(rows, NOW, ENGINE).replay.workload, f"1*{ENGINE}", "fcfs", predictor="none", accelerate=False
    )  # 256 slots: no request waits
    rows["finished_s"] = (rows["arrival_s"] + served.finished_s - served.arrival_s) / speed
    rows["arrival_s"] /= speed
    rows["started_s"] = rows["arrival_s"]
    return rows


@pytest.mark.parametrize("speed", [1.0, 20.0])
def test_the_clock_is_fitted_to_the_measured_times(speed: float) -> None:
    rows = recorded(speed)
    fitted, outcome = LastHour.of(rows, NOW, ENGINE).fitted(NOW)
    simulated = np.median(outcome.finished_s - outcome.started_s) / fitted
    assert simulated == pytest.approx(np.median(rows["finished_s"] - rows["arrival_s"]), rel=0.1)
    assert fitted == pytest.approx(speed, rel=0.25)


def test_more_engines_are_faster_and_the_current_fleet_is_the_same() -> None:
    question = WhatIf(policies=("fcfs", "sjf"), engines=(1, 2))
    first, same, shorter, more, _ = answers(question, replace(NOW, slots=2), recorded(1.0))
    assert first["requests"] == 120
    assert same["words"].startswith("No difference beyond noise between `fcfs` on 1 engine and what runs now")
    assert shorter["mean"] > 1.0
    assert more["mean"] > 1.0
    assert more["words"].startswith("`fcfs` on 2 engines lowers ")
    assert "Mean E2E -" in more["figures"]
    assert more["over"]["e2e_mean"][0] == pytest.approx(1 / more["mean"], abs=0.01)
