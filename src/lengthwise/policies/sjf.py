"""Shortest job first, on a point estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.policies.base import Ordering

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lengthwise.policies.base import Numbers
    from lengthwise.policies.columns import JobColumns
    from lengthwise.policies.contract import QueueView
    from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Sjf(Ordering):
    """Shortest predicted answer first, without preemption (SSJF, arXiv 2404.08509).

    key = min(median, cap)      (tokens: the belief as a single number; a hint and a true length are beliefs too)
    Memory short: the one with most still to come by that number yields; the last admitted among equals.
    Without a belief: the wide prior's median, so an unknown request stands among the middling ones.
    """

    called = "sjf"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Shorter first."""
        del queue, now
        return np.minimum(np.exp(jobs.mu), jobs.cap)

    def yielding(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Most still to come first."""
        del now
        return np.asarray(np.maximum(1.0, np.minimum(np.exp(jobs.mu), jobs.cap) - jobs.generated))
