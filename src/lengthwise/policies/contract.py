"""What a policy is asked, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lengthwise.policies.columns import JobColumns
    from lengthwise.policies.job import Job

Rekey = Literal["never", "on_level", "on_progress", "on_time"]
"""When the keys of waiting jobs go stale.

never        A key depends on nothing that changes while its job waits, the queue and the time included (a new prediction
             aside): a host may compute all keys at once, ahead.
on_level     It depends on the queue too, but only through `level(queue)`: all keys are stale when that changes.
on_progress  As `never`, but it depends on `generated`: stale when a job comes back after preemption.
on_time      All keys are stale whenever a decision is taken.
"""


@dataclass(frozen=True, slots=True)
class QueueView:
    """How full the engine is: requests waiting, requests running, and how many may run (max_num_seqs)."""

    waiting: int = 0
    running: int = 0
    slots: int = 1


Slots = Callable[[], int]


def one() -> int:
    """One slot."""
    return 1


class Rounds(Protocol):
    """Turns among flows of jobs (tenants, say): the one kind of state a policy can need, kept by the host's queue.

    A policy is stateless, so one that serves in turns makes this value for each queue, and the host feeds it. Hosts
    order by priority, then by round, then by key, then by the order of coming.
    """

    def enter(self, job: Job) -> int:
        """Return the round (0 or more) of a job that has just come; one that is preempted keeps its round.

        Reads `arrival`, `tenant`, `prompt_tokens`, `cached_tokens` and `expected` of the job, and may set `charged`.
        """

    def changed(self, job: Job, in_round: int, before: float) -> int:
        """Return the round of a waiting job whose prediction has changed; `before` was its median until then."""

    def admitted(self, in_round: int) -> None:
        """Learn that a job of this round has been admitted: rounds before it are over for who comes next."""

    def finished(self, job: Job) -> None:
        """Learn a job's true length (`generated`), to set the account right; a host that cannot tell need not call."""


@runtime_checkable
class Policy(Protocol):
    """An order of waiting requests, and who yields. Stateless: the same question has the same answer.

    Arrays that it returns may be the columns themselves, and are not to be written to.
    """

    @property
    def name(self) -> str:
        """Return what `make_policy` makes it from: with every parameter that is not the default, as in `srpt:c=0.5`."""

    @property
    def rekey(self) -> Rekey:
        """Return when keys go stale."""

    @property
    def uses_predictions(self) -> bool:
        """Return whether it looks at predictions at all; for one that does not, a host need not predict."""

    @property
    def preempts(self) -> bool:
        """Return whether `find_victim` can ever name anybody; hosts need not ask otherwise."""

    @property
    def preempt_check_interval(self) -> int:
        """Return after how many tokens of progress (decode steps) a host asks `find_victim` again; 0: not at all.

        With 0, a None stays None as the running jobs progress: hosts ask again only when the set of running jobs, the
        head of the queue or a prediction has changed. Otherwise also when the running jobs have gone on for so many steps.
        """

    def level(self, queue: QueueView) -> int:
        """Return the step that keys depend on; when it changes, an `on_level` policy's keys are stale.

        It depends on nothing but the three numbers of the view.
        """

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Return the job's place: smaller runs first. Always finite."""

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Return the places of many jobs, the same as `key` one by one."""

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return how readily each running job yields when memory is short: largest first.

        `jobs` is in order of admission; among equals the last admitted yields. No NaN, and not all of them -inf.
        """

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return the index of the running job that yields to this waiting one (a job, or columns of one), or None."""

    def victim(self, running: Sequence[Job], candidate: Job | None, now: float) -> Job | None:
        """Return the running job that yields, or None: `find_victim` and `eviction_scores` for hosts that hold jobs.

        With a candidate: who, if anybody, makes room for this waiting job. Without: memory has run out and
        somebody must go; `running` is in order of admission.
        """

    def rounds(self, slots: Slots = one) -> Rounds | None:
        """Return fresh state for one queue, for a policy that serves in turns; None for all others.

        `slots` tells how many may run, which in front of a fleet changes.
        """
