"""Runs to report, made by hand."""

from __future__ import annotations

import math

from lengthwise.intervals import Ratio
from lengthwise.reports.runs import ReportedRun
from lengthwise.simulator.metrics import LatencyProfile

ONE = Ratio(1.0, 1.0, 1.0)
BASE_E2E = tuple(float(each) for each in range(1, 11))


def run(
    policy: str, mean: Ratio, tail: float = 1.0, *, predictor: str | None = "fast", load: float = 0.9, short: float = 1
) -> ReportedRun:
    e2e = (short * BASE_E2E[0], *BASE_E2E[1:])
    return ReportedRun(
        policy,
        predictor,
        offered=f"load {load:.2f}",
        load=load,
        latency={name: {"mean": 10 * mean.ratio, "p99": 30 * tail} for name in ("ttft_s", "e2e_s")},
        over_fcfs={"e2e_mean": mean, "e2e_p99": Ratio(tail, tail, tail), "ttft_mean": mean},
        profile=LatencyProfile(BASE_E2E, e2e, (1.0, 2.0), (3.0, 0.0), (4.0, math.nan)),
    )


FCFS = run("fcfs", ONE, predictor=None)
GOOD = run("lengthwise", Ratio(0.6, 0.55, 0.66), 1.05, short=0.25)
