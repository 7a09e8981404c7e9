"""Shortest expected processing time."""

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
class Sept(Ordering):
    """Smallest mean first: the best order for the mean waiting time when a request, once begun, runs to its end.

    key = E[min(length, cap)]      (tokens)
    TIE with beta 0 and no aging. Memory short: the one with the largest mean still to come yields.
    Without a belief: the wide prior's mean.
    """

    called = "sept"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Smaller mean first."""
        del queue, now
        return jobs.expected

    def yielding(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Most still to come first."""
        del now
        return np.maximum(1.0, jobs.expected - jobs.generated)
