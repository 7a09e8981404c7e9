"""First come, first served: what every engine does today, and the kill switch's fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lengthwise.policies.contract import JobColumns, QueueView, Rekey
    from lengthwise.policies.job import Job


class Fcfs:
    """First come, first served.

    key = arrival      (seconds)
    Memory short: the last admitted yields, as in vLLM. Nobody yields to a waiting request. Needs no belief.
    """

    name = "fcfs"
    rekey: Rekey = "never"

    def level(self, queue: QueueView) -> int:
        """Keys do not depend on the queue."""
        del queue
        return 0

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Earlier first."""
        del queue, now
        return job.arrival

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Earlier first."""
        del queue, now
        return jobs.arrival

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """The last admitted, and only when memory is short."""
        del now
        return running[-1] if candidate is None and running else None
