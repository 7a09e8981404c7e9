"""What queueing theory says of one server: mean response times of M/G/1 under five orders.

Sizes and predictions are nodes with weights, close together in the tail, so that every integral of a formula is a sum.
Time is in mean services.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Quantile = Callable[[Array], Array]

_NODES: Final = 20_000
_PREDICTED_NODES: Final = 250
_RANKS: Final = 600
_CROWDING: Final = 4  # of nodes towards the tail

_SPREAD: Final = 1.0  # sigma of the log-normal: a squared coefficient of variation of 1.7


SIZES: Final[Mapping[str, Quantile]] = {
    "exponential": lambda beyond: -np.log(beyond),
    "log-normal": lambda beyond: np.exp(-_SPREAD * special.ndtri(beyond) - _SPREAD**2 / 2),
    "deterministic": np.ones_like,
}
"""Distributions of size with mean 1: the size that a share of jobs lies beyond. The log-normal's tail is heavy."""


def _levels(count: int) -> tuple[Array, Array]:
    """Shares that lie beyond, from nearly 1 to very nearly 0, and how much of the jobs each of them stands for."""
    left = 1 - (np.arange(count) + 0.5) / count
    weight = _CROWDING * left ** (_CROWDING - 1) / count
    return left**_CROWDING, weight / weight.sum()


@dataclass(frozen=True)
class Queue:
    """M/G/1 with arrivals at a rate, jobs of some sizes, and predictions of them (`exponential`: of mean the size)."""

    rate: float
    sizes: str
    predictions: str = "perfect"

    @cached_property
    def jobs(self) -> tuple[Array, Array, Array]:
        """Sizes, predictions and weights of jobs, by rising prediction."""
        if self.predictions == "perfect":
            beyond, weight = _levels(_NODES)
            size = SIZES[self.sizes](beyond)
            return size, size, weight
        beyond, weight = _levels(_PREDICTED_NODES)
        size = np.repeat(SIZES[self.sizes](beyond), len(beyond))
        predicted = size * np.tile(SIZES["exponential"](beyond), len(beyond))
        order = np.argsort(predicted, kind="stable")
        return size[order], predicted[order], np.asarray(np.outer(weight, weight).ravel()[order], np.float64)

    def mean(self, values: Array) -> float:
        """The expectation of something about a job."""
        return float(values @ self.jobs[2])

    def fcfs(self) -> float:
        """Pollaczek and Khinchine: E[S] + rate E[S^2] / (2 (1 - rho))."""
        size, _, _ = self.jobs
        return self.mean(size) + self.rate * self.mean(size**2) / (2 * (1 - self.rate * self.mean(size)))

    def sjf(self) -> float:
        """Shortest prediction first, without preemption: E[S] + E[rate E[S^2] / (2 (1 - rho_r)^2)]."""
        size, _, _ = self.jobs
        if self.all_alike:
            return self.fcfs()
        return self.mean(size) + self.mean(self.rate * self.mean(size**2) / (2 * (1 - self._load_up_to_each) ** 2))

    def preemptive_sjf(self) -> float:
        """Shortest prediction first, whoever runs: E[rate E[S^2; R <= r] / (2 (1 - rho_r)^2) + S / (1 - rho_r)]."""
        size, _, _ = self.jobs
        if self.all_alike:
            return self.fcfs()
        load = self._load_up_to_each
        return self.mean(self.rate * self._up_to_each(size**2) / (2 * (1 - load) ** 2) + size / (1 - load))

    def srpt(self) -> float:
        """Schrage and Miller, for perfect predictions.

        E[T(x)] = rate (E[S^2; S <= x] + x^2 P(S > x)) / (2 (1 - rho_x)^2) + integral from 0 to x of da / (1 - rho_a)
        """
        size, _, _ = self.jobs
        if self.all_alike:
            return self.fcfs()
        load = self._load_up_to_each
        beyond = 1 - self._up_to_each(np.ones_like(size))
        waited = self.rate * (self._up_to_each(size**2) + size**2 * beyond) / (2 * (1 - load) ** 2)
        return self.mean(waited + _integral(size, 1 / (1 - load)))

    def limited_srpt(self, c: float) -> float:
        """TRAIL: shortest predicted remaining first, preempted only up to age c * r, r the prediction.

        E[T(x, r)] = rate / (2 (1 - rho_r)^2) (E[S^2; R <= r] + E[((S - min(R - r, c R))^+)^2; R > r])
                     + integral from 0 to min(x, c r) of da / (1 - rho_(r - a)) + (x - c r)^+
        """
        size, predicted, weight = self.jobs
        if self.all_alike:
            return self.fcfs()
        load = self._load_up_to_each
        # The middle term has no running sum: it is worked out at some ranks, and taken as smooth between them.
        at = np.linspace(0, len(size) - 1, _RANKS).astype(int)
        rank = predicted[at]
        left = np.array([_left(size[i + 1 :], predicted[i + 1 :], weight[i + 1 :], predicted[i], c) for i in at])
        waited = self.rate / (2 * (1 - load[at]) ** 2) * (self._up_to_each(size**2)[at] + left)
        resident = _integral(predicted, 1 / (1 - load))
        open_for = np.minimum(size, c * predicted)
        slowed = resident - np.interp(predicted - open_for, predicted, resident, left=0.0)
        return self.mean(np.interp(predicted, rank, waited) + slowed + np.maximum(size - c * predicted, 0.0))

    @property
    def all_alike(self) -> bool:
        """Then nobody goes before another, whatever the order."""
        return self.sizes == "deterministic" and self.predictions == "perfect"

    @cached_property
    def _load_up_to_each(self) -> Array:
        """Load of the jobs whose prediction is no longer than each one's."""
        return self.rate * self._up_to_each(self.jobs[0])

    def _up_to_each(self, values: Array) -> Array:
        """E[value; prediction up to each one's], half of its own weight counted."""
        weighted = values * self.jobs[2]
        return np.asarray(np.cumsum(weighted) - weighted / 2)


def _integral(at: Array, values: Array) -> Array:
    """The integral from 0 to each of `at`; before the first the value is 1."""
    steps = np.diff(at) * (values[1:] + values[:-1]) / 2
    return np.concatenate([at[:1] * (1 + values[0]) / 2, at[0] * (1 + values[0]) / 2 + np.cumsum(steps)])


def _left(size: Array, predicted: Array, weight: Array, rank: float, c: float) -> float:
    """E[square of the work that is left when a job comes before a rank or cannot be preempted any more]."""
    return float(np.maximum(size - np.minimum(predicted - rank, c * predicted), 0.0) ** 2 @ weight)
