"""First come, first served: what every engine does today, and the kill switch's fallback."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Fcfs(BasePolicy):
    """First come, first served.

    key = arrival      (seconds)
    Memory short: the last admitted yields, as in vLLM. Nobody yields to a waiting request. Needs no prediction.
    """

    kind = "fcfs"
    uses_predictions = False

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Earlier first."""
        return jobs.arrival
