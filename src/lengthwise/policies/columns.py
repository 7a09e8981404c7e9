"""Many jobs as columns: what a formula sees instead of one job, under the same names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.lengths import DEFAULT_CAP

if TYPE_CHECKING:
    from lengthwise.policies.job import Job


@dataclass(frozen=True, slots=True)
class JobColumns:
    """The numbers of many jobs, float64, all of one length; a `Job` has the same names, one number each.

    One formula serves both. What each means is said at `Job`.
    """

    arrival: NDArray[np.float64]
    expected: NDArray[np.float64]
    tail: NDArray[np.float64]
    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    cap: NDArray[np.float64]
    initial_expected: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]
    generated: NDArray[np.float64]
    cached_tokens: NDArray[np.float64]
    priority: NDArray[np.float64]
    in_round: NDArray[np.float64]
    preemptions: NDArray[np.float64]

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> JobColumns:
        """Take the columns from jobs."""
        numbers = np.fromiter(chain.from_iterable(map(_NUMBERS, jobs)), np.float64)
        return cls(*numbers.reshape(-1, len(_NAMES)).T.copy())

    @classmethod
    def filled(
        cls,
        *,
        arrival: ArrayLike,
        expected: ArrayLike,
        tail: ArrayLike | None = None,
        mu: ArrayLike | None = None,
        sigma: ArrayLike = 0.0,
        cap: ArrayLike = DEFAULT_CAP,
        initial_expected: ArrayLike | None = None,
        prompt_tokens: ArrayLike = 0,
        generated: ArrayLike = 0,
        cached_tokens: ArrayLike = 0,
        priority: ArrayLike = 0,
        in_round: ArrayLike = 0,
        preemptions: ArrayLike = 0,
    ) -> JobColumns:
        """Make columns from what is known; one number serves all, and what is left out is that of a certain length."""
        expected = np.asarray(expected, np.float64)
        given = (
            arrival,
            expected,
            expected if tail is None else tail,
            np.log(np.maximum(expected, SHORTEST)) if mu is None else mu,
            sigma,
            cap,
            expected if initial_expected is None else initial_expected,
            prompt_tokens,
            generated,
            cached_tokens,
            priority,
            in_round,
            preemptions,
        )
        length = np.broadcast_shapes(*(np.shape(column) for column in given))
        return cls(*(np.broadcast_to(np.asarray(column, np.float64), length) for column in given))

    def __len__(self) -> int:
        return len(self.arrival)

    def take(self, rows: NDArray[np.integer]) -> JobColumns:
        """Return the columns of some of the jobs."""
        return JobColumns(*(getattr(self, name)[rows] for name in _NAMES))


_NAMES = tuple(field.name for field in fields(JobColumns))
_NUMBERS = attrgetter(*_NAMES)

SHORTEST = 1e-3
"""Tokens; a shorter length than this has no logarithm worth having."""
