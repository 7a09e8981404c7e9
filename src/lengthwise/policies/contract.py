"""What a policy is asked, and what it may look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from lengthwise.policies.job import Job

Rekey = Literal["never", "on_level", "on_progress", "on_time"]
"""When a policy's keys go stale: never, when its level changes, when a job has progressed, as time passes."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """How full the engine is: requests waiting, requests running, and how many may run (max_num_seqs)."""

    waiting: int = 0
    running: int = 0
    slots: int = 1


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Many jobs as columns, for keys as arrays."""

    arrival: NDArray[np.float64]
    expected: NDArray[np.float64]
    tail: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]
    generated: NDArray[np.float64]

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> JobColumns:
        """Take the columns from jobs."""
        rows = [(job.arrival, job.expected, job.tail, job.prompt_tokens, job.generated) for job in jobs]
        return cls(*np.array(rows, np.float64).reshape(-1, 5).T)


@runtime_checkable
class Policy(Protocol):
    """An order of waiting requests, and who yields. Stateless: the same question has the same answer."""

    name: str
    rekey: Rekey

    def level(self, queue: QueueView) -> int:
        """Return the step that keys depend on; when it changes, an `on_level` policy's keys are stale."""

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Return the job's place: smaller runs first. Always finite."""

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Return the places of many jobs, the same as `key` one by one."""

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """Return the running job that yields, or None.

        With a candidate: who, if anybody, makes room for this waiting job. Without: memory has run out and
        somebody must go; `running` is in order of admission.
        """
