"""What policies that let a running job yield to a waiting one have in common."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import BasePolicy, Numbers, last_of_largest
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job
from lengthwise.policies.residual import prepare


@dataclass(frozen=True)
class Preemptive(BasePolicy):
    """The smallest rank runs: a running job yields to a waiting one of a rank that is smaller by a margin.

    Never to one of a less urgent priority. Ranks of uncertain predictions grow as a job runs on, so hosts ask again.

    Each time that a job yields, its prompt and what it has generated must be computed again, and there may always be
    one more that is shorter. So a job that has been preempted `times` times, by whatever, yields to no waiting one any
    more.
    """

    rekey = "on_progress"
    preempts = True
    preempt_check_interval = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        prepare()

    @abstractmethod
    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """Return what is compared, between waiting and running alike: smaller runs."""

    @property
    @abstractmethod
    def margin(self) -> float:
        """How many times the candidate's rank a running job's must be, to yield."""

    @property
    @abstractmethod
    def times(self) -> float:
        """After how many preemptions a job is let finish."""

    def may_yield(self, jobs: JobColumns) -> NDArray[np.bool_]:
        """Return who may be asked to yield to a waiting job."""
        return jobs.preemptions < self.times

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Smaller rank first."""
        return self.rank(jobs)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Largest rank first, of those who may yield; of the others only when there is no such."""
        ranks = np.asarray(self.rank(jobs))
        return np.where(self.may_yield(jobs), ranks, ranks - _AFTER_ALL)

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """The largest rank of those who may yield, if the candidate's is smaller by the margin."""
        open_to = self.may_yield(jobs) & (jobs.priority >= candidate.priority)
        if not open_to.any():
            return None
        ranks = np.where(open_to, self.rank(jobs), -np.inf)
        index = last_of_largest(ranks)
        return index if ranks[index] > self.margin * np.max(self.rank(candidate)) else None


_AFTER_ALL = 1e12  # tokens; more than any rank
