"""Learning to rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Ltr(BasePolicy):
    """Lowest rank score first (LTR, arXiv 2408.15792): only the order of the scores counts, not their size.

    key = min(mu, ln cap)      (the log of the prediction's median)
    On the same predictions this is the order of `sjf`; what LTR changes is the predictor, trained for the order alone.
    Memory short: the one of the highest score yields, however much of it is done, since a score cannot be counted
    down. Without a prediction: the wide prior's median.
    """

    kind = "ltr"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Lower score first."""
        return np.minimum(jobs.mu, np.log(jobs.cap))

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Highest score first."""
        return np.asarray(np.minimum(jobs.mu, np.log(jobs.cap)))
