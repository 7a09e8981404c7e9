"""A policy that works for a few calls and then raises, at the call of the test's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies import BasePolicy, Job, QueueView
from lengthwise.policies.base import Numbers, parameter
from lengthwise.policies.job import JobColumns
from lengthwise.policies.protocol import Rekey, Rounds, Slots, WaitingJobs, one_slot

CALLS: Final = [
    "key",
    "keys",
    "level",
    "rounds",
    "enter",
    "prediction_changed",
    "admitted",
    "finished",
    "eviction_scores",
    "nan",
]


@dataclass(frozen=True)
class Raising(BasePolicy):
    """The last to arrive runs first, until the call with this number in CALLS has been made `after` times."""

    rekey: ClassVar[Rekey] = "on_time"
    preempts: ClassVar[bool] = True

    at: float = parameter(0, minimum=-1)
    after: float = parameter(2, minimum=0)
    made: list[str] = field(default_factory=list, compare=False, repr=False)

    def count(self, call: str) -> None:
        self.made.append(call)
        if call == (CALLS[int(self.at)] if self.at >= 0 else "select") and self.made.count(call) > self.after:
            raise ZeroDivisionError(call)

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        return -jobs.arrival

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        self.count("key")
        try:
            self.count("nan")
        except ZeroDivisionError:
            return float("nan")
        return super().key(job, queue, now)

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        self.count("keys")
        try:
            self.count("nan")
        except ZeroDivisionError:
            return np.full(len(jobs), np.nan)
        return super().keys(jobs, queue, now)

    def level(self, queue: QueueView) -> int:
        self.count("level")
        return 0

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        self.count("rounds")
        return RaisingRounds(self)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        self.count("eviction_scores")
        return -np.arange(len(jobs), dtype=np.float64)


@dataclass(frozen=True)
class RaisingSelect(Raising):
    """The same, and it selects."""

    select_columns = ("arrival",)

    at: float = parameter(-1, minimum=-1)

    def select(self, queue: WaitingJobs, now: float) -> int:
        self.count("select")
        return len(queue.jobs) - 1


@dataclass(frozen=True)
class RaisingRounds:
    policy: Raising

    def enter(self, job: Job) -> int:
        self.policy.count("enter")
        return 0

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        self.policy.count("prediction_changed")
        return round_number

    def selected(self, job: Job) -> None: ...

    def admitted(self, round_number: int) -> None:
        self.policy.count("admitted")

    def finished(self, job: Job) -> None:
        self.policy.count("finished")


def raising(call: str, after: int = 2) -> Raising:
    return RaisingSelect(after=after) if call == "select" else Raising(CALLS.index(call), after)
