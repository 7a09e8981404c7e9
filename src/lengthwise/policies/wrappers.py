"""Policies around another policy, as in `fair(tie)`: classes, fair, bounded and background."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.lengths import wide_prior
from lengthwise.policies.base import Named, last_of_largest, parameter, parameter_suffix
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import Policy, QueueView, Rekey, Rounds, Slots, WaitingJobs, one_slot, selects
from lengthwise.specs import Spec, parse_spec

INNER_BITS: Final = 26
"""Nested rounds share one number, which float64 must represent: 2^26 inner rounds, 2^27 outer ones."""

_INNER_MASK: Final = (1 << INNER_BITS) - 1
_SWEEP_MIN: Final = 64
_WINDOW_JOBS: Final = 4096  # over so many jobs the lengths that `background` compares with fade
_MAX_UNIT: Final = 1e12
_BINS_PER_DOUBLING: Final = 12
_DOUBLINGS: Final = 24
_LONGEST_AFTER: Final = 200  # jobs: before, none is behind the others
_PRIOR: Final = wide_prior()  # the prediction of a job without one


def _expected_work(job: Job) -> int:
    """Return what a tenant is charged for a job when it arrives, in tokens."""
    return job.prompt_tokens + job.answers * max(1, round(job.expected))


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
        """Return the round at the tenant's position, which advances by the job's prompt and expected answers."""
        tenant = job.tenant or ""
        quota = self._quota(tenant)
        start = max(self.serving * quota, self.ends.get(tenant, 0))
        job.charged = _expected_work(job)
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


@dataclass(slots=True)
class _TenantShares:
    """The same shares for a policy that selects: a tenant may be ahead of the one with the least work by a quota.

    position = work admitted / weight; the number of a job is that of its tenant
    A tenant without jobs rejoins at the least position of those that wait: unused work is not saved.
    """

    quantum: float
    weights: Mapping[str, float]
    least: float = 0.0
    """The least position of a tenant that waits."""
    numbers: dict[str, int] = field(default_factory=dict)
    positions: dict[int, float] = field(default_factory=dict)
    last: int = -1
    sweep_at: int = _SWEEP_MIN

    def enter(self, job: Job) -> int:
        """Return the number of the tenant."""
        self._sweep()
        name = job.tenant or ""
        if name not in self.numbers:
            self.last += 1
            self.numbers[name] = self.last
        number = self.numbers[name]
        self.positions[number] = max(self.positions.get(number, 0.0), self.least)
        job.charged = _expected_work(job)
        return number

    def eligible(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which of the waiting jobs, by the numbers of their tenants, may be admitted next."""
        known, which = np.unique(numbers, return_inverse=True)
        positions = np.array([self.positions.get(int(number), self.least) for number in known])
        self.least = max(self.least, float(positions.min()))
        return np.asarray((positions <= positions.min() + self.quantum)[which])

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the same number; the account is corrected when the job finishes."""
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing: see `selected`."""

    def selected(self, job: Job) -> None:
        """Charge the tenant of the admitted job."""
        self._charge(job, job.charged)

    def finished(self, job: Job) -> None:
        """Charge the true work in place of the expected work."""
        used = job.prompt_tokens + job.generated if job.used_tokens is None else job.used_tokens
        self._charge(job, used - job.charged)

    def _charge(self, job: Job, work: float) -> None:
        number = self.numbers.get(job.tenant or "")
        if number is not None:
            self.positions[number] += work / self.weights.get(job.tenant or "", 1.0)

    def _sweep(self) -> None:
        """Drop tenants that are not ahead: they would rejoin at the least position anyway."""
        if len(self.numbers) > self.sweep_at:
            self.numbers = {name: at for name, at in self.numbers.items() if self.positions[at] > self.least}
            self.positions = {at: self.positions[at] for at in self.numbers.values()}
            self.sweep_at = 2 * len(self.numbers) + _SWEEP_MIN


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

    def selected(self, job: Job) -> None:
        """Pass the selected job to those of both that record it."""
        for part in (self.outer, self.inner):
            if hasattr(part, "selected"):
                part.selected(job)


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

    @property
    def select_columns(self) -> Collection[str]:
        """Return the columns that the inner policy's `select` reads; none if it does not select."""
        return self.inner.select_columns if selects(self.inner) else ()

    def select(self, queue: WaitingJobs, now: float) -> int:
        """Return the inner policy's choice."""
        return self._select_inner(queue, now)

    def _select_inner(self, queue: WaitingJobs, now: float) -> int:
        if not selects(self.inner):
            raise TypeError(f"{self.inner.name} does not select")
        return self.inner.select(queue, now)


