"""Shortest remaining processing time, with limited preemption."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import Numbers, parameter
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.job import Job
from lengthwise.policies.preemptive import Preemptive
from lengthwise.policies.residual import expected_remaining


@dataclass(frozen=True)
class Srpt(Preemptive):
    """Shortest predicted remaining length first; who is far enough along is let finish (TRAIL, arXiv 2410.01035).

    key = E[length - generated | length > generated]      (tokens; E[length] for who has not begun)
    A running job yields to a waiting one with less to come, while generated <= c * r, r the first prediction's mean,
    and while it has been preempted less than `times` = 4 times.
    c = 0: only before its first token. TRAIL has 0.8, and 1 with true lengths is SRPT proper; but where many run at
    once a place is free soon anyway, and what preemption costs is more than it gains (docs/studies/trail.md). It pays with few
    slots, and for the time to the first token. A refined prediction changes the remaining length, not r. Memory short: most
    to come first, of those who may yield, then of the others. Without a prediction: the wide prior.

    Claim. Yielding to waiting jobs makes one compute at most times * (prompt + c * r) tokens again.
    Proof. What is computed again after it yields is its prompt and what it had generated, at most c * r. Each time
    counts as a preemption, and after `times` of them it yields no more. QED.
    c alone bounds what one preemption costs, not how many there are: each shorter job that comes could be one more.
    """

    kind = "srpt"
    margin = 1.0

    c: float = parameter(0.0, minimum=0.0)
    times: float = parameter(4, minimum=0.0)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """What is expected to come."""
        return expected_remaining(jobs)

    def may_yield(self, jobs: JobColumns) -> NDArray[np.bool_]:
        """Who has not come further than c times its first prediction, nor been preempted too often.

        A job that has come to the very end of its prediction, though not of its answer, ranks as outlived: with c up to
        1 that is no reason to yield, as it is none in TRAIL, where nothing is left of it.
        """
        early = jobs.generated <= self.c * jobs.initial_expected
        if self.c <= 1.0:
            early &= jobs.generated < jobs.initial_expected
        return super().may_yield(jobs) & early
