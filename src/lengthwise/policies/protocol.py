"""The policy protocol: what a host asks of a policy, and what it passes in."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.job import Job, JobColumns

Rekey = Literal["never", "on_level", "on_progress", "on_time"]
"""When the keys of waiting jobs become stale.

never        A key depends on nothing that changes while its job waits except its prediction: neither on the queue nor
             on the time. A host may compute all keys ahead.
on_level     A key also depends on the queue, but only through `level(queue)`: all keys are stale when that changes.
on_progress  As `never`, but a key depends on `generated`: stale when a job waits again after preemption.
on_time      All keys are stale at every decision.
"""


@dataclass(frozen=True, slots=True)
class QueueView:
    """How full the engine is: requests waiting, requests running, and slots (max_num_seqs).

    `tokens_per_s`: output tokens per second of the engine recently, while requests waited; 0 while unknown.
    """

    waiting: int = 0
    running: int = 0
    slots: int = 1
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """What `select` chooses from: the waiting jobs of the most urgent priority, the view, and the queue's state.

    Jobs are in the order in which they joined the queue; columns that are not in the policy's `select_columns` are
    empty. `state` is what the policy's `rounds` returned.
    """

    jobs: JobColumns
    view: QueueView
    state: Rounds | None

    def among(self, rows: NDArray[np.integer], state: Rounds | None) -> WaitingJobs:
        """Return some of the jobs, with the state of an inner policy."""
        return WaitingJobs(self.jobs.take(rows), self.view, state)


Slots = Callable[[], int]


def one_slot() -> int:
    """Return 1: the default number of slots."""
    return 1


class Rounds(Protocol):
    """Round numbers for the jobs of one queue: the only state that a policy can need.

    A policy is stateless, so one that serves tenants or groups in turns makes this value for each queue, and the host
    calls it. Hosts order by priority, then by round number, then by key, then by order of arrival in the queue.
    """

    def enter(self, job: Job) -> int:
        """Return the round number (0 or more) of a new job; a preempted job keeps its number.

        Reads `arrival`, `tenant`, `prompt_tokens`, `cached_tokens` and `expected` of the job, and may set `charged`.
        """

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the round number of a waiting job whose prediction has changed; its median was `old_median`."""

    def admitted(self, round_number: int) -> None:
        """Record that a job of this round has been admitted: new jobs join no earlier round."""

    def finished(self, job: Job) -> None:
        """Record a finished job's true length (`generated`), to correct its account; optional for hosts."""


class SelectionState(Rounds, Protocol):
    """The state of a policy that selects: it is also called when a selected job leaves the queue to run."""

    def selected(self, job: Job) -> None:
        """Record that the job of the last `select` has been admitted."""


@runtime_checkable
class SelectingPolicy(Protocol):
    """What a policy has in addition if its choice depends on the whole queue, as with deadlines.

    Hosts then admit the job of `select`, among the waiting jobs of the most urgent priority, in place of the smallest
    key. `rounds` returns a `SelectionState`. A wrapper selects if its inner policy does.
    """

    @property
    def select_columns(self) -> Collection[str]:
        """Return the columns of `JobColumns` that `select` reads: hosts keep no others up to date."""

    def select(self, queue: WaitingJobs, now: float) -> int:
        """Return the index of the job to admit next; there is at least one."""


def selects(policy: object) -> TypeGuard[SelectingPolicy]:
    """Return whether hosts admit the job of a policy's `select`."""
    return isinstance(policy, SelectingPolicy) and len(policy.select_columns) > 0


@runtime_checkable
class Policy(Protocol):
    """An order of waiting requests and a choice of victims. Stateless: equal arguments give equal results.

    Returned arrays may be the columns themselves and must not be modified. `BasePolicy` implements all of this from
    one formula.
    """

    @property
    def name(self) -> str:
        """Return the spec that `make_policy` makes it from, with every parameter that is not the default."""

    @property
    def rekey(self) -> Rekey:
        """Return when keys become stale."""

    @property
    def uses_predictions(self) -> bool:
        """Return whether any decision depends on a prediction; if not, a host need not predict."""

    @property
    def preempts(self) -> bool:
        """Return whether `find_victim` can return a job; if not, hosts need not call it."""

    @property
    def preempt_check_interval(self) -> int:
        """Return after how many decode steps a host calls `find_victim` again; 0: progress changes nothing.

        Whatever the interval, hosts call it again when the set of running jobs, the head of the queue or a prediction
        has changed.
        """

    def level(self, queue: QueueView) -> int:
        """Return the level that keys depend on, a function of the view only.

        The keys of an `on_level` policy are stale when it changes.
        """

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        """Return the job's key: smaller runs first. Always finite."""

    def keys(self, jobs: JobColumns, queue: QueueView, now: float) -> NDArray[np.float64]:
        """Return the keys of many jobs, equal to `key` one by one."""

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return the score of each running job as a victim when memory is short: the largest is preempted.

        `jobs` is in order of admission; among equal scores the last admitted is preempted. No NaN, not all -inf.
        """

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return the index of the running job to preempt for this waiting one (a job, or columns of one), or None."""

    def rounds(self, slots: Slots = one_slot) -> Rounds | None:
        """Return new state for one queue, or None for a policy without rounds.

        `slots` returns the number of slots, which changes in front of a fleet.
        """
