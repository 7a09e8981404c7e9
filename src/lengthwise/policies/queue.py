"""The one queue that every host orders its waiting requests with."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from lengthwise.errors import InputError
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import Policy, QueueView
from lengthwise.policies.job import Job

_SWEEP_FLOOR = 64  # dead entries that are not worth a sweep


@dataclass(slots=True)
class _Place:
    """Where a waiting job stands: its turn of coming, and the stamp of its one living heap entry."""

    job: Job
    turn: int
    stamp: int
    median: float
    """Of what was predicted of it when it took its round."""


class PolicyQueue:
    """Waiting jobs in a policy's order: push, pop, re-key and remove in O(log n).

    Order: priority (lower first), then the round of a policy that serves in turns, then the policy's key, then the
    order of coming. A job that is removed or re-keyed leaves a dead entry in the heap; dead entries are swept once they
    outnumber the living, so that the heap holds at most about twice what waits. The host keeps `running` and `slots`
    true, and may tell the true length of a job by `finished`.
    """

    def __init__(self, policy: Policy, slots: int = 1) -> None:
        self.policy = policy
        self.slots = slots
        self.running = 0
        self._heap: list[tuple[int, int, float, int, int, str]] = []  # priority, round, key, turn, stamp, id
        self._places: dict[str, _Place] = {}
        self._numbers = itertools.count()
        self._rounds = policy.rounds(lambda: self.slots)
        self._level = policy.level(self.view)
        self._keyed_at = 0.0

    @property
    def view(self) -> QueueView:
        """How full the engine is."""
        return QueueView(waiting=len(self._places), running=self.running, slots=self.slots)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._places

    def __iter__(self) -> Iterator[Job]:
        """Go through the waiting jobs in order, the next to run first."""
        for *_, stamp, job_id in sorted(self._heap):
            place = self._places.get(job_id)
            if place is not None and place.stamp == stamp:
                yield place.job

    def push(self, job: Job, now: float, *, front: bool = False) -> None:
        """Let a job wait: behind its equals, or before them (one that was preempted keeps its place)."""
        if job.id in self._places:
            raise InputError(f"job '{job.id}' is waiting already", hint="a job waits once; use `update` to re-key it")
        self._take_turn(job)
        turn = next(self._numbers)
        self._places[job.id] = _Place(job, -turn if front else turn, -1, job.median)
        self._enter(job.id, self.policy.key(job, self.view, now))
        self._keep_level(now)  # at once: with this one gone again, its key would be of another level than the others'

    def peek(self, now: float) -> Job | None:
        """Return the next job to run, without taking it."""
        self.refresh(now)
        while self._heap:
            *_, stamp, job_id = self._heap[0]
            place = self._places.get(job_id)
            if place is not None and place.stamp == stamp:
                return place.job
            heapq.heappop(self._heap)
        return None

    def pop(self, now: float) -> Job | None:
        """Take the next job to run; None when nobody waits."""
        job = self.peek(now)
        if job is not None:
            heapq.heappop(self._heap)
            del self._places[job.id]
            if self._rounds is not None:
                self._rounds.admitted(job.in_round)
        return job

    def finished(self, job: Job) -> None:
        """Tell that a job is done, its true length in `generated`; only policies that serve in turns want to know."""
        if self._rounds is not None and job.turns is self._rounds:
            self._rounds.finished(job)

    def remove(self, job_id: str) -> Job | None:
        """Take a job out wherever it stands (an abort); None when it does not wait here."""
        place = self._places.pop(job_id, None)
        self._sweep()
        return None if place is None else place.job

    def update(self, job: Job, now: float) -> None:
        """Re-key a waiting job whose prediction or progress has changed; it keeps its turn among equals."""
        if job.id not in self._places:
            raise InputError(f"job '{job.id}' does not wait here", hint="only waiting jobs are re-keyed")
        place = self._places[job.id]
        if self._rounds is not None and job.median != place.median:
            job.in_round = self._rounds.changed(job, job.in_round, place.median)
            place.median = job.median
        self._enter(job.id, self.policy.key(job, self.view, now))
        self._keep_level(now)
        self._sweep()

    def use(self, policy: Policy, now: float) -> None:
        """Change the policy under the waiting jobs: the kill switch is `use(Fcfs(), now)`."""
        self.policy = policy
        self._level = policy.level(self.view)
        self._rounds = policy.rounds(lambda: self.slots)
        for place in sorted(self._places.values(), key=lambda place: place.turn):
            self._take_turn(place.job)
            place.median = place.job.median
        self._rekey_all(now)

    def refresh(self, now: float) -> None:
        """Re-key everybody if the policy's keys have gone stale."""
        if not self._keep_level(now) and self.policy.rekey == "on_time" and now > self._keyed_at:
            self._rekey_all(now)

    def _keep_level(self, now: float) -> bool:
        """Re-key everybody if keys depend on a level that has changed; whether they did."""
        if self.policy.rekey not in ("on_level", "on_time"):
            return False
        level = self.policy.level(self.view)
        if level == self._level:
            return False
        self._level = level
        self._rekey_all(now)
        return True

    def _take_turn(self, job: Job) -> None:
        """Give a job its round, unless it has one in the accounts of this queue already (it was preempted)."""
        if job.turns is not self._rounds or self._rounds is None:
            job.turns = self._rounds
            job.in_round = 0 if self._rounds is None else self._rounds.enter(job)

    def _enter(self, job_id: str, key: float) -> None:
        place = self._places[job_id]
        place.stamp = next(self._numbers)
        heapq.heappush(self._heap, (place.job.priority, place.job.in_round, key, place.turn, place.stamp, job_id))

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._places) + _SWEEP_FLOOR:
            self._heap = [e for e in self._heap if (p := self._places.get(e[5])) is not None and p.stamp == e[4]]
            heapq.heapify(self._heap)

    def _rekey_all(self, now: float) -> None:
        self._keyed_at = now
        places = list(self._places.values())
        keys = self.policy.keys(JobColumns.of(place.job for place in places), self.view, now).tolist()
        self._heap = [
            (place.job.priority, place.job.in_round, key, place.turn, place.stamp, place.job.id)
            for place, key in zip(places, keys, strict=True)
        ]
        heapq.heapify(self._heap)
