"""The policy of this project: first come, first served, with a fast lane for short jobs at a bounded cost to others.

Terms used here:
fast lane      round 0: its jobs are admitted before all others
ordinary lane  rounds 1 and up, in order of arrival measured by work
credit         tokens of work that may still enter the fast lane: every job that arrives adds a quarter of its work
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

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
    all_predicted: float = 1.0
    all_true: float = 1.0
    """Tokens of finished jobs, summed; likewise of the short ones."""
    short_predicted: float = 1.0
    short_true: float = 1.0

    def enter(self, job: Job) -> int:
        """Return the round of a new job."""
        round_number, job.credited = enter_lanes(self, *_length(job), self.slots())
        return round_number

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the fast lane if the job may use it by its new prediction, else its round in the ordinary lane."""
        tokens, place, predicted = _length(job)
        old_place = _bin(old_median)
        round_number, job.credited = change_lane(
            self, tokens, place, predicted, old_median, old_place, round_number, job.credited
        )
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        """Record the true length: where short jobs exceed their predictions, they use more credit."""
        if job.generated > 0:  # else it failed
            record_length(self, job.median, _bin(job.median), job.generated)


# The rules of the lanes, on numbers: `Lanes` calls them, and the simulator's kernel compiles them for its own state
# with the same fields. `tokens` is the median of a job's prediction, `place` its bin.


def is_short(lanes: Any, tokens: float, place: int) -> bool:
    """Return whether a length is in the shortest third of jobs or tenth of work; half of its own bin counts."""
    if tokens * lanes.count > MAX_OF_MEAN * lanes.total:
        return False
    shorter = 0.0  # added in this order: from Python 3.12 on `sum` compensates for rounding
    for number in range(place):
        shorter += lanes.jobs[number]
    if shorter + 0.5 * lanes.jobs[place] <= SHORT_JOB_FRACTION * lanes.count:
        return True
    work = 0.0
    for number in range(place):
        work += lanes.work[number]
    return bool(work + 0.5 * lanes.work[place] <= SHORT_WORK_FRACTION * lanes.total)


def count_length(lanes: Any, tokens: float, place: int, weight: float) -> None:
    """Add a job to the statistics of recent lengths."""
    lanes.jobs[place] += weight
    lanes.work[place] += weight * tokens
    lanes.count += weight
    lanes.total += weight * tokens
    if lanes.unit > MAX_UNIT:
        for number in range(_BINS):
            lanes.jobs[number] /= lanes.unit
            lanes.work[number] /= lanes.unit
        lanes.all_predicted /= lanes.unit
        lanes.all_true /= lanes.unit
        lanes.short_predicted /= lanes.unit
        lanes.short_true /= lanes.unit
        lanes.total, lanes.count, lanes.unit = lanes.total / lanes.unit, lanes.count / lanes.unit, 1.0


def add_credit(lanes: Any, tokens: float) -> float:
    """Add a job's share to the credit, up to the maximum; return what was added."""
    before = lanes.credit
    lanes.credit = min(before + FAST_WORK_FRACTION * tokens, MAX_CREDIT_JOBS * lanes.total / lanes.count)
    return float(max(0.0, lanes.credit - before))


def choose_lane(lanes: Any, tokens: float, place: int, predicted: bool, ordinary: int) -> int:
    """Return the fast lane's round if the job is short and credit covers it, else the ordinary one."""
    ratio = (lanes.short_true / lanes.short_predicted) / (lanes.all_true / lanes.all_predicted)
    price = tokens * max(1.0, ratio)
    if predicted and price <= lanes.credit and is_short(lanes, tokens, place):
        lanes.credit -= price
        return FAST_ROUND
    return ordinary


def enter_lanes(lanes: Any, tokens: float, place: int, predicted: bool, slots: int) -> tuple[int, float]:
    """Return the round of a new job and the credit that it adds."""
    lanes.unit *= 1.0 + 1.0 / WINDOW_JOBS
    lanes.clock += tokens / slots
    count_length(lanes, tokens, place, lanes.unit)
    credited = add_credit(lanes, tokens)
    return choose_lane(lanes, tokens, place, predicted, 1 + int(lanes.clock / TOKENS_PER_ROUND)), credited


def change_lane(
    lanes: Any,
    tokens: float,
    place: int,
    predicted: bool,
    old_tokens: float,
    old_place: int,
    round_number: int,
    credited: float,
) -> tuple[int, float]:
    """Return the round of a waiting job by its new prediction, and the credit that it has added.

    The job takes back the credit that it added, which may be less than its share, and adds that of its new length.
    The clock is unchanged: the rounds of waiting jobs are relative to it. A job that loses the fast lane joins the
    ordinary lane as if it arrived now.
    """
    count_length(lanes, old_tokens, old_place, -lanes.unit)
    count_length(lanes, tokens, place, lanes.unit)
    lanes.credit -= credited
    ordinary = round_number
    if round_number == FAST_ROUND:
        lanes.credit += old_tokens
        ordinary = 1 + int(lanes.clock / TOKENS_PER_ROUND)
    credited = add_credit(lanes, tokens)
    return choose_lane(lanes, tokens, place, predicted, ordinary), credited


def record_length(lanes: Any, tokens: float, place: int, true_tokens: int) -> None:
    """Add a finished job to the totals of predicted and true tokens."""
    lanes.all_predicted += lanes.unit * tokens
    lanes.all_true += lanes.unit * true_tokens
    if is_short(lanes, tokens, place):
        lanes.short_predicted += lanes.unit * tokens
        lanes.short_true += lanes.unit * true_tokens


def _length(job: Job) -> tuple[float, int, bool]:
    """Return the median of a job's prediction, its bin, and whether it is a prediction and not the wide prior."""
    return job.median, _bin(job.median), (job.mu, job.sigma) != (_PRIOR.mu, _PRIOR.sigma)


def length_bin(job_mu: float, job_sigma: float, median: float) -> int:
    """Return the bin of a prediction, or -1 - bin for the wide prior: what the compiled kernel needs to know of it."""
    place = _bin(median)
    return place if (job_mu, job_sigma) != (_PRIOR.mu, _PRIOR.sigma) else -1 - place


def _bin(tokens: float) -> int:
    return min(_BINS - 1, int(_BINS_PER_DOUBLING * math.log2(max(tokens, 1.0))))
