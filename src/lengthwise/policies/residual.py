"""The remaining length at an age: its expectation and its Gittins rank, for one job or for many.

Definition: E[remaining] = prediction.remaining(generated).mean(), in tokens (see `lengthwise.lengths`). This module is
its fast path for queues, within 3 % of the definition for log-t predictions; `routers.ledger` has a compiled
one, and `simulator.kernel.ranks` compiles this one. The tests hold both to the definition.

Certain lengths (sigma 0) are counted down. For the others, with x = exp(mu + sigma z), the survival S(z) is one curve
for all predictions. Between the nodes of a grid in asinh z it is taken as a power of x, so that its integral over any
interval has a closed form; sums over whole cells are tabulated for a grid of sigmas, and a job uses the nearest sigma,
at most 0.6 % off. An outlived prediction (S(generated) < 1e-9) restarts as the log-t with median `generated`, sigma 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lengthwise.lengths import OUTLIVED_BELOW, TIE_NU
from lengthwise.policies.base import Numbers
from lengthwise.policies.job import Job, JobColumns

Array = NDArray[np.float64]

STEP: Final = 0.05  # of asinh z
REACH: Final = math.asinh(600.0)  # beyond, S is 1 or a prediction counts as outlived
MIN_LOG_SIGMA: Final = math.log(0.02)
SIGMAS: Final = 448
SIGMA_STEP: Final = (math.log(4.0) - MIN_LOG_SIGMA) / (SIGMAS - 1)
NODES: Final = len(np.arange(-REACH, REACH, STEP))
_MIN_ENDED: Final = 0.1  # of the answers: what an interval of the Gittins rank must end at least
_MAX_LOG: Final = 200.0  # of sigma z: e^800 overflows


def prepare() -> None:
    """Build the tables (once, a tenth of a second), so that no decision waits for them."""
    _tables()


def flat_tables() -> NDArray[np.float64]:
    """Return the tables as one array for compiled code, in the order of `simulator.kernel.ranks`."""
    tables = _tables()
    parts = (tables.z, tables.node_survival, tables.fall, tables.sigma, tables.fresh)
    return np.concatenate([*parts, tables.integral.ravel(), tables.stretch.ravel(), tables.log_ranks.ravel()])


def expected_remaining(jobs: Job | JobColumns) -> Numbers:
    """E[length - generated | length > generated], in tokens; `expected` before the first token.

    The fast path of `prediction.remaining(generated).mean()`.
    """
    if isinstance(jobs, Job):
        return jobs.expected if jobs.generated <= 0 else float(_started(JobColumns.of([jobs]), ranks=False)[0])
    return _where_started(jobs, jobs.expected, ranks=False)


def gittins_rank(jobs: Job | JobColumns) -> Numbers:
    """inf over D of E[min(X - a, D) | X > a] / P(X - a <= D | X > a), X the length, a = generated, in tokens.

    Over those D that end at least one answer in ten: a log-t has some mass at every length, however short, so that the
    plain infimum would be 0 for all (X below e^-60 tokens costs nothing to wait for). X is censored at the cap,
    where every answer ends: D = cap - a gives E[remaining]. If the best D of the uncensored prediction ends before the
    cap, it or E[remaining] is the best here; if not, E[remaining] is smaller than its rank. So: the smaller of the two.
    """
    if isinstance(jobs, Job):
        if jobs.generated > 0:
            return float(_started(JobColumns.of([jobs]), ranks=True)[0])
        if jobs.sigma <= 0.0:
            return jobs.expected
        row = round((math.log(jobs.sigma) - MIN_LOG_SIGMA) / SIGMA_STEP)
        return min(jobs.expected, math.exp(jobs.mu) * _tables().fresh_list[min(max(row, 0), SIGMAS - 1)])
    if jobs.generated.all():
        return _started(jobs, ranks=True)
    fresh = np.minimum(jobs.expected, np.exp(jobs.mu) * _tables().fresh[sigma_index(jobs.sigma)])
    return _where_started(jobs, np.where(jobs.sigma > 0.0, fresh, jobs.expected), ranks=True)


def _where_started(jobs: JobColumns, fresh: Array, *, ranks: bool) -> Array:
    """Return the rank or the expectation of each job: `fresh` before its first token."""
    rows = np.flatnonzero(jobs.generated > 0)
    if len(rows) == 0:
        return fresh
    if len(rows) == len(jobs):
        return _started(jobs, ranks=ranks)
    whole = fresh.copy()
    whole[rows] = _started(jobs.take(rows), ranks=ranks)
    return whole


def _started(jobs: JobColumns, *, ranks: bool) -> Array:
    """Return the rank or the expectation of jobs that all have generated tokens."""
    left = jobs.expected - jobs.generated
    certain = jobs.sigma <= 0.0
    if certain.all() and (left > 0.0).all():
        return left
    tables, row = _tables(), sigma_index(jobs.sigma)
    log_age = np.log(jobs.generated)
    ends = np.concatenate((log_age, np.log(jobs.cap))) - np.tile(jobs.mu, 2)
    at = tables.place(ends / np.tile(tables.sigma[row], 2))
    integrals = tables.integrated(at, np.tile(row, 2))
    median, now = np.exp(jobs.mu), at[: len(jobs)]
    reached = tables.survival(now)
    rest = np.maximum(integrals[len(jobs) :] - integrals[: len(jobs)], 0.0) / reached
    if ranks:
        rest = np.minimum(rest, tables.ranks(now, row))
    rest = np.where(certain, left, median * rest)
    outlived = np.where(certain, left <= 0.0, reached < OUTLIVED_BELOW)
    if outlived.any():
        rest = np.where(outlived, _after_outlived(jobs.generated, jobs.cap, ranks=ranks), rest)
    return np.where(jobs.generated < jobs.cap, rest, 0.0)


def _after_outlived(age: Array, cap: Array, *, ranks: bool) -> Array:
    """Return the rank or the expectation of outlived predictions: log-t, median `age`, sigma 1, cap - age at most."""
    tables, row = _tables(), np.full(len(age), SIGMA_ONE)
    mean = tables.integrated(tables.place(np.log(np.maximum(cap - age, 1.0) / age)), row)
    return np.asarray(age * (np.minimum(mean, tables.fresh[SIGMA_ONE]) if ranks else mean))


SIGMA_ONE: Final = round(-MIN_LOG_SIGMA / SIGMA_STEP)


def sigma_index(sigma: Array) -> NDArray[np.intp]:
    """Return the place of the nearest tabulated sigma."""
    at = (np.log(np.maximum(sigma, 1e-9)) - MIN_LOG_SIGMA) / SIGMA_STEP
    return np.asarray(np.minimum(np.maximum(at + 0.5, 0.0), SIGMAS - 1.0), np.intp)


@dataclass(frozen=True)
class _Tables:
    """By node, or by sigma and node; lengths and integrals in medians. A place is a node and a fraction of a cell."""

    sigma: Array
    z: Array
    node_survival: Array
    fall: Array  # -d ln S / dz in the cell after each node
    integral: Array  # of S up to the node
    stretch: Array  # what a cell adds to it, without the growth
    log_ranks: Array  # ln of the Gittins rank without a cap
    fresh: Array  # that rank at age 0
    fresh_list: list[float]

    def place(self, z: Array) -> Array:
        """Return the place of z."""
        return np.asarray(np.minimum(np.maximum((np.arcsinh(z) + REACH) / STEP, 0.0), len(self.z) - 1.001))

    def beyond(self, at: Array, cell: NDArray[np.intp]) -> Array:
        """Return the distance of z from the node before it."""
        return np.asarray(np.sinh(at * STEP - REACH) - self.z[cell])

    def survival(self, at: Array) -> Array:
        """P(Z > z)."""
        cell = at.astype(np.intp)
        return np.asarray(self.node_survival[cell] * np.exp(-self.fall[cell] * self.beyond(at, cell)))

    def integrated(self, at: Array, row: NDArray[np.intp]) -> Array:
        """Return the integral of S over lengths from 0 to that place."""
        cell = at.astype(np.intp)
        growth = (self.sigma[row] - self.fall[cell]) * self.beyond(at, cell)
        return np.asarray(self.integral[row, cell] + self.stretch[row, cell] * np.expm1(growth))

    def ranks(self, at: Array, row: NDArray[np.intp]) -> Array:
        """Return the Gittins rank without a cap at an age, in medians."""
        cell = at.astype(np.intp)
        low, high = self.log_ranks[row, cell], self.log_ranks[row, cell + 1]
        return np.asarray(np.exp(low + (at - cell) * (high - low)))


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    sigma = np.exp(MIN_LOG_SIGMA + SIGMA_STEP * np.arange(SIGMAS))
    z = np.sinh(np.arange(-REACH, REACH, STEP))
    survival = special.stdtr(TIE_NU, -z)
    fall = np.append(-np.diff(np.log(survival)) / np.diff(z), 0.0)
    length = np.exp(np.clip(sigma[:, None] * z, -_MAX_LOG, _MAX_LOG))
    growth = sigma[:, None] - fall
    stretch = survival * length * sigma[:, None] / np.where(np.abs(growth) < 1e-9, 1e-9, growth)
    cells = stretch[:, :-1] * np.expm1(growth[:, :-1] * np.diff(z))
    integral = np.cumsum(np.column_stack((length[:, 0], cells)), axis=1)
    tables = _Tables(sigma, z, survival, fall, integral, stretch, np.empty(0), np.empty(0), [])
    log_ranks = np.log(_uncut_ranks(tables))
    fresh = np.exp(log_ranks[:, 0])
    return replace(tables, log_ranks=log_ranks, fresh=fresh, fresh_list=fresh.tolist())


def _uncut_ranks(tables: _Tables) -> Array:
    """Return, from each node, the least ratio of the integral to the share that ends, over all later ends allowed."""
    survival, integral = tables.node_survival, tables.integral
    left = (1.0 - _MIN_ENDED) * survival
    ends = np.searchsorted(-survival, -left)  # the first node by which one answer in ten has ended
    usable = int(np.searchsorted(ends, len(survival)))
    cell = ends[:usable] - 1
    first = tables.place(tables.z[cell] + np.log(survival[cell] / left[:usable]) / tables.fall[cell])
    rows = np.arange(len(tables.sigma))
    ranks = np.empty_like(integral)
    for node in range(usable):
        start = integral[:, node]
        nearest = (tables.integrated(np.full(len(rows), first[node]), rows) - start) / (_MIN_ENDED * survival[node])
        slopes = (integral[:, ends[node] :] - start[:, None]) / (survival[node] - survival[ends[node] :])
        ranks[:, node] = np.maximum(np.minimum(nearest, slopes.min(axis=1)), 1e-9)
    ranks[:, usable:] = ranks[:, usable - 1, None]
    return ranks
