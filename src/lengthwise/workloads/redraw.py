"""Requests of one workload at another pace, in another number: replayed in order, or drawn anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lengthwise.errors import InputError
from lengthwise.workloads.arrivals import gamma, rescale
from lengthwise.workloads.seeds import generator, in_rounds

if TYPE_CHECKING:
    from lengthwise.workloads.workload import Workload


def redraw(workload: Workload, *, requests: int, rate: float, seed: int, cv: float = 1.0) -> Workload:
    """`requests` of the workload's requests in random order, with Gamma arrivals (cv 1: Poisson).

    When more are asked for than there are, all come again in another order.
    """
    if requests < 1:
        raise InputError(f"{requests} requests", field="requests", hint="give at least 1")
    if not len(workload):
        raise InputError("holds no requests to draw from", source=workload.name)
    picks = in_rounds(len(workload), requests, generator(seed, "prompts"))
    return workload.take(picks, arrival_s=gamma(requests, rate, cv, generator(seed, "arrivals")))


def replay(workload: Workload, *, requests: int | None = None, rate: float | None = None) -> Workload:
    """The first `requests` requests with their own arrivals, rescaled to `rate` if one is given."""
    if requests is not None and not 1 <= requests <= len(workload):
        raise InputError(
            f"{requests} requests of a trace that has {len(workload)}",
            source=workload.name,
            field="requests",
            hint=f"give 1 to {len(workload)}, or draw anew with a rate and a CV",
        )
    first = workload if requests is None else workload.head(requests)
    return first if rate is None else rescale(first, rate)
