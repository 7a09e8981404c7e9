"""The policy of this project: first come, first served, with a fast lane that costs the others little."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.policies.base import Ordering
from lengthwise.policies.contract import one

if TYPE_CHECKING:
    from lengthwise.policies.base import Numbers
    from lengthwise.policies.columns import JobColumns
    from lengthwise.policies.contract import QueueView, Rounds, Slots
    from lengthwise.policies.job import Job

SHARE: Final = 0.12
"""Of the work, that goes through the fast lane: others wait at most about 1 / (1 - SHARE) times as long."""
FAST: Final = 0
"""The round of the fast lane: before all others."""
_PATIENCE: Final = 0.5  # of the time that newcomers wait: how far a longer job may be set back behind shorter ones
_SURE: Final = 2.0  # medians: a belief whose mean is larger is too wide to call anybody short
_CREDIT: Final = 6.0  # mean jobs: what the fast lane may save up
_FORGETS: Final = 4096  # jobs: over so many the picture of what comes is renewed
_GRAIN: Final = 16.0  # tokens per slot in a round
_BINS_PER_DOUBLING: Final = 6
_BINS: Final = 24 * _BINS_PER_DOUBLING


@dataclass(frozen=True)
class Lengthwise(Ordering):
    """First come, first served, with a fast lane for the shortest that together make up 12 % of the work.

    round = 0                                         in the fast lane
            1 + (A + min(median, wait / 2)) / 16      in the other   (tokens per slot)
    key   = median                                    (tokens: the belief as a single number, at most its cap)
    A = work that has come so far, by medians / slots, a clock that runs with the work; wait = A - what has been served,
    by the same clock: how long newcomers stand in line. Medians, because a mean of a heavy tail hides who is short.

    While little waits, `wait` is near 0 and this is first come, first served, but for the shortest. When much waits, a
    job lets those pass that come later but would be done before it, up to half of the wait.

    Bound. The fast lane takes a job only from its credit: 12 % of the work of each job that comes, and no more than six
    mean jobs saved up. In the other lane at most slots * median tokens of later work overtake a job. So where work
    comes r times as fast as it is served, a job waits at most (what it would under FCFS + the time of its own length +
    that of six mean jobs) / (1 - 0.12 r), all by medians. Nobody starves, and there is nothing to tune.

    Memory short: the last admitted yields. A belief whose mean is over twice its median is too wide to
    call a job short, and so is the wide prior, which stands in for a missing one.
    """

    called = "lengthwise"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Shorter first, within a lane and a round."""
        del queue, now
        return np.minimum(np.exp(jobs.mu), jobs.cap)

    def rounds(self, slots: Slots = one) -> Rounds:
        """The two lanes of one queue."""
        return Lanes(slots)


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
    work: list[float] = field(default_factory=lambda: [0.0] * _BINS)

    def enter(self, job: Job) -> int:
        """The lane of a job that has just come, and its place in it."""
        self.unit *= 1.0 + 1.0 / _FORGETS
        self.count += self.unit
        self.clock += job.median / self.slots()
        self._weigh(job.median, self.unit)
        self._earn(job.median)
        return self._place(job)

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """A new belief: as if it had come with it, but nobody is set back."""
        self.clock += (job.median - before) / self.slots()
        self._weigh(before, -self.unit)
        self._weigh(job.median, self.unit)
        if in_round == FAST:
            self.credit += before
        self._earn(job.median - before)
        place = self._place(job)
        return place if in_round == FAST else min(place, in_round)

    def admitted(self, in_round: int) -> None:
        """Rounds never go back: one who was preempted may come from an earlier one."""
        self.served = max(self.served, in_round * _GRAIN)

    def finished(self, job: Job) -> None:
        """What was expected of it has been counted; its truth is the predictor's business."""

    def _place(self, job: Job) -> int:
        median, place = job.median, _bin(job.median)
        shorter = sum(self.work[:place]) + 0.5 * self.work[place]
        sure = job.expected <= _SURE * median
        if sure and shorter <= SHARE * self.total and median <= self.credit:
            self.credit -= median
            return FAST
        wait = max(0.0, self.clock - self.served)
        return 1 + int((self.clock + min(median, _PATIENCE * wait)) / _GRAIN)

    def _weigh(self, tokens: float, weight: float) -> None:
        self.work[_bin(tokens)] += weight * tokens
        self.total += weight * tokens
        if self.unit > 1e12:
            self.work = [each / self.unit for each in self.work]
            self.total, self.count, self.unit = self.total / self.unit, self.count / self.unit, 1.0

    def _earn(self, tokens: float) -> None:
        self.credit = min(self.credit + SHARE * tokens, _CREDIT * self.total / self.count)


def _bin(tokens: float) -> int:
    return min(_BINS - 1, int(_BINS_PER_DOUBLING * math.log2(max(tokens, 1.0))))
