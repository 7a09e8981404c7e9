"""A bound on starvation, for any policy."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.policies.base import parameter
from lengthwise.policies.contract import Rounds
from lengthwise.policies.job import Job
from lengthwise.policies.wrapper import InTurns


@dataclass(frozen=True)
class Bounded(InTurns):
    """Any policy, but nobody is overtaken by many, nor by who came much later: `bounded(sjf):overtakes=50,wait=30`.

    place: round, then the key of the policy inside
    A round is closed once `overtakes` + 1 = 101 requests have come into it, or `wait` = 60 s after the first of them.

    Claim. Among requests of one priority, at most `overtakes` that came later are admitted before a given one, and none
    of them came more than `wait` seconds later.
    Proof. The queue takes a smaller round before a larger one whatever the keys, and rounds are given in order of
    coming, never smaller than one given before. So who came later and is admitted earlier is in the same round. A round
    holds at most `overtakes` others, and all of them came within `wait` seconds of its first, hence of each other. Nor
    does one of a later round take a running job's place: only jobs of the same round or a later one make room, so who
    is preempted comes back to the head of its round with the same claim for the rest of its way. QED.
    So a request waits at most for what would be before it under first come, first served, and `overtakes` more.

    Inside `fair` the claim holds for requests of one tenant's round only: let this be the outer one. Priority is
    outside: a more urgent class may starve a less urgent one. The state, the open round, is kept by the queue.
    """

    kind = "bounded"

    overtakes: float = parameter(100, minimum=0)
    wait: float = parameter(60.0, minimum=0.0)

    def own_rounds(self) -> Rounds:
        """Rounds of so many requests, or so many seconds."""
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

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """Rounds do not depend on what is predicted."""
        return in_round

    def admitted(self, in_round: int) -> None:
        """Nor on who is served."""

    def finished(self, job: Job) -> None:
        """Nor on how long it took."""
