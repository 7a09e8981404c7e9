"""Round numbers: the state of policies that serve flows of jobs (for example tenants) in turns."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from lengthwise.policies.job import Job
from lengthwise.policies.protocol import Rounds

INNER_BITS: Final = 26
"""Nested rounds share one number, which float64 must represent: 2^26 inner rounds, 2^27 outer ones."""

_INNER_MASK: Final = (1 << INNER_BITS) - 1
_SWEEP_MIN: Final = 64

Flow = TypeVar("Flow", bound=Hashable)


@dataclass(slots=True)
class FlowRounds(Generic[Flow]):
    """Start-time fair queueing: each flow has a quota of work per round; what exceeds it belongs to the next round.

    position = max(current round * quota, end of the flow's last job);  round = position // quota
    A flow without jobs rejoins at the current round: unused work is not saved.
    """

    flow: Callable[[Job], Flow]
    work: Callable[[Job], int]
    quota: Callable[[Flow], int]
    serving: int = 0
    ends: dict[Flow, int] = field(default_factory=dict)
    sweep_at: int = _SWEEP_MIN

    def enter(self, job: Job) -> int:
        """Return the round at the flow's position, which advances by the job's work."""
        flow = self.flow(job)
        quota = self.quota(flow)
        start = max(self.serving * quota, self.ends.get(flow, 0))
        job.charged = self.work(job)
        self.ends[flow] = start + job.charged
        self._sweep()
        return start // quota

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the same round; the account is corrected when the job finishes."""
        return round_number

    def admitted(self, round_number: int) -> None:
        """Advance to this round; a preempted job of an earlier round does not move it back."""
        self.serving = max(self.serving, round_number)

    def finished(self, job: Job) -> None:
        """Charge the true work in place of the expected work."""
        flow = self.flow(job)
        if flow in self.ends:
            self.ends[flow] += job.prompt_tokens + job.generated - job.charged

    def _sweep(self) -> None:
        """Drop flows behind the current round: they would rejoin there anyway."""
        if len(self.ends) > self.sweep_at:
            self.ends = {flow: end for flow, end in self.ends.items() if end > self.serving * self.quota(flow)}
            self.sweep_at = 2 * len(self.ends) + _SWEEP_MIN


@dataclass(frozen=True, slots=True)
class NestedRounds:
    """Outer rounds, and inner rounds inside each of them: number = outer * 2^26 + inner."""

    outer: Rounds
    inner: Rounds

    def enter(self, job: Job) -> int:
        """Return both round numbers in one."""
        return (self.outer.enter(job) << INNER_BITS) + self.inner.enter(job)

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return both new round numbers in one."""
        outer, inner = round_number >> INNER_BITS, round_number & _INNER_MASK
        outer = self.outer.prediction_changed(job, outer, old_median)
        return (outer << INNER_BITS) + self.inner.prediction_changed(job, inner, old_median)

    def admitted(self, round_number: int) -> None:
        """Pass each part of the number to its rounds."""
        self.outer.admitted(round_number >> INNER_BITS)
        self.inner.admitted(round_number & _INNER_MASK)

    def finished(self, job: Job) -> None:
        """Pass the job to both."""
        self.outer.finished(job)
        self.inner.finished(job)
