"""Boosted arrivals, without a prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lengthwise.policies.base import BasePolicy, Numbers, parameter
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Boost(BasePolicy):
    """First come, first served, with a head start for who is known to be small: needs no prediction.

    key = arrival - horizon * ln(1 / (1 - exp(-work / scale)))      (seconds)
    work = prompt tokens that are not cached + tokens generated so far, at least 1: what must be computed to go on
    horizon = 10 s: how many seconds a size that is e times smaller is worth; scale = 4,096 tokens: no head start beyond

    The gamma-Boost form (Yu and Scully, arXiv 2404.08826), which has the best tail there is when sizes are light-tailed
    and known; applied, in the spirit of UniBoost (arXiv 2606.18431), to what is known without predicting an answer.
    The tail is held because the head start is bounded: at most horizon * ln(scale + 1), 83 s by default, so nobody is
    overtaken by a request that came later than that after it. Memory short: the last admitted yields.
    """

    kind = "boost"
    rekey = "on_progress"
    uses_predictions = False

    horizon: float = parameter(10.0, minimum=0.0)
    scale: float = parameter(4096.0, minimum=1.0)

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Earlier and smaller first."""
        work = np.maximum(jobs.prompt_tokens - jobs.cached_tokens + jobs.generated, 1.0)
        return jobs.arrival + self.horizon * np.log(-np.expm1(-work / self.scale))
