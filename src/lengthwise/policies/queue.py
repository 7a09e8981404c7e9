"""`PolicyQueue`: waiting jobs in a policy's order; simulator, gateway and vLLM plug-in use the same one."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies.arrival_order import Fcfs
from lengthwise.policies.base import choose_victim
from lengthwise.policies.job import Job, JobColumns, WaitingColumns
from lengthwise.policies.protocol import Policy, QueueView, Rounds, WaitingJobs, selects

RATE_INTERVAL_S: Final = 0.5
RATE_WEIGHT: Final = 0.25
_SWEEP_MIN: Final = 64  # fewer dead entries than this are not swept
_Entry = tuple[int, int, float, int, int, str]
"""Of the heap: priority, round, key, sequence, stamp, id."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Place:
    """A waiting job: its sequence number among equal keys, and the stamp of its one valid heap entry."""

    job: Job
    sequence: int
    stamp: int
    median: float
    """Of its prediction when it got its round number."""


@dataclass(slots=True)
class TokenRate:
    """An engine's recent output tokens per second: the figure that hosts give to `PolicyQueue.tokens_per_s`.

    A host calls `observe` with its count of generated tokens whenever a request has finished. Only intervals at whose
    end requests wait count, because the rate of a partly idle engine says little about its capacity; each of at least
    half a second, and a new one with a weight of a quarter.
    """

    per_s: float = 0.0
    since: float = math.nan
    """When the current interval began."""
    tokens: int = 0
    """The count at its begin."""

    def due(self, now: float) -> bool:
        """Return whether `observe` would change anything: for hosts to which counting is expensive."""
        return not now - self.since < RATE_INTERVAL_S

    def observe(self, now: float, tokens: int, *, waiting: bool) -> None:
        """Take the count of all tokens generated until now."""
        observe_rate(self, now, tokens, waiting)


def observe_rate(rate: Any, now: float, tokens: int, waiting: bool) -> None:
    """Take a count of tokens: `TokenRate.observe`, which the simulator's kernel compiles for a record of its fields."""
    took = now - rate.since
    if waiting and took < RATE_INTERVAL_S:
        return
    if waiting and took >= RATE_INTERVAL_S:
        measured = (tokens - rate.tokens) / took
        rate.per_s = measured if rate.per_s == 0.0 else rate.per_s + RATE_WEIGHT * (measured - rate.per_s)
    rate.since, rate.tokens = now, tokens


