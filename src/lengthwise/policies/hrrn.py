"""Highest response ratio next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lengthwise.policies.base import BasePolicy, Numbers
from lengthwise.policies.columns import JobColumns
from lengthwise.policies.contract import QueueView
from lengthwise.policies.job import Job


@dataclass(frozen=True)
class Hrrn(BasePolicy):
    """Highest response ratio next: who has waited longest for what it asks.

    key = -(now - arrival) / E[length]      (seconds per token; at least one token)
    The ratio (waited + service) / service with service = E[length] * s/token is 1 + waited / service, so the speed of
    the engine changes no order and need not be known. Orders cross as time passes: keys are made anew at every
    decision. Memory short: the last admitted yields. Without a prediction: the wide prior's mean.
    """

    kind = "hrrn"
    rekey = "on_time"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Higher ratio first."""
        return (jobs.arrival - now) / np.maximum(jobs.expected, 1.0)
