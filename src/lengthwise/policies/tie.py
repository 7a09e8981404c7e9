"""Tail-inflated expectation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from lengthwise.policies.base import BasePolicy, Numbers, parameter
from lengthwise.policies.columns import SHORTEST, JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job

_STEP: Final = 0.1  # of beta
_LEVELS: Final = 5


@dataclass(frozen=True)
class Tie(BasePolicy):
    """Shortest expected answer first, with the tail priced in and aging (TIE, arXiv 2604.00499).

    key = ln(E[X] + beta * CVaR_0.9[X]) + arrival / tau * ln(1 / gamma),      X = min(length, cap), tokens
    beta = 0.1 * waiting / slots, in steps of 0.1 from 0.1 to 0.5 (`adaptive`), or the number given
    gamma = 0.9 and tau = 30 s: a score falls by a tenth in 30 s of waiting; gamma = 1 switches aging off

    The paper's score * gamma^(waited / tau), taken as a logarithm less what is the same for all: the order is the same
    at every moment, so keys go stale when beta takes another step and never by time alone. The paper freezes beta when
    a prediction comes; here who waits is scored anew. Memory short: the last admitted yields, as in the paper's vLLM.
    Without a prediction: the wide prior's mean and tail.
    """

    kind = "tie"
    rekey = "on_level"

    beta: float | str = parameter("adaptive", minimum=0.0, choice="adaptive")
    gamma: float = parameter(0.9, minimum=1e-6, maximum=1.0)
    tau: float = parameter(30.0, minimum=1e-3)

    def level(self, queue: QueueView) -> int:
        """The step of beta, 1 to 5; a fixed one has no steps."""
        if not isinstance(self.beta, str):
            return 0
        return min(_LEVELS, max(1, int(queue.waiting / queue.slots + 0.5)))

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Smaller score first, older first."""
        beta = _STEP * self.level(queue) if isinstance(self.beta, str) else self.beta
        aging = -math.log(self.gamma) / self.tau
        return np.log(np.maximum(jobs.expected + beta * jobs.tail, SHORTEST)) + aging * jobs.arrival
