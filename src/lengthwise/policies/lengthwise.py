"""The policy of this project: first come, first served, with a fast lane that costs the others little."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lengthwise.lengths import wide_prior
from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView, Rounds, Slots, one
from lengthwise.policies.job import Job

FEW: Final = 1 / 3
"""Of the jobs: so many of the shortest take the fast lane."""
SHARE: Final = 0.25
"""Of the work, at most, that goes through the fast lane: others wait at most about 1 / (1 - SHARE) times as long."""
FAST: Final = 0
"""The round of the fast lane: before all others."""
_LITTLE: Final = 0.1  # of the work: the shortest that make up no more take the fast lane, however many they are
_CLEARLY: Final = 0.9  # of the mean job: to let longer ones pass the others would win little
_PATIENCE: Final = 1 / 3  # of the time that newcomers wait: how far a longer job may be set back behind shorter ones
_CREDIT: Final = 6.0  # mean jobs: what the fast lane may save up
_FORGETS: Final = 4096  # jobs: over so many the picture of what comes is renewed
_GRAIN: Final = 16.0  # tokens per slot in a round
_BINS_PER_DOUBLING: Final = 12
_BINS: Final = 24 * _BINS_PER_DOUBLING
_NOTHING: Final = wide_prior()  # is predicted where a prediction is missing


@dataclass(frozen=True)
class Lengthwise(BasePolicy):
    """First come, first served, with a fast lane for the shortest third.

    round = 0                                         in the fast lane
            1 + (A + min(median, wait / 3)) / 16      in the other   (tokens per slot)
    key   = median                                    (tokens: the prediction as a single number, at most its cap)
    A = work that has come so far, by medians / slots, a clock that runs with the work; wait = A - what has been served,
    by the same clock: how long newcomers stand in line. Medians, because a mean of a heavy tail hides who is short.

    In the fast lane: who is among the shortest third of the jobs of late, or among the shortest that make up a tenth of
    the work, and clearly shorter than the mean. A third of the jobs and not a share of the work, because predictions that
    are drawn to the middle would fill a share of the predicted work with few jobs, and noisy ones with many long ones.

    While little waits, `wait` is near 0 and this is first come, first served, but for the shortest. When much waits, a
    job lets those pass that come later but would be done before it, up to a third of the wait.

    Bound. The fast lane takes a job only from its credit: a quarter of the work of each job that comes, and no more
    than six mean jobs saved up. In the other lane at most slots * median tokens of later work overtake a job. So where
    work comes r times as fast as it is served, a job waits at most (what it would under FCFS + the time of its own
    length + that of six mean jobs) / (1 - r / 4), all by medians. Nobody starves, and there is nothing to tune. If
    those called short take longer than the others, by what was predicted of both, the credit pays for it.

    Memory short: the last admitted yields. The wide prior, which stands in for a missing prediction, is never short.
    """

    kind = "lengthwise"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Shorter first, within a lane and a round."""
        return np.minimum(np.exp(jobs.mu), jobs.cap)

    def rounds(self, slots: Slots = one) -> Rounds:
        """The two lanes of one queue."""
        return Lanes(slots)


@dataclass(slots=True)
class Taken:
    """Tokens that were predicted of those who are done, and what they were in truth."""

    predicted: float = 1.0
    true: float = 1.0

    @property
    def ratio(self) -> float:
        """How much longer than predicted."""
        return self.true / self.predicted


@dataclass(slots=True)
class Lanes:
    """What has come of late, and the credit of the fast lane."""

    slots: Slots
    clock: float = 0.0
    served: float = 0.0
    unit: float = 1.0
    """What a job counts now: it grows, so that those before fade without being touched."""
    count: float = 0.0
    total: float = 0.0
    credit: float = 0.0
    jobs: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    work: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    """Of those who came of late, by length."""
    all: Taken = field(default_factory=Taken)
    short: Taken = field(default_factory=Taken)

    def enter(self, job: Job) -> int:
        """The lane of a job that has just come, and its place in it."""
        self.unit *= 1.0 + 1.0 / _FORGETS
        self.clock += job.median / self.slots()
        self._weigh(job.median, self.unit)
        job.credited = self._earn(job.median)
        return self._place(job, self.clock)

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """A new prediction: as if it had come with it, but nobody is set back.

        It gives back what credit it brought, which may be less than it was to bring, and brings its own. The clock
        stays: those who wait have their places by it.
        """
        self._weigh(before, -self.unit)
        self._weigh(job.median, self.unit)
        self.credit -= job.credited
        if in_round == FAST:
            self.credit += before
        job.credited = self._earn(job.median)
        if in_round == FAST:
            return self._place(job, self.clock)
        return min(self._place(job, self._came(in_round, before)), in_round)

    def admitted(self, in_round: int) -> None:
        """Rounds never go back: one who was preempted may come from an earlier one."""
        self.served = max(self.served, in_round * _GRAIN)

    def finished(self, job: Job) -> None:
        """What it took in truth: if the short ones take more than was predicted, the fast lane pays for it."""
        if job.generated <= 0:  # it failed
            return
        for taken in (self.all, self.short) if self._short(job.median) else (self.all,):
            taken.predicted += self.unit * job.median
            taken.true += self.unit * job.generated

    def _came(self, in_round: int, median: float) -> float:
        """The clock when a job came, by the place that it was given: what `_place` does, undone."""
        place = (in_round - 1) * _GRAIN
        return max(place - median, (place + _PATIENCE * self.served) / (1.0 + _PATIENCE))

    def _place(self, job: Job, came: float) -> int:
        median, known = job.median, (job.mu, job.sigma) != (_NOTHING.mu, _NOTHING.sigma)
        price = median * max(1.0, self.short.ratio / self.all.ratio)
        if known and price <= self.credit and self._short(median):
            self.credit -= price
            return FAST
        wait = max(0.0, came - self.served)
        return 1 + int((came + min(median, _PATIENCE * wait)) / _GRAIN)

    def _short(self, tokens: float) -> bool:
        """Among the shortest third of the jobs, or the shortest tenth of the work; half of one's equals count."""
        if tokens * self.count > _CLEARLY * self.total:
            return False
        place = _bin(tokens)
        few = sum(self.jobs[:place]) + 0.5 * self.jobs[place] <= FEW * self.count
        return few or sum(self.work[:place]) + 0.5 * self.work[place] <= _LITTLE * self.total

    def _weigh(self, tokens: float, weight: float) -> None:
        place = _bin(tokens)
        self.jobs[place] += weight
        self.work[place] += weight * tokens
        self.count += weight
        self.total += weight * tokens
        if self.unit > 1e12:
            self.jobs = [each / self.unit for each in self.jobs]
            self.work = [each / self.unit for each in self.work]
            for taken in (self.all, self.short):
                taken.predicted, taken.true = taken.predicted / self.unit, taken.true / self.unit
            self.total, self.count, self.unit = self.total / self.unit, self.count / self.unit, 1.0

    def _earn(self, tokens: float) -> float:
        """What a job brings: its share, as far as that can be saved up."""
        before = self.credit
        self.credit = min(before + SHARE * tokens, _CREDIT * self.total / self.count)
        return max(0.0, self.credit - before)


def _bin(tokens: float) -> int:
    return min(_BINS - 1, int(_BINS_PER_DOUBLING * math.log2(max(tokens, 1.0))))
