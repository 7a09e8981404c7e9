"""Shortest expected processing time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Sept(BasePolicy):
    """Smallest mean first: the best order for the mean waiting time when a request, once begun, runs to its end.

    key = E[min(length, cap)]      (tokens)
    TIE with beta 0 and no aging. Memory short: the one with the largest mean still to come yields.
    Without a prediction: the wide prior's mean.
    """

    kind = "sept"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Smaller mean first."""
        return jobs.expected

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Most still to come first."""
        return np.maximum(1.0, jobs.expected - jobs.generated)
