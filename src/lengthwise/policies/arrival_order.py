"""Policies that order by arrival or by what is cached: fcfs, hrrn, boost, lpm and preble; only hrrn predicts.

A key that depends on time or progress is a function of numbers, of one request or of many: the policy calls it, and the
simulator's kernel compiles it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from lengthwise.policies.base import BasePolicy, Numbers, parameter
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import QueueView, Rounds, Slots, one_slot


@dataclass(frozen=True)
class Fcfs(BasePolicy):
    """First come, first served: the default of every engine, and the fallback of the kill switch.

    key = arrival      (seconds)
    Memory short: the last admitted is preempted, as in vLLM. No preemption for a waiting request. Needs no prediction.
    """

    kind = "fcfs"
    uses_predictions = False

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the arrival."""
        return jobs.arrival


@dataclass(frozen=True)
class Hrrn(BasePolicy):
    """Highest response ratio next: the longest wait relative to the length.

    key = -(now - arrival) / E[length]      (seconds per token; at least one token)
    The ratio (waited + service) / service with service = E[length] * s/token is 1 + waited / service, so the speed of
    the engine does not change the order and need not be known. Orders cross as time passes: keys are computed at every
    decision. Memory short: the last admitted is preempted. Without a prediction: the wide prior's mean.
    """

    kind = "hrrn"
    rekey = "on_time"

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the negative ratio."""
        return response_ratio_key(jobs.arrival, jobs.expected, now)


def response_ratio_key(arrival: Numbers, expected: Numbers, now: float) -> Numbers:
    """Return the key of `hrrn`: what was waited per expected token, negative."""
    return (arrival - now) / np.maximum(expected, 1.0)


@dataclass(frozen=True)
class Boost(BasePolicy):
    """First come, first served, with a head start for a small prompt: needs no prediction.

    key = arrival - horizon * ln(1 / (1 - exp(-work / scale)))      (seconds)
    work = prompt tokens that are not cached + tokens generated so far, at least 1: what must be computed to continue
    horizon = 10 s: the head start of a size that is e times smaller; scale = 4,096 tokens: no head start beyond

    The gamma-Boost form (Yu and Scully, arXiv 2404.08826), which has the best tail when sizes are light-tailed and
    known; applied, as in UniBoost (arXiv 2606.18431), to what is known without predicting an answer. The head start is
    bounded: at most horizon * ln(scale + 1), 83 s by default, so no request is overtaken by one that arrives later
    than that after it. Memory short: the last admitted is preempted.
    """

    kind = "boost"
    rekey = "on_progress"
    uses_predictions = False

    horizon: float = parameter(10.0, minimum=0.0)
    scale: float = parameter(4096.0, minimum=1.0)

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the arrival less the head start."""
        work = jobs.prompt_tokens - jobs.cached_tokens + jobs.generated
        return boosted_arrival(jobs.arrival, work, self.horizon, self.scale)


def boosted_arrival(arrival: Numbers, work: Numbers, horizon: float, scale: float) -> Numbers:
    """Return the key of `boost`: the arrival less the head start of so many tokens to compute."""
    return arrival + horizon * np.log(-np.expm1(-np.maximum(work, 1.0) / scale))


@dataclass(frozen=True)
class Lpm(BasePolicy):
    """Longest prefix match first: SGLang's order, and the one inside each GPU of length-aware Preble's experiments.

    key = -cached_tokens      (tokens; equal ones by arrival)
    SGLang matches again at each step; here a request keeps the match that it has on arrival. Requests without a cached
    prefix can starve. Without a cache, or without knowledge of it: first come, first served. Needs no prediction.
    Memory short: the last admitted is preempted.
    """

    kind = "lpm"
    uses_predictions = False

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the cached tokens, negative."""
        return (
            -np.asarray(jobs.cached_tokens, np.float64) if isinstance(jobs, JobColumns) else -float(jobs.cached_tokens)
        )


GROUPS: Final = 10


@dataclass(frozen=True)
class Preble(BasePolicy):
    """Requests with a cached prompt first, with a share for every group (Preble's order inside one GPU).

    group = floor(10 * cached_tokens / prompt_tokens), at most 9; a round serves the groups from 9 to 0,
            (group + 1) * 10 requests of each
    place: round, then group from 9 down, then arrival
    Preble forms the groups at each step; here a request keeps the group that it has on arrival, and the first round in
    which that group has a free share. So the last group has 10 of 550 places in each round. Without a cache (or without
    knowledge of it) all are in group 0: first come, first served. Needs no prediction. Memory short: the last admitted
    is preempted.
    """

    kind = "preble"
    uses_predictions = False

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the arrival, which orders a round and group."""
        return jobs.arrival

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return the state of the groups."""
        return _GroupRounds()


@dataclass(slots=True)
class _GroupRounds:
    """The round that is served, and the places taken in each group."""

    serving: int = 0
    ends: list[int] = field(default_factory=lambda: [0] * GROUPS)

    def enter(self, job: Job) -> int:
        return enter_group(self, job.cached_tokens, job.prompt_tokens)

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        return round_number

    def admitted(self, round_number: int) -> None:
        serve_group(self, round_number)

    def finished(self, job: Job) -> None:
        """Do nothing: a request counts as one, whatever its length."""


# The rules of the groups, on numbers: `_GroupRounds` calls them, and the simulator's kernel compiles them for its own
# state with the same fields.


def serve_group(groups: Any, round_number: int) -> None:
    """Advance to the round of an admitted request."""
    groups.serving = max(groups.serving, round_number // GROUPS)


def enter_group(groups: Any, cached: int, prompt: int) -> int:
    """Return the round number of a new request, ten for each round: the groups from 9 down."""
    group = min(GROUPS - 1, GROUPS * cached // max(prompt, 1))
    quota = (group + 1) * 10
    start = max(groups.serving * quota, groups.ends[group])
    groups.ends[group] = start + 1
    return int(GROUPS * (start // quota) + GROUPS - 1 - group)
