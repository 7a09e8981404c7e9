"""The remaining length of a job at its age: its expectation and its Gittins rank, for one job or for many.

Definition: E[remaining] = prediction.remaining(generated).mean(), in tokens (see `lengthwise.lengths`). This module is
its fast path for queues, by the tables of `lengths.log_t`: within 3 % of the definition, to which the tests hold it.

Certain lengths (sigma 0) are counted down. An outlived prediction (S(generated) < 1e-9) restarts as the log-t with
median `generated`, sigma 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lengthwise.lengths import OUTLIVED_BELOW, log_t
from lengthwise.policies.base import Numbers
from lengthwise.policies.job import Job, JobColumns

Array = NDArray[np.float64]


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
        return min(jobs.expected, math.exp(jobs.mu) * float(_fresh(jobs.sigma)))
    if jobs.generated.all():
        return _started(jobs, ranks=True)
    fresh = np.minimum(jobs.expected, np.exp(jobs.mu) * _fresh(jobs.sigma))
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
    tables, sigma = log_t.remaining_tables(), log_t.sigma_index(jobs.sigma)
    age, end = (log_t.standard_age(tables, length, jobs.mu, sigma) for length in (jobs.generated, jobs.cap))
    now, at_end = log_t.place_of(age), log_t.place_of(end)
    reached = log_t.share_reached(tables, age, now)
    to_come = log_t.integral_to(tables, end, at_end, sigma) - log_t.integral_to(tables, age, now, sigma)
    rest = np.maximum(to_come, 0.0) / reached
    if ranks:
        rest = np.minimum(rest, log_t.uncapped_rank(tables, now, sigma))
    rest = np.where(certain, left, np.exp(jobs.mu) * rest)
    outlived = np.where(certain, left <= 0.0, reached < OUTLIVED_BELOW)
    if outlived.any():
        rest = np.where(outlived, log_t.outlived_rest(tables, jobs.generated, jobs.cap, ranks), rest)
    return np.where(jobs.generated < jobs.cap, rest, 0.0)


def _fresh(sigma: Numbers) -> Numbers:
    """Return the Gittins rank before the first token without a cap, in medians."""
    return np.asarray(log_t.fresh_rank(log_t.remaining_tables(), log_t.sigma_index(sigma)))
