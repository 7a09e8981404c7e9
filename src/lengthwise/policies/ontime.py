"""The policy `ontime`: as many jobs as possible within their latency limits, and a share of the work for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.policies.base import BasePolicy, Numbers, parameter
from lengthwise.policies.calibration import calibrated_works
from lengthwise.policies.job import MAX_LIMIT_S, MIN_LIMIT_S, Job, JobColumns
from lengthwise.policies.protocol import QueueView, Rounds, Slots, WaitingJobs, one_slot
from lengthwise.policies.slo import LatencyTarget, remember

HEADROOM: Final = 2.0  # times the work of a job that must fit into the slack of those it passes
NO_LIMIT: Final = "none"


@dataclass(frozen=True)
class OnTime(BasePolicy):
    """The shortest job that can still start in time and makes no other late; in overload, the shortest that can.

    latest start = the least of   arrival + ttft                                   (seconds)
                                  arrival + work * (per_token - slots / rate)
                                  deadline - work * slots / rate
    work     = median * r(median)      (tokens; r: see `calibration`)
    rate: the engine's recent tokens/s, so that slots / rate are the seconds of a token and work / rate those for which
        the engine is busy with a job
    slack    = arrival + ttft - now - (work of jobs with an earlier first-token limit) / rate
    A job passes those with an earlier first-token limit if 2 * work / rate <= the least of their slacks. If a slack is
    negative there is overload: then the shortest job that can still start in time is first.
    late jobs: past their latest start, or without a limit. They run, in order of arrival, when no other waits, and
    otherwise get `late_share` = 0.1 of the admitted work.

    `ttft`, `per_token`: limits of jobs that have none of their own, in seconds to the first token and of E2E per output
    token; default none. The limit per token gives long answers more slack, hence lengths decide there: it is compared
    by length alone, because a slack that follows from a prediction is too uncertain to keep others waiting for it. The
    time of the prefill is not counted.

    Bound. While late jobs wait, their share of the admitted work is at least `late_share`, up to one job. So a job that
    is late waits at most 1 / `late_share` times as long as the late work before it takes, and the time of the longest
    job; a job is late after `ttft`, or after its length times `per_token`. If every job is late the order is FCFS.

    Until the rate is known: the earliest first-token limit. Memory short: the last admitted is preempted. Without a
    prediction the work is the wide prior's median. Inside a wrapper the order is that of key = arrival + ttft (a day
    without a limit).
    """

    kind = "ontime"
    select_columns: ClassVar = (
        "arrival", "mu", "sigma", "cap", "deadline", "ttft_limit_s", "per_token_limit_s", "preemptions",
    )  # fmt: skip

    ttft: float | str = parameter(NO_LIMIT, minimum=MIN_LIMIT_S, maximum=MAX_LIMIT_S, choice=NO_LIMIT)
    per_token: float | str = parameter(NO_LIMIT, minimum=MIN_LIMIT_S, maximum=MAX_LIMIT_S, choice=NO_LIMIT)
    late_share: float = parameter(0.1, minimum=0.001, maximum=0.9)

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return when the first token is due."""
        return jobs.arrival + np.minimum(self.first_token_limit(jobs), MAX_LIMIT_S)

    def first_token_limit(self, jobs: Job | JobColumns) -> Numbers:
        """Return the seconds to the first token that jobs may take; infinity without a limit."""
        return _own_or(jobs.ttft_limit_s, self.ttft)

    def limit_per_token(self, jobs: Job | JobColumns) -> Numbers:
        """Return the seconds per output token that jobs may take; infinity without a limit."""
        return _own_or(jobs.per_token_limit_s, self.per_token)

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return the statistics of one queue."""
        compiled_choose()  # so that no decision waits for it
        return LatencyTarget(oldest_share=self.late_share)

    def select(self, queue: WaitingJobs, now: float) -> int:
        """Return the index of the job to admit next."""
        state: Any = queue.state
        jobs, rate, slots = queue.jobs, queue.view.tokens_per_s, queue.view.slots
        work, _ = calibrated_works(state.calibration, jobs)
        due = jobs.arrival + self.first_token_limit(jobs)
        order = np.argsort(due, kind="stable")
        columns = jobs.arrival, due, self.limit_per_token(jobs), jobs.deadline, work, jobs.preemptions
        waiting = *(column[order] for column in columns), order
        place, late, kept = compiled_choose()(waiting, len(order), state.credit, slots, rate, now)
        remember(state, float(work[order[place]]), late, kept)
        return int(order[place])


def _own_or(own: Numbers, default: float | str) -> Numbers:
    """Return a job's own limit, else the policy's, else infinity."""
    return own if isinstance(default, str) else np.where(np.isinf(own), default, own)


# The rules, on numbers: the policy calls them, and the simulator's kernel compiles them with its own `waiting_at`. The
# state is that of `slo`: statistics of lengths, and a credit, which here is that of late jobs.


def waiting_at(queue: Any, place: int) -> Any:
    """Return arrival, due time of the first token, limit per token, deadline, work, preemptions, order of joining."""
    arrival, due, per_token, deadline, work, preemptions, joined = queue
    limits = arrival[place], due[place], per_token[place], deadline[place]
    return (*limits, work[place], preemptions[place], joined[place])


def latest_start(arrival: float, due: float, per_token: float, deadline: float, work: float, token_s: float) -> float:
    """Return until when a job can start and be in time; -inf if it has no limit."""
    latest = min(due, arrival + work * (per_token - token_s), deadline - work * token_s)
    return latest if latest < math.inf else -math.inf


def choose(queue: Any, count: int, credit: float, slots: int, rate: float, now: float) -> tuple[int, bool, bool]:
    """Return which of `count` waiting jobs, in the order of their first-token limits, is admitted next.

    Also return whether it is late, and whether any waiting job is: if not, the credit of late jobs is lost.
    """
    if rate <= 0.0:
        return 0, True, True
    late, late_work, late_order = -1, 0.0, (math.inf, 0.0, 0)
    shortest, least_work, shortest_joined = -1, math.inf, 0
    fitting, fitting_work = -1, math.inf
    done, least_slack = 0.0, math.inf
    for place in range(count):
        arrival, due, per_token, deadline, work, preemptions, joined = waiting_at(queue, place)
        if latest_start(arrival, due, per_token, deadline, work, slots / rate) < now:
            order = (arrival, -float(preemptions), joined)  # of jobs that arrived together, a preempted one first
            if order < late_order:
                late, late_work, late_order = place, work, order
            continue
        if work < least_work or (work == least_work and joined < shortest_joined):
            shortest, least_work, shortest_joined = place, work, joined
        if work < fitting_work and (fitting < 0 or HEADROOM * work / rate <= least_slack):
            fitting, fitting_work = place, work
        least_slack = min(least_slack, due - now - done / rate)
        done += work
    if late >= 0 and (shortest < 0 or credit >= late_work):
        return late, True, True
    return fitting if least_slack >= 0.0 else shortest, False, late >= 0


@cache
def compiled_choose() -> Callable[..., tuple[int, bool, bool]]:
    """Return `choose`, compiled where Numba is installed: a queue may be long."""
    try:
        from lengthwise.compiled import compiled_copy
    except InputError:
        return choose
    found = compiled_copy(choose, waiting_at, latest_start)
    one = np.ones(1)
    found((one, one, one, one, one, one, np.argsort(one)), 1, 0.0, 1, 1.0, 0.0)
    return found
