"""Priority classes among the running too, for any policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import last_of_largest
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.job import Job
from lengthwise.policies.wrapper import Wrapper, find_victim_among, ordered


@dataclass(frozen=True)
class Classes(Wrapper):
    """Any policy, with priority strict among the running as it is among the waiting: `classes(tie)`.

    Whatever the policy, a queue takes a lower `priority` first. Around a policy this adds:
    memory short: the least urgent class yields first, inside it as the policy says;
    a waiting request: a running one of a less urgent class makes room (of the least urgent class, the readiest to
    yield); inside one class the policy decides, as always.
    In a host that does not let running requests yield to waiting ones, the first of the two remains.
    """

    kind = "classes"

    @property
    def preempts(self) -> bool:
        """A more urgent class takes its place."""
        return True

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """The least urgent class first, then as inside."""
        return ordered(jobs.priority, self.inner.eviction_scores(jobs, now))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """The readiest of a less urgent class; failing that, as inside among the candidate's own."""
        less_urgent = jobs.priority > candidate.priority
        if less_urgent.any():
            readiness = np.where(less_urgent, self.eviction_scores(jobs, now), -np.inf)
            index = last_of_largest(readiness)
            if readiness[index] > -np.inf:
                return index
        return find_victim_among(self.inner, jobs, jobs.priority == candidate.priority, candidate, now)
