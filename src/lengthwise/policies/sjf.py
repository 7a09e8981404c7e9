"""Shortest job first, on the expected length."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lengthwise.policies.contract import JobColumns, QueueView, Rekey
    from lengthwise.policies.job import Job


class Sjf:
    """Shortest expected answer first, without preemption.

    key = E[length]      (tokens; a hint and a true length are beliefs too)
    Memory short: the one with most still expected to come yields; the last admitted among equals.
    Without a belief: the wide prior, so an unknown request stands among the middling ones.
    """

    name = "sjf"
    rekey: Rekey = "never"

    def level(self, queue: QueueView) -> int:
        """Keys do not depend on the queue."""
        del queue
        return 0

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Shorter first."""
        del queue, now
        return job.expected

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Shorter first."""
        del queue, now
        return jobs.expected

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """The one with most still to come, and only when memory is short."""
        del now
        if candidate is not None or not running:
            return None
        return max(reversed(running), key=lambda job: job.expected_remaining)