@dataclass(frozen=True)
class RoundsWrapper(Wrapper):
    """Rounds first, then the order of the inner policy, or its choice among the jobs of the first round if it selects.

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

    @property
    def select_columns(self) -> Collection[str]:
        """Return the columns of the inner policy, and the rounds."""
        return {*self.inner.select_columns, "round_number"} if selects(self.inner) else ()

    def select(self, queue: WaitingJobs, now: float) -> int:
        """Return the inner policy's choice among the jobs that may be admitted by their rounds."""
        state: Any = queue.state  # NestedRounds: a policy that selects has a state
        rows = np.flatnonzero(self.eligible(np.floor_divide(queue.jobs.round_number, 1 << INNER_BITS), state.outer))
        return int(rows[self._select_inner(queue.among(rows, state.inner), now)])

    def eligible(self, rounds: NDArray[np.float64], state: Any) -> NDArray[np.bool_]:
        """Return which waiting jobs may be admitted next: those of the first round."""
        return np.asarray(rounds == rounds.min())

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


def has_classes(name: str) -> bool:
    """Return whether the policy of this name has `classes` around it or inside."""
    spec: Spec | None = parse_spec(name)
    while spec is not None and spec.name != Classes.kind:
        spec = spec.inner
    return spec is not None


@dataclass(frozen=True)
class Fair(RoundsWrapper):
    """Any policy, with tenants in turns: `fair(tie):quantum=8192`.

    place: round, then the key of the inner policy
    In each round a tenant has `quantum` = 32,768 tokens of work (prompt + expected answers; the true length replaces
    the expected one when a job finishes, where the host reports it); what a tenant sends beyond that belongs to later
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

    Around a policy that selects (`fair(ontime)`) there are no rounds, which would hide most of the queue from it: it
    selects among the jobs of all tenants whose admitted work exceeds the least of any that waits by at most a quantum.
    So the work of two tenants that both always wait differs by at most a quantum and a request, and the claim holds.
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
        return (_TenantShares if selects(self.inner) else _TenantRounds)(self.quantum, self.weights)

    def eligible(self, rounds: NDArray[np.float64], state: Any) -> NDArray[np.bool_]:
        """Return which waiting jobs are of tenants that are not ahead."""
        return cast("_TenantShares", state).eligible(rounds)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return scores by round, then by the inner policy; without rounds by the inner policy."""
        scores = self.inner.eviction_scores(jobs, now)
        return scores if selects(self.inner) else _lexicographic(jobs.round_number, scores)


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


@dataclass(frozen=True)
class Background(RoundsWrapper):
    """Any policy, with the requests that are predicted to be the longest behind all others: `background(lengthwise)`.

    place: behind all others if the median is among the longest `share` = 0.01 of recent jobs, then as the inner policy
    Recent: the last few thousand. None is behind until 200 jobs have arrived, nor is a job without a prediction.

    The longest of heavy-tailed lengths are a large share of the work, so that nearly all others are served earlier. The
    cost is theirs alone, and it has no bound: while others always wait, those behind do not run. Where that is not
    wanted, use `bounded(background(...))`, or leave it out.
    """

    kind = "background"

    share: float = parameter(0.01, minimum=1e-4, maximum=0.5)

    def make_rounds(self) -> Rounds:
        """Return the statistics of recent lengths."""
        return _LongestLast(self.share)

    @property
    def uses_predictions(self) -> bool:
        """Return True: the longest are found by their predictions."""
        return True


@dataclass(slots=True)
class _LongestLast:
    """Round 1 for the longest of recent jobs, by weighted counts in bins of the median; round 0 for the others."""

    share: float
    unit: float = 1.0
    count: float = 0.0
    arrived: int = 0
    bins: NDArray[np.float64] = field(default_factory=lambda: np.zeros(_BINS_PER_DOUBLING * _DOUBLINGS))

    def enter(self, job: Job) -> int:
        self.unit *= 1.0 + 1.0 / _WINDOW_JOBS
        self.arrived += 1
        self._count(job.median, self.unit)
        return self._round(job)

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        self._count(old_median, -self.unit)
        self._count(job.median, self.unit)
        return self._round(job)

    def admitted(self, round_number: int) -> None:
        """Do nothing: rounds do not depend on what is served."""

    def finished(self, job: Job) -> None:
        """Do nothing: rounds depend on predictions."""

    def _round(self, job: Job) -> int:
        if self.arrived < _LONGEST_AFTER or (job.mu, job.sigma) == (_PRIOR.mu, _PRIOR.sigma):
            return 0
        return int(float(self.bins[_length_bin(job.median) :].sum()) <= self.share * self.count)

    def _count(self, median: float, weight: float) -> None:
        self.bins[_length_bin(median)] += weight
        self.count += weight
        if self.unit > _MAX_UNIT:
            self.bins /= self.unit
            self.count, self.unit = self.count / self.unit, 1.0


def _length_bin(median: float) -> int:
    return min(_BINS_PER_DOUBLING * _DOUBLINGS - 1, int(_BINS_PER_DOUBLING * math.log2(max(median, 1.0))))


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
