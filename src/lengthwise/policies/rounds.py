"""Turns among flows of jobs: the state that policies which serve in turns hand to the queue."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from lengthwise.policies.contract import Rounds

if TYPE_CHECKING:
    from lengthwise.policies.job import Job

INNER_BITS: Final = 26
"""Rounds within rounds share one number, which float64 must hold: 2^26 of the inner kind, 2^27 of the outer."""

_INNER: Final = (1 << INNER_BITS) - 1
_SWEEP_FLOOR: Final = 64

Flow = TypeVar("Flow", bound="Hashable")


@dataclass(slots=True)
class FlowRounds(Generic[Flow]):
    """Each flow has a quota of work per round; what goes beyond it belongs to the next round (start-time fair
    queueing).

    position = max(round being served * quota, where the flow's last job ended);  round = position // quota
    A flow that was away starts at the round being served: what it did not use is not saved up.
    """

    flow: Callable[[Job], Flow]
    work: Callable[[Job], int]
    quota: Callable[[Flow], int]
    serving: int = 0
    ends: dict[Flow, int] = field(default_factory=dict)
    sweep_at: int = _SWEEP_FLOOR

    def enter(self, job: Job) -> int:
        """The round where the flow stands, which then moves on by the job's work."""
        flow = self.flow(job)
        quota = self.quota(flow)
        start = max(self.serving * quota, self.ends.get(flow, 0))
        job.charged = self.work(job)
        self.ends[flow] = start + job.charged
        self._sweep()
        return start // quota

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """A place once given is kept; the account is set right when the job is done."""
        return in_round

    def admitted(self, in_round: int) -> None:
        """Rounds never go back: one who was preempted may come from an earlier one."""
        self.serving = max(self.serving, in_round)

    def finished(self, job: Job) -> None:
        """What was charged by expectation is charged by the truth."""
        flow = self.flow(job)
        if flow in self.ends:
            self.ends[flow] += job.prompt_tokens + job.generated - job.charged

    def _sweep(self) -> None:
        """Forget flows that the rounds have passed: they are as good as new."""
        if len(self.ends) > self.sweep_at:
            self.ends = {flow: end for flow, end in self.ends.items() if end > self.serving * self.quota(flow)}
            self.sweep_at = 2 * len(self.ends) + _SWEEP_FLOOR


@dataclass(frozen=True, slots=True)
class RoundsInRounds:
    """Turns by one rule, and inside each of its rounds by another."""

    outer: Rounds
    inner: Rounds

    def enter(self, job: Job) -> int:
        """Both rounds in one number, the outer counting more."""
        return (self.outer.enter(job) << INNER_BITS) + self.inner.enter(job)

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """Both may give another."""
        outer, inner = in_round >> INNER_BITS, in_round & _INNER
        return (self.outer.changed(job, outer, before) << INNER_BITS) + self.inner.changed(job, inner, before)

    def admitted(self, in_round: int) -> None:
        """Both learn theirs."""
        self.outer.admitted(in_round >> INNER_BITS)
        self.inner.admitted(in_round & _INNER)

    def finished(self, job: Job) -> None:
        """Both learn it."""
        self.outer.finished(job)
        self.inner.finished(job)
