"""When requests arrive: Poisson, Gamma bursts, or a trace's own times at another speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError

if TYPE_CHECKING:
    from lengthwise.workloads.workload import Workload


_EVEN = 1e-6
"""Below this CV the Gamma's shape overflows, and nobody could tell its gaps from even ones."""


def poisson(n: int, rate: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """n arrival times with independent exponential gaps, `rate` requests per second on average."""
    return gamma(n, rate, 1.0, rng)


def gamma(n: int, rate: float, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """n arrival times with independent Gamma gaps whose coefficient of variation is `cv`.

    1 is Poisson, above 1 comes in bursts, below 1 is more even, 0 is a metronome.
    """
    _check_rate(rate)
    if not (np.isfinite(cv) and cv >= 0):
        raise InputError(f"a CV of {cv:g}", field="cv", hint="at least 0; 1 is Poisson, above 1 comes in bursts")
    if cv < _EVEN:
        return np.arange(1, n + 1) / rate
    shape = 1 / cv**2
    return np.cumsum(rng.gamma(shape, 1 / (shape * rate), n))


def rescale(workload: Workload, rate: float) -> Workload:
    """The workload's own arrivals, sped up or slowed down to `rate`, beginning at 0; bursts stay."""
    _check_rate(rate)
    if not workload.has_arrivals:
        raise InputError(
            "has no arrivals of its own to rescale",
            source=workload.name,
            field="arrival_s",
            hint="draw some: Poisson, or Gamma with a CV",
        )
    since_first = workload.arrival_s - workload.arrival_s[0]
    return workload.replace(arrival_s=since_first * (workload.rate / rate))


def spread_ticks(workload: Workload, tick_s: float, rng: np.random.Generator) -> Workload:
    """Arrivals recorded on a coarse clock, each moved to a random moment of its tick and sorted anew."""
    arrival = workload.arrival_s + rng.uniform(0.0, tick_s, len(workload))
    order = np.argsort(arrival, kind="stable")
    return workload.take(order, arrival_s=arrival[order])


def _check_rate(rate: float) -> None:
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"a rate of {rate:g} requests per second", field="rate", hint="give a number above 0")
