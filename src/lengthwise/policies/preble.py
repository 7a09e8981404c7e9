"""Hit-ratio groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView, Rounds, Slots, one
from lengthwise.policies.job import Job
from lengthwise.policies.rounds import FlowRounds

_GROUPS: Final = 10


@dataclass(frozen=True)
class Preble(BasePolicy):
    """Who finds its prompt cached goes first, but everybody gets a share (Preble's order inside one GPU).

    group = floor(10 * cached_tokens / prompt_tokens), at most 9; in a round, 9 to 0, (group + 1) * 10 requests from
    each
    place: round, then group from 9 down, then arrival
    Preble forms the groups anew at each step; here a request belongs to the group it had when it came, and to the round
    in which that group has room for it: a place once given is kept, and the last group is sure of its 10 in 550.
    Without a cache (or without knowing of one) all are in group 0: first come, first served. Needs no prediction. Memory
    short: the last admitted yields.
    """

    kind = "preble"
    uses_predictions = False

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Earlier first, inside a round and group."""
        return jobs.arrival

    def rounds(self, slots: Slots = one) -> Rounds:
        """Groups in turns."""
        return _Groups(FlowRounds(flow=_group, work=_one, quota=_quota))


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rounds of ten steps each: the groups from 9 down."""

    turns: FlowRounds[int]

    def enter(self, job: Job) -> int:
        return _GROUPS * self.turns.enter(job) + _GROUPS - 1 - _group(job)

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """What is predicted does not matter."""
        return in_round

    def admitted(self, in_round: int) -> None:
        self.turns.admitted(in_round // _GROUPS)

    def finished(self, job: Job) -> None:
        """A request counts as one, however long it was."""


def _group(job: Job) -> int:
    return min(_GROUPS - 1, _GROUPS * job.cached_tokens // max(job.prompt_tokens, 1))


def _one(job: Job) -> int:
    return 1


def _quota(group: int) -> int:
    return (group + 1) * 10
