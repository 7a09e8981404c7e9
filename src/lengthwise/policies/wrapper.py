"""What wrappers have in common: a policy around another, as in `fair(tie)`, that decides what it does not itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import check_parameters, choose_victim, parameter_suffix
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import Policy, QueueView, Rekey, Rounds, Slots, one
from lengthwise.policies.job import Job
from lengthwise.policies.rounds import RoundsInRounds


@dataclass(frozen=True)
class Wrapper:
    """The policy inside, unchanged."""

    kind: ClassVar[str]

    inner: Policy

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def name(self) -> str:
        """The wrapper, what is inside, and the wrapper's parameters."""
        return f"{self.kind}({self.inner.name}){parameter_suffix(self)}"

    @property
    def rekey(self) -> Rekey:
        """As inside."""
        return self.inner.rekey

    @property
    def uses_predictions(self) -> bool:
        """As inside."""
        return self.inner.uses_predictions

    @property
    def preempts(self) -> bool:
        """As inside."""
        return self.inner.preempts

    @property
    def preempt_check_interval(self) -> int:
        """As inside."""
        return self.inner.preempt_check_interval

    def level(self, queue: QueueView) -> int:
        """As inside."""
        return self.inner.level(queue)

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """As inside."""
        return self.inner.key(job, queue, now)

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """As inside."""
        return self.inner.keys(jobs, queue, now)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """As inside."""
        return self.inner.eviction_scores(jobs, now)

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """As inside."""
        return self.inner.find_victim(jobs, candidate, now)

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """The one who makes room for the candidate; without one, the readiest to yield."""
        return choose_victim(self, running, candidate, now)

    def rounds(self, slots: Slots = one) -> Rounds | None:
        """As inside."""
        return self.inner.rounds(slots)


class InTurns(Wrapper, ABC):
    """Rounds before the order inside.

    So that a round means something to who runs as well: a job yields to a waiting one only of its own round or an
    earlier one, and memory takes from the latest round first.
    """

    @abstractmethod
    def own_rounds(self) -> Rounds:
        """Return this wrapper's own state."""

    def rounds(self, slots: Slots = one) -> Rounds:
        """This wrapper's rounds, and inside them those of the policy within, if it has any."""
        within = self.inner.rounds(slots)
        return self.own_rounds() if within is None else RoundsInRounds(self.own_rounds(), within)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """The latest round first, then as inside."""
        return ordered(jobs.in_round, self.inner.eviction_scores(jobs, now))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """As inside, among those of the candidate's round or a later one."""
        return find_victim_among(self.inner, jobs, jobs.in_round >= candidate.in_round, candidate, now)


def ordered(first: NDArray[np.float64], then: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return readiness by two measures, the first counting more; who may not yield by the second may not at all."""
    places = np.empty(len(first))
    places[np.lexsort((then, first))] = np.arange(len(first), dtype=np.float64)  # stable: the last admitted is readier
    return np.where(then == -np.inf, -np.inf, places)


def find_victim_among(
    policy: Policy, jobs: JobColumns, open_to: NDArray[np.bool_], candidate: Job | JobColumns, now: float
) -> int | None:
    """Ask a policy who makes room, of some of the running jobs only."""
    if not policy.preempts:
        return None
    rows = np.flatnonzero(open_to)
    if len(rows) == 0:
        return None
    index = policy.find_victim(jobs.take(rows), candidate, now)
    return None if index is None else int(rows[index])
