"""Arrival processes and seeded generators: Poisson, Gamma bursts, a trace at another rate, requests drawn again."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from lengthwise.errors import InputError

if TYPE_CHECKING:
    from lengthwise.workloads.workload import Workload

_N = TypeVar("_N", np.int64, np.float64)


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The generator of this seed for this purpose ("arrivals", "lengths", ...)."""
    return np.random.default_rng([seed, xxhash.xxh3_64_intdigest(purpose.encode())])


def in_rounds(items: int, n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return n indices below `items`: a random permutation, then another one, and so on."""
    rounds = -(-n // items)
    picks = np.concatenate([rng.permutation(items) for _ in range(rounds)])[:n]
    return picks.astype(np.int64)


def one_of_each_row(values: NDArray[_N], usable: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[_N]:
    """Draw one of the usable values of each row, uniformly."""
    rank = np.where(usable, rng.random(usable.shape), np.inf)
    return np.take_along_axis(values, rank.argmin(axis=1)[:, None], axis=1)[:, 0]


_EVEN = 1e-6
"""Below this CV the shape of the Gamma overflows; gaps are then equal."""


def poisson(n: int, rate: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return n arrival times with independent exponential gaps, `rate` requests per second on average."""
    return gamma(n, rate, 1.0, rng)


def gamma(n: int, rate: float, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return n arrival times with independent Gamma gaps of coefficient of variation `cv`.

    1 is Poisson, above 1 is bursty, below 1 is more even, 0 has equal gaps.
    """
    _check_rate(rate)
    if not (np.isfinite(cv) and cv >= 0):
        raise InputError(f"a CV of {cv:g}", field="cv", hint="at least 0; 1 is Poisson, above 1 is bursty")
    if cv < _EVEN:
        return np.arange(1, n + 1) / rate
    shape = 1 / cv**2
    return np.cumsum(rng.gamma(shape, 1 / (shape * rate), n))


_HOURS = 24
_NIGHT_HOUR, _NIGHT = 3, 0.1  # the quietest hour, and its share of the peak


def daily(peak_rate: float, minutes: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the Poisson arrivals of a day whose hours are `minutes` long; 60 are a whole day.

    rate(hour) = peak_rate * (0.55 - 0.45 * cos(2 pi (hour - 3) / 24)): the peak at 15 h, a tenth of it at 3 h

    Rates are those of the day, so that a shorter day needs as many engines. A queue has less time to grow.
    """
    _check_rate(peak_rate)
    if not 0 < minutes <= 60:
        raise InputError(f"{minutes:g} minutes of an hour", field="minutes", hint="give a number above 0, at most 60")
    hours = np.arange(_HOURS)
    wave = np.cos(2 * np.pi * (hours - _NIGHT_HOUR) / _HOURS)
    rates = peak_rate * ((1 + _NIGHT) / 2 - (1 - _NIGHT) / 2 * wave)
    hour = np.repeat(hours, rng.poisson(60 * minutes * rates))
    return np.sort(60 * minutes * (hour + rng.uniform(0, 1, len(hour))))


def rescale(workload: Workload, rate: float) -> Workload:
    """Return the workload with its own arrivals scaled to `rate` requests per second, from 0 on; bursts stay."""
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
    """Move arrivals recorded on a coarse clock to a random time within their tick, and sort them."""
    arrival = workload.arrival_s + rng.uniform(0.0, tick_s, len(workload))
    order = np.argsort(arrival, kind="stable")
    return workload.take(order, arrival_s=arrival[order])


def _check_rate(rate: float) -> None:
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"a rate of {rate:g} requests per second", field="rate", hint="give a number above 0")


def redraw(workload: Workload, *, requests: int, rate: float, seed: int, cv: float = 1.0) -> Workload:
    """`requests` of the workload's requests in random order, with Gamma arrivals (cv 1: Poisson).

    When `requests` exceeds the number available, all are repeated in another order.
    """
    if requests < 1:
        raise InputError(f"{requests} requests", field="requests", hint="give at least 1")
    if not len(workload):
        raise InputError("holds no requests to draw from", source=workload.name)
    if workload.has_think_times:
        hint = "keep their order, with a rate and without a CV"
        raise InputError("requests drawn at random leave their sessions", source=workload.name, field="cv", hint=hint)
    picks = in_rounds(len(workload), requests, generator(seed, "prompts"))
    return workload.take(picks, arrival_s=gamma(requests, rate, cv, generator(seed, "arrivals")))


def replay(workload: Workload, *, requests: int | None = None, rate: float | None = None) -> Workload:
    """The first `requests` requests with their own arrivals, rescaled to `rate` if one is given."""
    if requests is not None and not 1 <= requests <= len(workload):
        raise InputError(
            f"{requests} requests of a trace that has {len(workload)}",
            source=workload.name,
            field="requests",
            hint=f"give 1 to {len(workload)}, or draw new arrivals with a rate and a CV",
        )
    first = workload if requests is None else workload.head(requests)
    return first if rate is None else rescale(first, rate)
