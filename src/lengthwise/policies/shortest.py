"""Policies by the predicted length alone, without preemption: sjf, ltr, sept and tie, and longest first, lept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies.base import BasePolicy, Numbers, parameter
from lengthwise.policies.job import MIN_TOKENS, Job, JobColumns
from lengthwise.policies.protocol import QueueView


@dataclass(frozen=True)
class Sjf(BasePolicy):
    """Shortest predicted answer first, without preemption (SSJF, arXiv 2404.08509).

    key = min(median, cap)      (tokens: the prediction as a single number; a hint or a true length is a prediction too)
    Memory short: the one with the most tokens left by that number is preempted; the last admitted among equals.
    Without a prediction: the wide prior's median. SJF minimises mean latency and can starve long requests.
    """

    kind = "sjf"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the median."""
        return np.minimum(np.exp(jobs.mu), jobs.cap)

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return the tokens left."""
        return np.asarray(np.maximum(1.0, np.minimum(np.exp(jobs.mu), jobs.cap) - jobs.generated))


@dataclass(frozen=True)
class Ltr(BasePolicy):
    """Lowest rank score first (LTR, arXiv 2408.15792): only the order of the scores counts, not their size.

    key = min(mu, ln cap)      (the log of the prediction's median)
    On the same predictions this is the order of `sjf`; LTR changes the predictor, which is trained for the order alone:
    `--predictor rank`, whose mu is a score.
    Memory short: the one with the highest score is preempted, whatever its progress, since a score is no count of
    tokens. Without a prediction: the wide prior's median.
    """

    kind = "ltr"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the log of the median."""
        return np.minimum(jobs.mu, np.log(jobs.cap))

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return the log of the median."""
        return np.asarray(np.minimum(jobs.mu, np.log(jobs.cap)))


@dataclass(frozen=True)
class Sept(BasePolicy):
    """Shortest expected processing time: the best order for the mean waiting time without preemption.

    key = E[min(length, cap)]      (tokens)
    TIE with beta 0 and no aging. Memory short: the one with the largest mean left is preempted.
    Without a prediction: the wide prior's mean.
    """

    kind = "sept"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the mean."""
        return jobs.expected

    def eviction_scores(self, jobs: JobColumns, now: float) -> NDArray[np.float64]:
        """Return the tokens left."""
        return np.maximum(1.0, jobs.expected - jobs.generated)


@dataclass(frozen=True)
class Lept(BasePolicy):
    """Longest expected processing time first: for a batch whose last answer counts.

    key = -E[min(length, cap)]      (tokens)
    With true lengths the last answer ends at most 4/3 - 1 / (3 slots) times later than in the best order (Graham 1969).
    It has the largest mean latency of all: for requests that somebody waits for one by one it is the wrong order.
    Memory short: the last admitted is preempted. Without a prediction: the wide prior's mean.
    """

    kind = "lept"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return minus the mean."""
        return -jobs.expected


_BETA_STEP: Final = 0.1
_BETA_LEVELS: Final = 5


@dataclass(frozen=True)
class Tie(BasePolicy):
    """Shortest expected answer first, with the tail priced in and aging (TIE, arXiv 2604.00499).

    key = ln(E[X] + beta * CVaR_0.9[X]) + arrival / tau * ln(1 / gamma),      X = min(length, cap), tokens
    beta = 0.1 * waiting / slots, in steps of 0.1 from 0.1 to 0.5 (`adaptive`), or the number given
    gamma = 0.9 and tau = 30 s: a score falls by a tenth in 30 s of waiting; gamma = 1 switches aging off

    The paper's score * gamma^(waited / tau) as a logarithm, less what is the same for all: the order is the same at
    every moment, so keys become stale when beta changes and never by time alone. The paper fixes beta when a prediction
    is made; here waiting requests are scored again. Memory short: the last admitted is preempted, as in the paper's
    vLLM. Without a prediction: the wide prior's mean and tail.
    """

    kind = "tie"
    rekey = "on_level"

    beta: float | str = parameter("adaptive", minimum=0.0, choice="adaptive")
    gamma: float = parameter(0.9, minimum=1e-6, maximum=1.0)
    tau: float = parameter(30.0, minimum=1e-3)

    def level(self, queue: QueueView) -> int:
        """Return the step of beta, 1 to 5; 0 for a fixed beta."""
        if not isinstance(self.beta, str):
            return 0
        return min(_BETA_LEVELS, max(1, int(queue.waiting / queue.slots + 0.5)))

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the log score with aging."""
        beta = _BETA_STEP * self.level(queue) if isinstance(self.beta, str) else self.beta
        aging = -math.log(self.gamma) / self.tau
        return np.log(np.maximum(jobs.expected + beta * jobs.tail, MIN_TOKENS)) + aging * jobs.arrival
