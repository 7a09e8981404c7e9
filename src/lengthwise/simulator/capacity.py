"""Capacity of a fleet, so that load can be stated as a share of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.simulator.cluster import simulate
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.outcome import Outcome

if TYPE_CHECKING:
    from lengthwise.workloads import Workload


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests per second under backlog: FCFS, round robin, all arrivals at 0, `requests` over `slots` slots.

    Each engine counts what it finishes while requests wait, so that the draining tail does not dilute the rate.
    `steady` is False where an engine has fewer than two requests per slot: the rate is then requests over makespan,
    which is too low.
    """

    requests_per_s: float
    requests: int
    slots: int
    steady: bool

    def load(self, offered_per_s: float) -> float:
        """The offered rate as a share of capacity."""
        return offered_per_s / self.requests_per_s


def measure_capacity(
    workload: Workload, fleet: Fleet, *, on_progress: Callable[[float], None] | None = None
) -> Capacity:
    """Simulate the same requests as one backlog and measure the rate."""
    backlog = workload.replace(arrival_s=np.zeros(len(workload)))
    outcome = simulate(backlog, fleet, "fcfs", predictor="oracle", on_progress=on_progress)
    rates = [_rate(outcome, number, spec.max_num_seqs) for number, spec in enumerate(fleet.engines)]
    steady = not any(math.isnan(rate) for rate in rates)
    rate = sum(rates) if steady else outcome.summary.requests_per_s
    return Capacity(rate, outcome.summary.requests, fleet.slots, steady)


def _rate(outcome: Outcome, engine: int, slots: int) -> float:
    """Requests per second while the engine's backlog lasts; NaN where it is too short."""
    here = (outcome.engine == engine) & ~np.isnan(outcome.finish)
    if here.sum() < 2 * slots:
        return math.nan
    last_admission = float(outcome.started[here].max())
    return int((outcome.finish[here] <= last_admission).sum()) / last_admission
