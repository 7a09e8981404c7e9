"""Policies outside the package, named by dotted path in the tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lengthwise.policies import BasePolicy, Job, JobColumns, QueueView, parameter
from lengthwise.policies.base import Numbers


@dataclass(frozen=True)
class ShortPrompt(BasePolicy):
    """Shortest prompt first, with aging.

    key = uncached prompt tokens + rate * arrival      (tokens; rate in tokens/s)
    """

    uses_predictions = False

    rate: float = parameter(100.0, minimum=0.0)

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        return np.maximum(jobs.prompt_tokens - jobs.cached_tokens, 0) + self.rate * jobs.arrival


class Unfinished:
    """Not a policy: most of the protocol is missing."""

    name = "unfinished"

    def key(self, job: Job, queue: QueueView, now: float) -> float:
        return 0.0


@dataclass(frozen=True)
class Misnamed(ShortPrompt):
    """A policy whose name is not that of its class."""

    kind = "short_prompt"
