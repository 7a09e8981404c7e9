"""The policy of this project: first come, first served, with a fast lane for short jobs at a bounded cost to others.

Terms used here:
fast lane      round 0: its jobs are admitted before all others
ordinary lane  rounds 1 and up, in order of arrival measured by work
work           tokens that a job is expected to generate: what finished jobs of its predicted length generated
credit         tokens of work that may still enter the fast lane: every job that arrives adds a quarter of its work
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.calibration import (
    UNPREDICTED,
    LengthCalibration,
    calibrated_work,
    length_bin,
    record_length,
)
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import QueueView, Rounds, Slots, one_slot

SHORT_JOB_FRACTION: Final = 0.36
"""The fraction of jobs, the shortest, that may use the fast lane."""
FAST_WORK_FRACTION: Final = 0.25
"""The fraction of the arriving work that may use the fast lane."""
FAST_ROUND: Final = 0
"""The round number of the fast lane."""
SHORT_WORK_FRACTION: Final = 0.07  # the shortest jobs that make up this fraction of the work are short, however many
MAX_OF_MEAN: Final = 0.9  # a short job has at most this fraction of the mean: longer ones would gain little
DEAR_OF_MEAN: Final = 0.5  # from this fraction of the mean on, a short job costs more credit than its work
MAX_CREDIT_JOBS: Final = 20.0  # mean jobs: the most credit
WINDOW_JOBS: Final = 4096  # the length statistics fade over so many jobs
MAX_UNIT: Final = 1e12  # beyond, all totals are divided by the unit
TOKENS_PER_ROUND: Final = 16.0  # per slot
MAX_LLMS: Final = 256  # that are calibrated apart; further ones together
_BINS_PER_DOUBLING: Final = 12
_BINS: Final = 24 * _BINS_PER_DOUBLING
EDGES: Final = 2.0 ** (np.arange(1, _BINS) / _BINS_PER_DOUBLING)
"""The least work, in tokens, of each bin of the statistics but the first."""
_EDGES: Final = EDGES.tolist()


@dataclass(frozen=True)
class Lengthwise(BasePolicy):
    """First come, first served, with a fast lane for the shortest jobs, as far as finished jobs show who they are.

    round = 0               in the fast lane
            1 + A / 16      in the ordinary lane   (tokens per slot)
    key   = median          (tokens: the prediction as a single number, at most its cap)
    work  = median * r(median), at most the cap    (tokens; r: true over predicted tokens of finished jobs of about this
            predicted length, for each LLM: see `calibration`)
    price = work * max(1, 2 * work / mean work)
    A = work that has arrived so far / slots, a clock that advances with the work: the ordinary lane is in order of
    arrival, and shortest first among jobs that arrive within 16 tokens of work per slot.

    In the fast lane: a job whose work is at most 0.9 of the mean and among the shortest 36 % of recent jobs, or among
    the shortest that make up 7 % of the work, if the credit covers its price. A job that costs almost as much as the
    mean gains little for its work; hence the price. Where predictions say nothing, all have the mean work and the order
    is FCFS; where they are inverted, those predicted long are the short ones. Without finished jobs r is 1.

    Bound. Every job that arrives adds a quarter of its work to the credit, which is at most 20 mean jobs. A job of the
    fast lane uses its price, and when it finishes what it took beyond its work; what it did not take is given back. So,
    whatever the predictions, the jobs of the fast lane that overtake a waiting job of the ordinary lane have at most

        W / 4 + 20 mean jobs + G      (tokens; W: the work of all that arrive while it waits)

    in total, and later jobs of its own lane at most 16 tokens per slot. A job of the fast lane counts with its true
    length if it finished before the last of them arrived, else with its work; G is what earlier jobs of the fast lane,
    unfinished when it arrived, give back. Where work arrives r times as fast as it is served, the wait is about that of
    FCFS and the time of the constants, divided by 1 - r / 4; from r = 4 on, short jobs can fill the engine while that
    lasts. Nothing to tune.

    Memory short: the last admitted is preempted. A job without a prediction is never in the fast lane; its work is that
    of finished ones without a prediction, at first the median of the wide prior.
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
    """The rounds of `Lengthwise`: statistics of recent work, the credit of the fast lane, and what predictions say."""

    slots: Slots
    clock: float = 0.0
    unit: float = 1.0
    """The weight of a job that arrives now: it grows, so that earlier jobs fade without being updated."""
    count: float = 0.0
    total: float = 0.0
    credit: float = 0.0
    jobs: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    work: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    """Weighted numbers and work of recent jobs by their work."""
    calibrations: dict[str | None, LengthCalibration] = field(default_factory=dict)
    """By LLM."""

    def enter(self, job: Job) -> int:
        """Return the round of a new job."""
        job.counted, predicted = self._work(job)
        round_number, job.credited, job.price = enter_lanes(self, job.counted, predicted, self.slots())
        return round_number

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the fast lane if the job may use it by its new prediction, else its round in the ordinary lane."""
        old, (job.counted, predicted) = job.counted, self._work(job)
        round_number, job.credited, job.price = change_lane(
            self, job.counted, predicted, old, round_number, job.credited, job.price
        )
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        """Record the true length: the credit is corrected by it, and it counts for later jobs of this prediction."""
        if job.generated > 0:  # else it failed
            place = length_bin(job.mu, job.sigma, job.median)
            record_length(self._calibration(job), job.median, place, job.generated)
            settle(self, job.generated, job.counted, job.price)

    def _calibration(self, job: Job) -> LengthCalibration:
        # Names may come from clients: memory stays bounded.
        llm = job.llm if job.llm in self.calibrations or len(self.calibrations) < MAX_LLMS else None
        found = self.calibrations.get(llm)
        if found is None:
            found = self.calibrations[llm] = LengthCalibration()
        return found

    def _work(self, job: Job) -> tuple[float, bool]:
        """Return the work of a job, and whether it has a prediction."""
        place = length_bin(job.mu, job.sigma, job.median)
        return calibrated_work(self._calibration(job), job.median, place, job.cap), place != UNPREDICTED


# The rules of the lanes, on numbers: `Lanes` calls them, and the simulator's kernel compiles them for its own state
# with the same fields. `work` is that of a job, `credited` the credit it has added, `price` what it has paid.


def work_bin(work: float) -> int:
    """Return the bin of a job's work in the statistics."""
    return bisect_right(_EDGES, work)


