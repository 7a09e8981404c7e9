"""The Gittins index."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.policies.base import Numbers, parameter
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.job import Job
from lengthwise.policies.preemptive import Preemptive
from lengthwise.policies.residual import gittins_rank


@dataclass(frozen=True)
class Gittins(Preemptive):
    """Best chance to finish per token spent first (Gittins; on length predictions: SageSched, arXiv 2603.07917).

    key = inf over D of E[min(X - a, D) | X > a] / P(X - a <= D | X > a)      (tokens; X the length, a = generated)
    over those D that end at least one answer in ten, and D = cap - a. With certain lengths: what is left, as SRPT.

    A prediction with a heavy tail is ranked by its good chance to be over soon, and worse the longer it runs. A running job
    yields to a waiting one when its rank is more than `margin` = 2 times as large: with 1, two jobs of the same prediction
    would take turns for ever, each paying for its prompt again; with 2, they do once per doubling of their rank. Who
    has been preempted `times` = 4 times yields to no waiting job any more. Memory short: the largest rank yields.
    Without a prediction: the wide prior.
    """

    kind = "gittins"

    margin: float = parameter(2.0, minimum=1.0)
    times: float = parameter(4, minimum=0.0)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """The index over prediction and age."""
        return gittins_rank(jobs)
