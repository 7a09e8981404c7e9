"""`PolicyQueue`: waiting jobs in a policy's order; simulator, gateway and vLLM plug-in use the same one."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lengthwise.errors import InputError
from lengthwise.policies.job import Job, JobColumns, WaitingColumns
from lengthwise.policies.protocol import Policy, QueueView, SelectingPolicy, WaitingJobs

_SWEEP_MIN = 64  # fewer dead entries than this are not swept


@dataclass(slots=True)
class _Place:
    """A waiting job: its sequence number among equal keys, and the stamp of its one valid heap entry."""

    job: Job
    sequence: int
    stamp: int
    median: float
    """Of its prediction when it got its round number."""


class TokenRate:
    """An engine's recent output tokens per second: the figure that hosts give to `PolicyQueue.tokens_per_s`.

    A host calls `observe` with its count of generated tokens whenever a request has finished. Only intervals at whose
    end requests wait count, because the rate of a partly idle engine says little about its capacity; each of at least
    half a second, and a new one with a weight of a quarter.
    """

    INTERVAL_S: Final = 0.5
    WEIGHT: Final = 0.25

    def __init__(self) -> None:
        self.per_s = 0.0
        self._since, self._tokens = math.nan, 0

    def due(self, now: float) -> bool:
        """Whether `observe` would change anything: for hosts to which counting is expensive."""
        return not now - self._since < self.INTERVAL_S

    def observe(self, now: float, tokens: int, *, waiting: bool) -> None:
        """Take the count of all tokens generated until now."""
        took = now - self._since
        if waiting and took < self.INTERVAL_S:
            return
        if waiting and took >= self.INTERVAL_S:
            measured = (tokens - self._tokens) / took
            self.per_s = measured if self.per_s == 0.0 else self.per_s + self.WEIGHT * (measured - self.per_s)
        self._since, self._tokens = now, tokens


class PolicyQueue:
    """Waiting jobs in a policy's order: push, pop, re-key and remove in O(log n).

    Order: priority (lower first), then the round number of a policy with rounds, then the policy's key, then the order
    of `push`. A job that is removed or re-keyed leaves a dead entry in the heap; dead entries are swept once they
    outnumber the valid ones, so the heap has at most about twice as many entries as there are waiting jobs. The host
    keeps `running`, `slots` and `tokens_per_s` up to date, and may report the true length of a job by `finished`.

    Under a policy that selects, `pop` takes the job of `select` among those of the most urgent priority; iteration
    follows the keys.
    """

    def __init__(self, policy: Policy, slots: int = 1) -> None:
        self.policy = policy
        self.slots = slots
        self.running = 0
        self.tokens_per_s = 0.0
        self._heap: list[tuple[int, int, float, int, int, str]] = []  # priority, round, key, sequence, stamp, id
        self._places: dict[str, _Place] = {}
        self._numbers = itertools.count()
        self._rounds = policy.rounds(lambda: self.slots)
        self._level = policy.level(self.view)
        self._keyed_at = 0.0
        self._columns: WaitingColumns | None = None
        self._selected: tuple[float, Job] | None = None  # when, and which
        self._start_selecting()

    @property
    def view(self) -> QueueView:
        """How full the engine is."""
        return QueueView(
            waiting=len(self._places), running=self.running, slots=self.slots, tokens_per_s=self.tokens_per_s
        )

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the waiting jobs in order, the next to run first."""
        for *_, stamp, job_id in sorted(self._heap):
            place = self._places.get(job_id)
            if place is not None and place.stamp == stamp:
                yield place.job

    def push(self, job: Job, now: float, *, front: bool = False) -> None:
        """Add a job: behind jobs of an equal key, or before them with `front` (for a preempted job)."""
        if job.id in self._places:
            raise InputError(f"job '{job.id}' is waiting already", hint="a job waits once; use `update` to re-key it")
        self._assign_round(job)
        number = next(self._numbers)
        self._places[job.id] = _Place(job, -number if front else number, -1, job.median)
        self._insert(job.id, self.policy.key(job, self.view, now))
        self._rekey_on_level(now)  # at once: all keys in the heap are of one level
        if self._columns is not None:
            self._columns.put(job)
            self._selected = None

    def peek(self, now: float) -> Job | None:
        """Return the next job to run without removing it; None when no job waits."""
        if self._columns is not None:
            return self._select(self._columns, now)
        self.refresh(now)
        while self._heap:
            *_, stamp, job_id = self._heap[0]
            place = self._places.get(job_id)
            if place is not None and place.stamp == stamp:
                return place.job
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
                if self._rounds is not None:
                    self._rounds.selected(job)  # type: ignore[attr-defined]
            if self._rounds is not None:
                self._rounds.admitted(job.round_number)
        return job

    def finished(self, job: Job) -> None:
        """Report a finished job with its true length in `generated`; only policies with rounds use it."""
        if self._rounds is not None and job.rounds is self._rounds:
            self._rounds.finished(job)

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
        place = self._places[job.id]
        if self._rounds is not None and job.median != place.median:
            job.round_number = self._rounds.prediction_changed(job, job.round_number, place.median)
            place.median = job.median
        self._insert(job.id, self.policy.key(job, self.view, now))
        self._rekey_on_level(now)
        if self._columns is not None:
            self._columns.put(job)
            self._selected = None
        self._sweep()

    def use(self, policy: Policy, now: float) -> None:
        """Change the policy of the waiting jobs: the kill switch is `use(Fcfs(), now)`."""
        self.policy = policy
        self._level = policy.level(self.view)
        self._rounds = policy.rounds(lambda: self.slots)
        for place in sorted(self._places.values(), key=lambda place: place.sequence):
            self._assign_round(place.job)
            place.median = place.job.median
        self._rekey_all(now)
        self._start_selecting()

    def refresh(self, now: float) -> None:
        """Re-key all jobs if the policy's keys are stale."""
        if not self._rekey_on_level(now) and self.policy.rekey == "on_time" and now > self._keyed_at:
            self._rekey_all(now)

    def _start_selecting(self) -> None:
        """Keep columns of the waiting jobs if the policy selects."""
        self._selected = None
        self._columns = WaitingColumns() if isinstance(self.policy, SelectingPolicy) else None
        if self._columns is not None:
            for place in sorted(self._places.values(), key=lambda place: place.sequence):
                self._columns.put(place.job)

    def _select(self, columns: WaitingColumns, now: float) -> Job | None:
        """Return the policy's choice, the same one until the time or the queue changes."""
        if not self._places:
            return None
        if self._selected is None or self._selected[0] != now:
            ids, jobs = columns.most_urgent()
            waiting = WaitingJobs(jobs, self.view, self._rounds)
            index = self.policy.select(waiting, now)  # type: ignore[attr-defined]
            self._selected = now, self._places[ids[index]].job
        return self._selected[1]

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
            job.round_number = 0 if self._rounds is None else self._rounds.enter(job)

    def _insert(self, job_id: str, key: float) -> None:
        place = self._places[job_id]
        place.stamp = next(self._numbers)
        heapq.heappush(
            self._heap, (place.job.priority, place.job.round_number, key, place.sequence, place.stamp, job_id)
        )

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._places) + _SWEEP_MIN:
            self._heap = [e for e in self._heap if (p := self._places.get(e[5])) is not None and p.stamp == e[4]]
            heapq.heapify(self._heap)

    def _rekey_all(self, now: float) -> None:
        self._keyed_at = now
        places = list(self._places.values())
        keys = self.policy.keys(JobColumns.of(place.job for place in places), self.view, now).tolist()
        self._heap = [
            (place.job.priority, place.job.round_number, key, place.sequence, place.stamp, place.job.id)
            for place, key in zip(places, keys, strict=True)
        ]
        heapq.heapify(self._heap)