class PolicyQueue:
    """Waiting jobs in a policy's order: push, pop, re-key and remove in O(log n).

    Order: priority (lower first), then the round number of a policy with rounds, then the policy's key, then the order
    of `push`. A job that is removed or re-keyed leaves a dead entry in the heap; dead entries are swept once they
    outnumber the valid ones, so the heap has at most about twice as many entries as there are waiting jobs. The host
    keeps `running`, `slots` and `tokens_per_s` up to date, and may report the true length of a job by `finished`.

    Under a policy that selects, `pop` takes the job of `select` among those of the most urgent priority; iteration
    follows the keys.

    A policy that raises, or returns what is no key, round or job, is replaced by Fcfs: every job remains in the queue,
    the error is logged, and `on_failure` is called with it. A simulation raises it there.
    """

    def __init__(
        self, policy: Policy, slots: int = 1, *, on_failure: Callable[[Exception], None] | None = None
    ) -> None:
        self.policy = policy
        self.slots = slots
        self._on_failure = on_failure
        self.running = 0
        self.tokens_per_s = 0.0
        self._heap: list[_Entry] = []
        self._places: dict[str, _Place] = {}
        self._numbers = itertools.count()
        self._rounds: Rounds | None = None
        self._level = 0
        self._keyed_at = 0.0
        self._columns: WaitingColumns | None = None
        self._selected: tuple[float, Job] | None = None  # when, and which
        self._guard(self._start, 0.0)

    @property
    def view(self) -> QueueView:
        """How full the engine is."""
        return QueueView(
            waiting=len(self._places), running=self.running, slots=self.slots, tokens_per_s=self.tokens_per_s
        )

    @property
    def reads_progress(self) -> bool:
        """Whether the order may depend on a job's cached tokens and progress."""
        return self.policy.rekey in ("on_progress", "on_time") or self._rounds is not None

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the waiting jobs in order, the next to run first."""
        return (job for entry in sorted(self._heap) if (job := self._job_of(entry)) is not None)

    def first(self, count: int) -> list[Job]:
        """Return the next `count` jobs to run, in order, without sorting the rest of a long queue."""
        found: list[Job] = []
        candidates = [(entry, 0) for entry in self._heap[:1]]  # an entry comes before those below it in the heap
        while candidates and len(found) < count:
            entry, at = heapq.heappop(candidates)
            for below in range(2 * at + 1, min(2 * at + 3, len(self._heap))):
                heapq.heappush(candidates, (self._heap[below], below))
            if (job := self._job_of(entry)) is not None:
                found.append(job)
        return found

    def key_of(self, job_id: str) -> float | None:
        """Return the key by which a waiting job is ordered now, among those of its priority and round."""
        return next((entry[2] for entry in self._heap if entry[5] == job_id and self._job_of(entry) is not None), None)

    def _job_of(self, entry: _Entry) -> Job | None:
        """Return the job of a heap entry; None for a dead entry."""
        place = self._places.get(entry[5])
        return place.job if place is not None and place.stamp == entry[4] else None

    def push(self, job: Job, now: float, *, front: bool = False) -> None:
        """Add a job: behind jobs of an equal key, or before them with `front` (for a preempted job)."""
        if job.id in self._places:
            raise InputError(f"job '{job.id}' is waiting already", hint="a job waits once; use `update` to re-key it")
        number = next(self._numbers)
        self._places[job.id] = place = _Place(job, -number if front else number, -1, 0.0)
        self._guard(self._enter, place, now)

    def admit(self, job: Job) -> None:
        """Count a job that need not wait as pushed and popped: no key is computed. The queue must be empty."""
        self._guard(self._assign_round, job)
        self._guard(self._admitted, job)

    def peek(self, now: float) -> Job | None:
        """Return the next job to run without removing it; None when no job waits."""
        if self._columns is None:
            self.refresh(now)
        else:
            self._guard(self._select, now)
        if self._selected is not None:
            return self._selected[1]
        while self._heap:
            job = self._job_of(self._heap[0])
            if job is not None:
                return job
            heapq.heappop(self._heap)
        return None

    def pop(self, now: float) -> Job | None:
        """Remove and return the next job to run; None when no job waits."""
        job = self.peek(now)
        if job is not None:
            if self._columns is None:
                heapq.heappop(self._heap)
                del self._places[job.id]
            else:
                self.remove(job.id)
            self._guard(self._admitted, job)
        return job

    def finished(self, job: Job) -> None:
        """Report a finished job with its true length in `generated`; only policies with rounds use it."""
        if self._rounds is not None and job.rounds is self._rounds:
            self._guard(self._rounds.finished, job)

    def remove(self, job_id: str) -> Job | None:
        """Remove and return a job at any place (an abort); None when it does not wait here."""
        place = self._places.pop(job_id, None)
        if self._columns is not None:
            self._columns.discard(job_id)
            self._selected = None
        self._sweep()
        return None if place is None else place.job

    def update(self, job: Job, now: float) -> None:
        """Re-key a waiting job whose prediction or progress has changed; its place among equal keys is unchanged."""
        if job.id not in self._places:
            raise InputError(f"job '{job.id}' does not wait here", hint="only waiting jobs are re-keyed")
        self._guard(self._update, self._places[job.id], now)
        self._sweep()

    def use(self, policy: Policy, now: float) -> None:
        """Change the policy of the waiting jobs: the kill switch is `use(Fcfs(), now)`."""
        self.policy = policy
        self._guard(self._start, now)

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """Return the running job to preempt (see `choose_victim`)."""
        try:
            return choose_victim(self.policy, running, candidate, now)
        except Exception as error:
            self._fall_back(error)
            return running[-1] if candidate is None and running else None

    def refresh(self, now: float) -> None:
        """Re-key all jobs if the policy's keys are stale."""
        self._guard(self._refresh, now)

    def _guard(self, act: Callable[..., object], *args: object) -> None:
        """Call what calls the policy; if it raises, fall back to the order of arrival."""
        try:
            act(*args)
        except Exception as error:  # policies come from other packages too: no job may be lost by them
            self._fall_back(error)

    def _fall_back(self, error: Exception) -> None:
        failed, self.policy = type(self.policy).__qualname__, Fcfs()
        self._rounds = self._columns = self._selected = None
        self._level = 0
        for place in self._places.values():
            place.job.rounds, place.job.round_number = None, 0
        self._set_keys([place.job.arrival for place in self._places.values()])
        if self._on_failure is not None:
            self._on_failure(error)
        _log.error("policy %s failed: %d jobs wait in order of arrival", failed, len(self), exc_info=error)

    def _start(self, now: float) -> None:
        """Key all jobs by the policy."""
        policy = self.policy
        self._rounds = self._columns = self._selected = None
        self._rounds = policy.rounds(lambda: self.slots)
        self._level = policy.level(self.view)
        columns = WaitingColumns(policy.select_columns) if selects(policy) else None
        for place in sorted(self._places.values(), key=lambda place: place.sequence):
            self._assign_round(place.job)
            place.median = place.job.median
            if columns is not None:
                columns.put(place.job)
        if self._places:
            self._rekey_all(now)
        self._columns = columns

    def _enter(self, place: _Place, now: float) -> None:
        place.median = place.job.median
        self._assign_round(place.job)
        self._insert(place, now)

    def _update(self, place: _Place, now: float) -> None:
        job = place.job
        if self._rounds is not None and job.median != place.median:
            job.round_number = index(self._rounds.prediction_changed(job, job.round_number, place.median))
            place.median = job.median
        self._insert(place, now)

    def _admitted(self, job: Job) -> None:
        if self._rounds is not None:
            if self._columns is not None:
                self._rounds.selected(job)  # type: ignore[attr-defined]
            self._rounds.admitted(job.round_number)

    def _refresh(self, now: float) -> None:
        if not self._rekey_on_level(now) and self.policy.rekey == "on_time" and now > self._keyed_at:
            self._rekey_all(now)

    def _select(self, now: float) -> None:
        """Set the policy's choice, the same one until the time or the queue changes."""
        if not self._places or self._columns is None or (self._selected is not None and self._selected[0] == now):
            return
        ids, jobs = self._columns.most_urgent()
        chosen = self.policy.select(WaitingJobs(jobs, self.view, self._rounds), now)  # type: ignore[attr-defined]
        self._selected = now, self._places[ids[chosen]].job

    def _rekey_on_level(self, now: float) -> bool:
        """Re-key all jobs if keys depend on a level that has changed; return whether they were."""
        if self.policy.rekey not in ("on_level", "on_time"):
            return False
        level = self.policy.level(self.view)
        if level == self._level:
            return False
        self._level = level
        self._rekey_all(now)
        return True

    def _assign_round(self, job: Job) -> None:
        """Set a job's round number, unless it has one from these rounds already (it was preempted)."""
        if job.rounds is not self._rounds or self._rounds is None:
            job.rounds = self._rounds
            job.round_number = 0 if self._rounds is None else index(self._rounds.enter(job))

    def _insert(self, place: _Place, now: float) -> None:
        """Key a job, or all if the level of keys has changed: all keys in the heap are of one level."""
        job, key = place.job, float(self.policy.key(place.job, self.view, now))
        if math.isnan(key):
            raise ValueError("the key is not a number")
        place.stamp = next(self._numbers)
        heapq.heappush(self._heap, (job.priority, job.round_number, key, place.sequence, place.stamp, job.id))
        self._rekey_on_level(now)
        if self._columns is not None:
            self._columns.put(job)
            self._selected = None

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._places) + _SWEEP_MIN:
            self._heap = [entry for entry in self._heap if self._job_of(entry) is not None]
            heapq.heapify(self._heap)

    def _rekey_all(self, now: float) -> None:
        self._keyed_at = now
        jobs = JobColumns.of(place.job for place in self._places.values())
        keys = self.policy.keys(jobs, self.view, now)
        if np.isnan(keys).any():
            raise ValueError("a key is not a number")
        self._set_keys(keys.tolist())

    def _set_keys(self, keys: Sequence[float]) -> None:
        """Replace the keys of all jobs, in the order in which they joined the queue."""
        self._heap = [
            (place.job.priority, place.job.round_number, key, place.sequence, place.stamp, place.job.id)
            for place, key in zip(self._places.values(), keys, strict=True)
        ]
        heapq.heapify(self._heap)