def is_short(lanes: Any, work: float) -> bool:
    """Return whether a job is in the shortest 36 % of jobs or 7 % of work; half of its own bin counts."""
    if work * lanes.count > MAX_OF_MEAN * lanes.total:
        return False
    place = work_bin(work)
    shorter = 0.0  # added in this order: from Python 3.12 on `sum` compensates for rounding
    for number in range(place):
        shorter += lanes.jobs[number]
    if shorter + 0.5 * lanes.jobs[place] <= SHORT_JOB_FRACTION * lanes.count:
        return True
    below = 0.0
    for number in range(place):
        below += lanes.work[number]
    return bool(below + 0.5 * lanes.work[place] <= SHORT_WORK_FRACTION * lanes.total)


def count_work(lanes: Any, work: float, weight: float) -> None:
    """Add a job to the statistics of recent work."""
    place = work_bin(work)
    lanes.jobs[place] += weight
    lanes.work[place] += weight * work
    lanes.count += weight
    lanes.total += weight * work
    if lanes.unit > MAX_UNIT:
        for number in range(_BINS):
            lanes.jobs[number] /= lanes.unit
            lanes.work[number] /= lanes.unit
        lanes.total, lanes.count, lanes.unit = lanes.total / lanes.unit, lanes.count / lanes.unit, 1.0


def add_credit(lanes: Any, tokens: float) -> None:
    """Change the credit, up to the maximum."""
    lanes.credit = min(lanes.credit + tokens, MAX_CREDIT_JOBS * lanes.total / lanes.count)


def choose_lane(lanes: Any, work: float, predicted: bool, ordinary: int) -> tuple[int, float, float]:
    """Return a job's round, the credit that it adds, and the price that it pays: 0 in the ordinary lane.

    It takes the fast lane if it is short and the credit covers its price.
    """
    before = lanes.credit
    add_credit(lanes, FAST_WORK_FRACTION * work)
    credited = max(0.0, lanes.credit - before)
    price = work * max(1.0, work * lanes.count / (DEAR_OF_MEAN * lanes.total))
    if predicted and price <= lanes.credit and is_short(lanes, work):
        lanes.credit -= price
        return FAST_ROUND, credited, price
    return ordinary, credited, 0.0


def enter_lanes(lanes: Any, work: float, predicted: bool, slots: int) -> tuple[int, float, float]:
    """Return the round of a new job, the credit that it adds, and its price."""
    lanes.unit *= 1.0 + 1.0 / WINDOW_JOBS
    lanes.clock += work / slots
    count_work(lanes, work, lanes.unit)
    return choose_lane(lanes, work, predicted, 1 + int(lanes.clock / TOKENS_PER_ROUND))


def change_lane(
    lanes: Any, work: float, predicted: bool, old_work: float, round_number: int, credited: float, price: float
) -> tuple[int, float, float]:
    """Return the round of a waiting job by its new prediction, the credit that it adds, and its price.

    The job takes back the credit that it added, which may be less than its share, and the price that it paid. The
    clock is unchanged: the rounds of waiting jobs are relative to it. A job that loses the fast lane joins the
    ordinary lane as if it arrived now.
    """
    count_work(lanes, old_work, -lanes.unit)
    count_work(lanes, work, lanes.unit)
    lanes.credit += price - credited
    ordinary = 1 + int(lanes.clock / TOKENS_PER_ROUND) if round_number == FAST_ROUND else round_number
    return choose_lane(lanes, work, predicted, ordinary)


def settle(lanes: Any, tokens: int, work: float, price: float) -> None:
    """Charge a finished job of the fast lane for what it took beyond its work, or give back what it did not take."""
    if price > 0.0:
        add_credit(lanes, work - tokens)
