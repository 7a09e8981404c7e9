"""Shortest remaining processing time, with limited preemption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lengthwise.policies.base import parameter
from lengthwise.policies.preemptive import Preemptive
from lengthwise.policies.residual import expected_remaining

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lengthwise.policies.base import Numbers
    from lengthwise.policies.columns import JobColumns
    from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Srpt(Preemptive):
    """Shortest predicted remaining length first; who is far enough along is let finish (TRAIL, arXiv 2410.01035).

    key = E[length - generated | length > generated]      (tokens; E[length] for who has not begun)
    A running job yields to a waiting one with less to come, while generated <= c * r, r the first prediction's mean.
    c = 0.8 is TRAIL's; 0: only before its first token; 1 with true lengths is SRPT proper. A refined belief changes the
    remaining length, not r. Memory short: most to come first, of those who may yield, then of the others.
    Without a belief: the wide prior.
    """

    called = "srpt"
    margin = 1.0

    c: float = parameter(0.8, least=0.0)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """What is expected to come."""
        return expected_remaining(jobs)

    def may_yield(self, jobs: JobColumns) -> NDArray[np.bool_]:
        """Who has not come further than c times its first prediction."""
        return jobs.generated <= self.c * jobs.foretold
