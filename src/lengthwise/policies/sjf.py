"""Shortest job first, on a point estimate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Sjf(BasePolicy):
    """Shortest predicted answer first, without preemption (SSJF, arXiv 2404.08509).

    key = min(median, cap)      (tokens: the prediction as a single number; a hint and a true length are predictions too)
    Memory short: the one with most still to come by that number yields; the last admitted among equals.
    Without a prediction: the wide prior's median, so an unknown request stands among the middling ones.
    """

    kind = "sjf"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Shorter first."""
        return np.minimum(np.exp(jobs.mu), jobs.cap)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Most still to come first."""
        return np.asarray(np.maximum(1.0, np.minimum(np.exp(jobs.mu), jobs.cap) - jobs.generated))
