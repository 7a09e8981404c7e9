"""Policies around another policy, as in `fair(tie)`: classes, fair and bounded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import Named, last_of_largest, parameter, parameter_suffix
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import Policy, QueueView, Rekey, Rounds, Slots, one_slot

INNER_BITS: Final = 26
"""Nested rounds share one number, which float64 must represent: 2^26 inner rounds, 2^27 outer ones."""

_INNER_MASK: Final = (1 << INNER_BITS) - 1
_SWEEP_MIN: Final = 64


@dataclass(slots=True)
class _TenantRounds:
    """Start-time fair queueing: each tenant has a quota of work per round; what exceeds it belongs to the next round.

    position = max(current round * quota, end of the tenant's last job);  round = position // quota
    A tenant without jobs rejoins at the current round: unused work is not saved.
    """

    quantum: float
    weights: Mapping[str, float]
    serving: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    sweep_at: int = _SWEEP_MIN

    def enter(self, job: Job) -> int:
        """Return the round at the tenant's position, which advances by the job's prompt and expected answer."""
        tenant = job.tenant or ""
        quota = self._quota(tenant)
        start = max(self.serving * quota, self.ends.get(tenant, 0))
        job.charged = job.prompt_tokens + max(1, round(job.expected))
        self.ends[tenant] = start + job.charged
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
        tenant = job.tenant or ""
        if tenant in self.ends:
            used = job.prompt_tokens + job.generated if job.used_tokens is None else job.used_tokens
            self.ends[tenant] += used - job.charged

    def _quota(self, tenant: str) -> int:
        return max(1, int(self.quantum * self.weights.get(tenant, 1.0)))

    def _sweep(self) -> None:
        """Drop tenants behind the current round: they would rejoin there anyway."""
        if len(self.ends) > self.sweep_at:
            self.ends = {name: end for name, end in self.ends.items() if end > self.serving * self._quota(name)}
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


@dataclass(frozen=True)
class Wrapper(Named):
    """The inner policy unchanged; subclasses override what they change."""

    inner: Policy

    @property
    def name(self) -> str:
        """The wrapper, the inner policy, and the wrapper's parameters."""
        return f"{self.kind}({self.inner.name}){parameter_suffix(self)}"

    @property
    def rekey(self) -> Rekey:
        """When keys of the inner policy become stale."""
        return self.inner.rekey

    @property
    def uses_predictions(self) -> bool:
        """Whether the inner policy uses predictions."""
        return self.inner.uses_predictions

    @property
    def preempts(self) -> bool:
        """Whether the inner policy preempts for a waiting job."""
        return self.inner.preempts

    @property
    def preempt_check_interval(self) -> int:
        """Decode steps after which the inner policy's victim is looked for again."""
        return self.inner.preempt_check_interval

    def level(self, queue: QueueView) -> int:
        """Return the inner policy's level."""
        return self.inner.level(queue)

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Return the inner policy's key."""
        return self.inner.key(job, queue, now)

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Return the inner policy's keys."""
        return self.inner.keys(jobs, queue, now)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return the inner policy's scores."""
        return self.inner.eviction_scores(jobs, now)

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return the inner policy's victim."""
        return self.inner.find_victim(jobs, candidate, now)

    def rounds(self, slots: Slots = one_slot) -> Rounds | None:
        """Return the inner policy's state."""
        return self.inner.rounds(slots)


@dataclass(frozen=True)
class RoundsWrapper(Wrapper):
    """Rounds first, then the order of the inner policy.

    Rounds hold for running jobs too: a job is preempted only for a waiting one of its own or an earlier round, and
    when memory is short the latest round is preempted first.
    """

    @abstractmethod
    def make_rounds(self) -> Rounds:
        """Return new state of this wrapper for one queue."""

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return this wrapper's rounds, with those of the inner policy nested in them."""
        inner = self.inner.rounds(slots)
        return self.make_rounds() if inner is None else NestedRounds(self.make_rounds(), inner)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return scores by round, then by the inner policy."""
        return _lexicographic(jobs.round_number, self.inner.eviction_scores(jobs, now))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return the inner policy's victim among the jobs of the candidate's round or a later one."""
        return _find_victim_among(self.inner, jobs, jobs.round_number >= candidate.round_number, candidate, now)


@dataclass(frozen=True)
class Classes(Wrapper):
    """Any policy, with priority strict among running requests as it is among waiting ones: `classes(tie)`.

    Whatever the policy, a queue admits a lower `priority` first. This adds:
    memory short: the least urgent class is preempted first, inside it as the inner policy decides;
    a waiting request: a running one of a less urgent class is preempted (of the least urgent class, the one with the
    highest eviction score); inside one class the inner policy decides.
    In a host that does not preempt for waiting requests, the first of the two remains.
    """

    kind = "classes"

    @property
    def preempts(self) -> bool:
        """Return True: a more urgent class preempts."""
        return True

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return scores by class, then by the inner policy."""
        return _lexicographic(jobs.priority, self.inner.eviction_scores(jobs, now))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return the highest eviction score of a less urgent class; else the inner victim in the same class."""
        less_urgent = jobs.priority > candidate.priority
        if less_urgent.any():
            scores = np.where(less_urgent, self.eviction_scores(jobs, now), -np.inf)
            index = last_of_largest(scores)
            if scores[index] > -np.inf:
                return index
        return _find_victim_among(self.inner, jobs, jobs.priority == candidate.priority, candidate, now)


@dataclass(frozen=True)
class Fair(RoundsWrapper):
    """Any policy, with tenants in turns: `fair(tie):quantum=8192`.

    place: round, then the key of the inner policy
    In each round a tenant has `quantum` = 32,768 tokens of work (prompt + expected answer; the true length replaces the
    expected one when a job finishes, where the host reports it); what a tenant sends beyond that belongs to later
    rounds. A tenant without waiting requests joins the current round when it returns: unused shares are not saved.
    This is start-time fair queueing, with tags rounded down to rounds so that the inner policy has jobs to order.

    Claim. Over any time in which two tenants both always have requests waiting, the work admitted of the one exceeds
    that of the other by at most 2 * quantum + 2 * m, m the most work in one request.
    Proof. Let r and s be the current rounds at the two ends of that time. No request waits in a round before the
    current one, so a tenant that always waits is at or beyond it, and its requests follow each other without a gap.
    A request of round n starts from quantum * n up to quantum * (n + 1). What is admitted of the one tenant starts
    at or after quantum * r and ends before quantum * (s + 1) + m. Of the other, all that starts from quantum * (r + 1)
    up to quantum * s is admitted in that time, at least quantum * (s - r - 1) - m. The difference is as claimed. QED.
    (By the work charged; a correction by the true length counts from then on. Priority and preemption are outside.)

    The cost: the inner policy orders a round, not the whole queue, also while only one tenant sends requests. A larger
    quantum gives it more to order and tenants coarser turns; the default holds some 80 requests of 400 tokens for each
    tenant. Requests without a tenant form one tenant. The state, the position of each tenant, belongs to the queue.
    A host may give tenants `weights`: a tenant of weight w has w * quantum in each round, and the claim holds for its
    work divided by w.
    """

    kind = "fair"

    quantum: float = parameter(32_768, minimum=1)
    weights: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def uses_predictions(self) -> bool:
        """Return True: a tenant is charged the expected length."""
        return True

    def make_rounds(self) -> Rounds:
        """Return the positions of the tenants."""
        return _TenantRounds(self.quantum, self.weights)


@dataclass(frozen=True)
class Bounded(RoundsWrapper):
    """Any policy with a starvation bound, by count and by time: `bounded(sjf):overtakes=50,wait=30`.

    place: round, then the key of the inner policy
    A round closes once `overtakes` + 1 = 101 requests have joined it, or `wait` = 60 s after the first of them.

    Claim. Among requests of one priority, at most `overtakes` that arrived later are admitted before a given one, and
    none of them arrived more than `wait` seconds later.
    Proof. The queue admits a smaller round before a larger one whatever the keys, and round numbers never fall in order
    of arrival. So a request that arrived later and is admitted earlier is in the same round. A round holds at most
    `overtakes` others, and all of them arrived within `wait` seconds of its first, hence of each other. Nor does a
    request of a later round preempt one of an earlier round, so a preempted request returns to the head of its round
    with the same bound for its remaining time. QED.
    So a request waits at most for what is before it under first come, first served, and `overtakes` more.

    Inside `fair` the claim holds only for requests of one tenant's round: use this as the outer wrapper. Priority is
    outside: a more urgent class may starve a less urgent one. The state, the open round, belongs to the queue.
    """

    kind = "bounded"

    overtakes: float = parameter(100, minimum=0)
    wait: float = parameter(60.0, minimum=0.0)

    def make_rounds(self) -> Rounds:
        """Return the open round."""
        return _Batches(int(self.overtakes) + 1, self.wait)


@dataclass(slots=True)
class _Batches:
    size: int
    wait: float
    current: int = 0
    inside: int = 0
    opened: float = 0.0

    def enter(self, job: Job) -> int:
        if self.inside and (self.inside >= self.size or job.arrival - self.opened > self.wait):
            self.current += 1
            self.inside = 0
        if not self.inside:
            self.opened = job.arrival
        self.inside += 1
        return self.current

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        """Do nothing: rounds do not depend on true lengths."""


def _lexicographic(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return eviction scores by two measures, the first counting more; -inf in the second remains -inf."""
    places = np.empty(len(first))
    places[np.lexsort((second, first))] = np.arange(len(first), dtype=np.float64)  # stable: the last admitted is higher
    return np.where(second == -np.inf, -np.inf, places)


def _find_victim_among(
    policy: Policy, jobs: JobColumns, allowed: NDArray[np.bool_], candidate: Job | JobColumns, now: float
) -> int | None:
    """Return the policy's victim among the allowed running jobs."""
    if not policy.preempts:
        return None
    rows = np.flatnonzero(allowed)
    if len(rows) == 0:
        return None
    index = policy.find_victim(jobs.take(rows), candidate, now)
    return None if index is None else int(rows[index])
