"""The policy of this project: first come, first served, with a fast lane for short jobs at a bounded cost to others.

Terms used here:
fast lane      round 0: its jobs are admitted before all others
ordinary lane  rounds 1 and up, in order of arrival measured by work
credit         tokens of work that may still enter the fast lane: every job that arrives adds a quarter of its work
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lengthwise.lengths import wide_prior
from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import QueueView, Rounds, Slots, one_slot

SHORT_JOB_FRACTION: Final = 1 / 3
"""The fraction of jobs, the shortest, that may use the fast lane."""
FAST_WORK_FRACTION: Final = 0.25
"""The fraction of work, at most, in the fast lane: other jobs wait at most about 1 / (1 - 0.25) times as long."""
FAST_ROUND: Final = 0
"""The round number of the fast lane."""
SHORT_WORK_FRACTION: Final = 0.1  # the shortest jobs that make up this fraction of the work are short, however many
MAX_OF_MEAN: Final = 0.9  # a short job has at most this fraction of the mean: longer ones would gain little
MAX_CREDIT_JOBS: Final = 6.0  # mean jobs: the most credit
WINDOW_JOBS: Final = 4096  # the length statistics fade over so many jobs
TOKENS_PER_ROUND: Final = 16.0  # per slot
_BINS_PER_DOUBLING: Final = 12
_BINS: Final = 24 * _BINS_PER_DOUBLING
MAX_UNIT: Final = 1e12
_PRIOR: Final = wide_prior()  # the prediction of a job without one


@dataclass(frozen=True)
class Lengthwise(BasePolicy):
    """First come, first served, with a fast lane for the shortest third.

    round = 0               in the fast lane
            1 + A / 16      in the ordinary lane   (tokens per slot)
    key   = median          (tokens: the prediction as a single number, at most its cap)
    A = work that has arrived so far, by medians / slots, a clock that advances with the work: the ordinary lane is in
    order of arrival, and shortest first among jobs that arrive within 16 tokens of work per slot. Medians, because the
    mean of a heavy tail hides short jobs.

    In the fast lane: a job among the shortest third of recent jobs, or among the shortest that make up a tenth of the
    work, and clearly shorter than the mean. A third of the jobs and not a share of the work, because predictions that
    are drawn to the middle would fill a share of the predicted work with few jobs, and noisy ones with many long ones.

    Bound. A job enters the fast lane only against credit: a quarter of the work of each job that arrives, at most six
    mean jobs. In the ordinary lane at most 16 tokens per slot of later work overtake a job. So where work arrives r
    times as fast as it is served, a job waits at most (its wait under FCFS + the time of 16 tokens + that of six mean
    jobs) / (1 - r / 4), all by medians. No job starves, and there is nothing to tune. If short jobs take longer than
    predicted by more than the others do, they use more credit.

    Memory short: the last admitted is preempted. The wide prior, used without a prediction, is never short.
    """

    kind = "lengthwise"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the median, which orders a round."""
        return np.minimum(np.exp(jobs.mu), jobs.cap)

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return the two lanes of one queue."""
        return Lanes(slots)


@dataclass(slots=True)
class LengthTotals:
    """Predicted and true tokens of finished jobs, summed."""

    predicted: float = 1.0
    true: float = 1.0

    @property
    def ratio(self) -> float:
        """True tokens per predicted token."""
        return self.true / self.predicted


@dataclass(slots=True)
class Lanes:
    """The rounds of `Lengthwise`: statistics of recent lengths, and the credit of the fast lane."""

    slots: Slots
    clock: float = 0.0
    unit: float = 1.0
    """The weight of a job that arrives now: it grows, so that earlier jobs fade without being updated."""
    count: float = 0.0
    total: float = 0.0
    credit: float = 0.0
    jobs: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    work: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    """Weighted numbers and work of recent jobs by length."""
    all: LengthTotals = field(default_factory=LengthTotals)
    short: LengthTotals = field(default_factory=LengthTotals)

    def enter(self, job: Job) -> int:
        """Return the round of a new job."""
        self.unit *= 1.0 + 1.0 / WINDOW_JOBS
        self.clock += job.median / self.slots()
        self._count(job.median, self.unit)
        job.credited = self._add_credit(job.median)
        return self._round(job, 1 + int(self.clock / TOKENS_PER_ROUND))

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the fast lane if the job may use it by its new prediction, else its round in the ordinary lane.

        The job takes back the credit that it added, which may be less than its share, and adds that of its new length.
        The clock is unchanged: the rounds of waiting jobs are relative to it. A job that loses the fast lane joins the
        ordinary lane as if it arrived now.
        """
        self._count(old_median, -self.unit)
        self._count(job.median, self.unit)
        self.credit -= job.credited
        if round_number == FAST_ROUND:
            self.credit += old_median
        job.credited = self._add_credit(job.median)
        ordinary = 1 + int(self.clock / TOKENS_PER_ROUND) if round_number == FAST_ROUND else round_number
        return self._round(job, ordinary)

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        """Record the true length: where short jobs exceed their predictions, they use more credit."""
        if job.generated <= 0:  # it failed
            return
        for totals in (self.all, self.short) if self._is_short(job.median) else (self.all,):
            totals.predicted += self.unit * job.median
            totals.true += self.unit * job.generated

    def _round(self, job: Job, ordinary: int) -> int:
        """Return the fast lane's round if the job is short and credit covers it, else the ordinary one."""
        median, predicted = job.median, (job.mu, job.sigma) != (_PRIOR.mu, _PRIOR.sigma)
        price = median * max(1.0, self.short.ratio / self.all.ratio)
        if predicted and price <= self.credit and self._is_short(median):
            self.credit -= price
            return FAST_ROUND
        return ordinary

    def _is_short(self, tokens: float) -> bool:
        """Return whether a length is in the shortest third of jobs or tenth of work; half of its own bin counts."""
        if tokens * self.count > MAX_OF_MEAN * self.total:
            return False
        place = _bin(tokens)
        if _added(self.jobs[:place]) + 0.5 * self.jobs[place] <= SHORT_JOB_FRACTION * self.count:
            return True
        return _added(self.work[:place]) + 0.5 * self.work[place] <= SHORT_WORK_FRACTION * self.total

    def _count(self, tokens: float, weight: float) -> None:
        place = _bin(tokens)
        self.jobs[place] += weight
        self.work[place] += weight * tokens
        self.count += weight
        self.total += weight * tokens
        if self.unit > MAX_UNIT:
            self.jobs = [each / self.unit for each in self.jobs]
            self.work = [each / self.unit for each in self.work]
            for totals in (self.all, self.short):
                totals.predicted, totals.true = totals.predicted / self.unit, totals.true / self.unit
            self.total, self.count, self.unit = self.total / self.unit, self.count / self.unit, 1.0

    def _add_credit(self, tokens: float) -> float:
        """Add a job's share to the credit, up to the maximum; return what was added."""
        before = self.credit
        self.credit = min(before + FAST_WORK_FRACTION * tokens, MAX_CREDIT_JOBS * self.total / self.count)
        return max(0.0, self.credit - before)


def _added(values: list[float]) -> float:
    """Return the sum in this order, as the kernel adds; from Python 3.12 on `sum` compensates for rounding."""
    total = 0.0
    for value in values:
        total += value
    return total


def length_bin(job_mu: float, job_sigma: float, median: float) -> int:
    """Return the bin of a prediction, or -1 - bin for the wide prior: what the compiled kernel needs to know of it."""
    place = _bin(median)
    return place if (job_mu, job_sigma) != (_PRIOR.mu, _PRIOR.sigma) else -1 - place


def _bin(tokens: float) -> int:
    return min(_BINS - 1, int(_BINS_PER_DOUBLING * math.log2(max(tokens, 1.0))))
