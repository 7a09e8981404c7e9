"""Policies that preempt a running job for a waiting one: srpt and gittins."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.lengths.log_t import remaining_tables
from lengthwise.policies.base import BasePolicy, Numbers, last_of_largest, parameter
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import QueueView
from lengthwise.policies.residual import expected_remaining, gittins_rank

ABOVE_ANY_RANK: Final = 1e12  # tokens


@dataclass(frozen=True)
class Preemptive(BasePolicy):
    """Smallest rank first: a running job is preempted for a waiting one whose rank is smaller by a factor.

    Never for a job of a less urgent priority. Ranks of uncertain predictions grow as a job runs, so hosts check again.

    A preempted job computes its prompt and generated tokens again, and there may always be one more shorter job. So a
    job that has been preempted `times` times, for any reason, is preempted for no waiting job any more.
    """

    rekey = "on_progress"
    preempts = True
    preempt_check_interval = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        remaining_tables()  # built now, so that no decision waits for them

    @abstractmethod
    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """Return the rank, comparable between waiting and running jobs: smaller runs."""

    @property
    @abstractmethod
    def margin(self) -> float:
        """The factor by which a victim's rank exceeds the candidate's."""

    @property
    @abstractmethod
    def times(self) -> float:
        """The number of preemptions after which a job runs to its end."""

    def may_preempt(self, jobs: JobColumns) -> NDArray[np.bool_]:
        """Return which running jobs may be preempted for a waiting one."""
        return jobs.preemptions < self.times

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the rank."""
        return self.rank(jobs)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return the ranks, with all jobs that may not be preempted below the others."""
        return np.asarray(eviction_score(self.rank(jobs), self.may_preempt(jobs)))

    def find_victim(self, jobs: JobColumns, candidate: Job | JobColumns, now: float) -> int | None:
        """Return the largest rank that may be preempted, if it exceeds the candidate's by the margin."""
        allowed = self.may_preempt(jobs) & (jobs.priority >= candidate.priority)
        if not allowed.any():
            return None
        ranks = np.where(allowed, self.rank(jobs), -np.inf)
        index = last_of_largest(ranks)
        return index if exceeds(ranks[index], np.max(self.rank(candidate)), self.margin) else None


# The rules, on numbers of one job or of many: the policies call them, and the simulator's kernel compiles them.


def eviction_score(rank: Numbers, may_preempt: Numbers) -> Numbers:
    """Return the rank, or a number below any rank for a job that may not be preempted for a waiting one."""
    return rank - ABOVE_ANY_RANK * (1 - may_preempt)


def exceeds(rank: float, candidate: float, margin: float) -> bool:
    """Return whether a running job's rank is so much larger than the candidate's that the job is preempted."""
    return bool(rank > margin * candidate)


def is_early(generated: Numbers, initial_expected: Numbers, c: float) -> Numbers:
    """Return whether a job is within c times its first prediction.

    A job at the very end of its prediction has outlived it and ranks high: with c up to 1 that is no reason to
    preempt it, as in TRAIL, where nothing is left of it.
    """
    return (generated <= c * initial_expected) & ((c > 1.0) | (generated < initial_expected))


@dataclass(frozen=True)
class Srpt(Preemptive):
    """Shortest predicted remaining length first; a job that is far enough runs to its end (TRAIL, arXiv 2410.01035).

    key = E[length - generated | length > generated]      (tokens; E[length] before the first token)
    A running job is preempted for a waiting one with less to come while generated <= c * r, r the first prediction's
    mean, and while it has been preempted less than `times` = 4 times.
    c = 0: only before its first token. TRAIL uses 0.8, and 1 with true lengths is SRPT proper; but with many slots one
    becomes free soon anyway, and preemption costs more than it gains (docs/studies/trail.md). It pays with few slots,
    and for the time to the first token. A refined prediction changes the remaining length, not r. Memory short: the
    most to come is preempted, of the jobs that may be preempted, then of the others. Without a prediction: the wide
    prior.

    Claim. Preemption for waiting jobs makes a job compute at most times * (prompt + c * r) tokens again.
    Proof. After a preemption a job computes its prompt and its generated tokens again, at most c * r. Each counts as a
    preemption, and after `times` of them there are no more. QED.
    c alone bounds the cost of one preemption, not their number: each shorter job that arrives could cause one.
    """

    kind = "srpt"
    margin = 1.0

    c: float = parameter(0.0, minimum=0.0)
    times: float = parameter(4, minimum=0.0)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """Return the expected remaining length."""
        return expected_remaining(jobs)

    def may_preempt(self, jobs: JobColumns) -> NDArray[np.bool_]:
        """Return the jobs within c times their first prediction that have not been preempted too often."""
        early: NDArray[np.bool_] = is_early(jobs.generated, jobs.initial_expected, self.c)
        return super().may_preempt(jobs) & early


@dataclass(frozen=True)
class Gittins(Preemptive):
    """Best chance to finish per token spent first (Gittins; on length predictions: SageSched, arXiv 2603.07917).

    key = inf over D of E[min(X - a, D) | X > a] / P(X - a <= D | X > a)      (tokens; X the length, a = generated)
    over those D that end at least one answer in ten, and D = cap - a. With certain lengths: what is left, as SRPT.

    A prediction with a heavy tail ranks by its good chance to finish soon, and worse the longer it runs. A running job
    is preempted for a waiting one when its rank is more than `margin` = 2 times as large: with 1, two jobs of the same
    prediction would preempt each other forever, each computing its prompt again; with 2, once per doubling of their
    rank. A job that has been preempted `times` = 4 times is preempted for no waiting job any more. Memory short: the
    largest rank is preempted. Without a prediction: the wide prior.
    """

    kind = "gittins"

    margin: float = parameter(2.0, minimum=1.0)
    times: float = parameter(4, minimum=0.0)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """Return the Gittins rank."""
        return gittins_rank(jobs)
