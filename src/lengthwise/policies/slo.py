"""The policy `slo`: shortest first, as far as every waiting job still meets its latency target."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies.base import BasePolicy, Numbers, parameter
from lengthwise.policies.calibration import UNPREDICTED, LengthCalibration, calibrated_works, length_bin, record_length
from lengthwise.policies.job import Job, JobColumns
from lengthwise.policies.protocol import QueueView, Rounds, Slots, WaitingJobs, one_slot

MAX_OWN_SERVICE: Final = 0.3  # of the target: the most that a job's predicted service time counts towards its deadline
LEARNED_OWN_SERVICE: Final = 0.2  # of the service time, where the target is learned: it is that of FCFS
HEADROOM: Final = 2.0  # service times of a job that must fit into the slack of those it passes
LEARNED_QUANTILE: Final = 0.99  # of the latencies that FCFS would give: the learned target
MIN_OVER_FCFS: Final = 1.25  # of that quantile: the least target in which jobs may pass others
LEARNED_AFTER: Final = 32.0  # finished jobs: before, predictions are not corrected
OVERLOADED_AT: Final = 0.25  # of the target: how late the earliest-deadline order may be before jobs count as lost
OLDEST_SHARE: Final = 0.25  # of the admitted work: what the earliest deadline gets while overloaded
WINDOW_JOBS: Final = 4096  # statistics fade over so many jobs
MAX_UNIT: Final = 1e12  # beyond, all totals are divided by the unit
LATENCY_BINS: Final = 320
LATENCY_EDGES: Final = 0.01 * 2.0 ** (np.arange(1, LATENCY_BINS + 1) / 16)  # seconds

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Slo(BasePolicy):
    """The shortest job that fits into the slack of every job with an earlier deadline; else the earliest deadline.

    key = deadline = the one the request carries while it can be kept, else arrival + S      (seconds)
    work     = median * r(median)      (tokens; r: see `calibration`)
    slack    = deadline - now - (work of jobs with an earlier deadline) / rate - min(service, 0.3 * S)
    service  = work * slots / rate      (seconds in a slot; rate: the engine's recent tokens/s)
    A job may pass those with earlier deadlines if 2 * service <= the least of their slacks, and S >= 1.25 * F.
    F = the 0.99 quantile of what recent arrivals would wait and run under FCFS, (waiting work + slots * mean work) /
        rate; 0 until 32 jobs have finished
    S = `seconds`; `learned`: F, without the condition on S, and 0.2 * service in place of its minimum with 0.3 * S

    All jobs have the same S unless they carry a deadline, so the earliest deadline is the oldest job, and new jobs
    cannot make a deadline late that the waiting work allows: what is postponed is postponed within the promise. Not
    more than 0.3 S of a service time, because a job that is late alone would block the queue; 2 service times of
    headroom, because short jobs should use the slack before middle ones do. A target below 1.25 F leaves too
    little slack for what predictions do not know: the order is that of deadlines, which is logged once.

    Lasting overload, with `seconds` given: once the earliest-deadline order starts a job more than S / 4 after its
    deadline, not every deadline can be kept. Then a quarter of the admitted work is that of the earliest deadline, and
    the rest that of the shortest jobs that can still be on time, so that the engine does not serve late jobs only. A
    learned S grows with the queue; while it is too small, the order is FCFS.

    Bound. Without overload a job is passed only while it has slack; after its deadline it is the first of its priority.
    Under overload a quarter of the work is served in order of deadlines: a job waits at most four times as long as in
    that order, and the time of four longest jobs.

    Until the rate is known, the earliest deadline. Memory short: the last admitted is preempted. Without a prediction a
    job passes no other; its work is the wide prior's median. Inside a wrapper the order is that of `key`, the deadline.
    """

    kind = "slo"
    select_columns: ClassVar = ("arrival", "mu", "sigma", "cap", "deadline")

    seconds: float | str = parameter("learned", minimum=1e-3, choice="learned")

    def score(self, jobs: Job | JobColumns, queue: QueueView, now: float) -> Numbers:
        """Return the deadline, by arrival where S is learned."""
        target = 0.0 if isinstance(self.seconds, str) else self.seconds
        return np.minimum(jobs.deadline, jobs.arrival + target)

    def rounds(self, slots: Slots = one_slot) -> Rounds:
        """Return the statistics of one queue."""
        compiled_choose()  # so that no decision waits for it
        return LatencyTarget() if isinstance(self.seconds, str) else LatencyTarget(target_s=self.seconds)

    def select(self, queue: WaitingJobs, now: float) -> int:
        """Return the index of the job to admit next."""
        state, learned = cast("LatencyTarget", queue.state), isinstance(self.seconds, str)
        jobs, rate, slots = queue.jobs, queue.view.tokens_per_s, queue.view.slots
        median = np.minimum(np.exp(jobs.mu), jobs.cap)
        work, bins = calibrated_works(state.calibration, jobs)
        if rate > 0.0:
            observe_latency(state, float(work.sum()), slots, rate, learned)
            if not learned and not state.warned and not leaves_slack(state.target_s, state.fcfs_s):
                state.warned = True
                _log.warning(
                    "slo: the target of %.3g s is below %g times the p99 of FCFS, %.3g s: deadlines alone decide",
                    state.target_s, MIN_OVER_FCFS, state.fcfs_s,
                )  # fmt: skip
            own = np.where(jobs.deadline >= now + work * (slots / rate), jobs.deadline, math.inf)
            deadline = np.minimum(own, jobs.arrival + state.target_s)
        else:
            deadline = np.minimum(jobs.deadline, jobs.arrival)
        order = np.argsort(deadline, kind="stable")
        waiting = deadline[order], median[order], work[order], bins[order] != UNPREDICTED, order
        place, charged, kept = compiled_choose()(
            waiting, len(order), state.target_s, state.fcfs_s, state.credit, slots, rate, now, learned
        )
        remember(state, float(work[order[place]]), charged, kept)
        return int(order[place])


@dataclass(slots=True)
class LatencyTarget:
    """The state of `slo` for one queue: how wrong predictions are by length, the latencies of FCFS, and a credit."""

    unit: float = 1.0
    """The weight of a job that arrives now: it grows, so that earlier jobs fade without being updated."""
    calibration: LengthCalibration = field(default_factory=LengthCalibration)
    latencies: NDArray[np.float64] = field(default_factory=lambda: np.zeros(LATENCY_BINS))
    """Weighted numbers of jobs by the latency that FCFS would give them."""
    arrived: int = 0
    """Jobs since the last observed latency."""
    done: float = 0.0
    """Weighted number of finished jobs."""
    true_tokens: float = 0.0
    """Theirs, weighted."""
    fcfs_s: float = 0.0
    """The 0.99 quantile of the latencies that FCFS would give, learned so far."""
    target_s: float = 0.0
    """The target, given or learned so far."""
    credit: float = 0.0
    """Tokens of work that the earliest deadline (under `ontime`, a late job) may claim while overloaded."""
    oldest_share: float = OLDEST_SHARE
    """Of the admitted work: what adds to the credit."""
    chosen_work: float = 0.0
    """Of the selected job."""
    chosen_oldest: bool = True
    """Whether the selected job has the earliest deadline, or there is no overload."""
    warned: bool = False
    """Whether it was logged that the given target is too short."""

    def enter(self, job: Job) -> int:
        """Count an arrival; all jobs are in one round."""
        count_arrival(self)
        return 0

    def prediction_changed(self, job: Job, round_number: int, old_median: float) -> int:
        """Return the same round."""
        return round_number

    def admitted(self, round_number: int) -> None:
        """Do nothing: see `selected`."""

    def selected(self, job: Job) -> None:
        """Account for the work of the selected job."""
        charge_chosen(self)

    def finished(self, job: Job) -> None:
        """Record a true length."""
        if job.generated > 0:  # else it failed
            count_finished(self, job.generated)
            place = length_bin(job.mu, job.sigma, job.median)
            record_length(self.calibration, job.median, place, job.generated)


# The rules, on numbers: the policy and its state call them, and the simulator's kernel compiles them for its own state
# with the same fields and its own `waiting_at`.


def count_arrival(state: Any) -> None:
    """Count a job that has arrived."""
    state.unit *= 1.0 + 1.0 / WINDOW_JOBS
    state.arrived += 1
    if state.unit > MAX_UNIT:
        for number in range(LATENCY_BINS):
            state.latencies[number] /= state.unit
        state.done /= state.unit
        state.true_tokens /= state.unit
        state.unit = 1.0


def charge_chosen(state: Any) -> None:
    """Change the credit by the work of the chosen job, which is admitted."""
    work = state.chosen_work
    state.credit += -work if state.chosen_oldest else work * state.oldest_share / (1.0 - state.oldest_share)
    state.credit = max(0.0, state.credit)


def count_finished(state: Any, tokens: int) -> None:
    """Count a finished job by its true length."""
    state.done += state.unit
    state.true_tokens += state.unit * tokens


def observe_latency(state: Any, work: float, slots: int, rate: float, learned: bool) -> None:
    """Count what the jobs that have arrived since the last call would take under FCFS, and learn their quantile.

    `work` is that of all waiting jobs. The mean of finished jobs stands for the running ones: those that wait are
    longer, since short ones do not wait.
    """
    if state.arrived and state.done >= LEARNED_AFTER * state.unit:
        seconds = (work + slots * (state.true_tokens / state.done)) / rate
        place = min(int(np.searchsorted(LATENCY_EDGES, seconds)), LATENCY_BINS - 1)
        state.latencies[place] += state.unit * state.arrived
        below = np.cumsum(state.latencies)
        state.fcfs_s = LATENCY_EDGES[np.searchsorted(below, LEARNED_QUANTILE * below[-1])]
        if learned:
            state.target_s = state.fcfs_s
    state.arrived = 0


def waiting_at(queue: Any, place: int) -> Any:
    """Return deadline, median, work, whether it is predicted, and number in the order of joining of a waiting job."""
    deadline, median, work, predicted, joined = queue
    return deadline[place], median[place], work[place], predicted[place], joined[place]


def shortest_on_time(queue: Any, count: int, slots: int, rate: float, now: float) -> int:
    """Return the place of the shortest job that can still be on time, the first to join among equals, or -1."""
    chosen, shortest, first = -1, math.inf, 0
    for place in range(count):
        deadline, median, work, predicted, joined = waiting_at(queue, place)
        on_time = predicted and deadline >= now + work * (slots / rate)
        if on_time and (median < shortest or (median == shortest and joined < first)):
            chosen, shortest, first = place, median, joined
    return chosen


def leaves_slack(target_s: float, fcfs_s: float) -> bool:
    """Return whether a given target is long enough for jobs to pass others."""
    return target_s >= MIN_OVER_FCFS * fcfs_s


def choose(
    queue: Any,
    count: int,
    target_s: float,
    fcfs_s: float,
    credit: float,
    slots: int,
    rate: float,
    now: float,
    learned: bool,
) -> tuple[int, bool, bool]:
    """Return which of `count` waiting jobs, in order of their deadlines, is admitted next, and two facts of the choice.

    Whether the job is charged to the credit, and whether the credit is kept: without overload there is none.
    """
    if rate <= 0.0:
        return 0, True, True
    done, least, earliest, chosen, shortest = 0.0, math.inf, math.inf, 0, math.inf
    overloaded_at = -OVERLOADED_AT * target_s
    for place in range(count):
        deadline, median, work, predicted, _ = waiting_at(queue, place)
        service = work * (slots / rate)
        if median < shortest and (place == 0 or (predicted and HEADROOM * service <= least)):
            chosen, shortest = place, median
        slack = deadline - now - done / rate
        done += work
        earliest = min(earliest, slack)
        own = LEARNED_OWN_SERVICE * service if learned else min(service, MAX_OWN_SERVICE * target_s)
        least = min(least, slack - own)
        if (learned and least < 0.0) or earliest < overloaded_at:
            break  # no later job fits, and there is overload if a target is given
    if learned or earliest >= overloaded_at:
        return chosen if learned or leaves_slack(target_s, fcfs_s) else 0, True, False
    on_time = shortest_on_time(queue, count, slots, rate, now)
    if on_time < 0 or credit >= waiting_at(queue, 0)[2]:
        return 0, True, True
    return on_time, False, True


def remember(state: Any, work: float, charged: bool, kept: bool) -> None:
    """Remember the facts of a choice of `choose` for `charge_chosen`."""
    state.chosen_work, state.chosen_oldest = work, charged
    if not kept:
        state.credit = 0.0


@cache
def compiled_choose() -> Callable[..., tuple[int, bool, bool]]:
    """Return `choose`, compiled where Numba is installed: a queue may be long."""
    try:
        from lengthwise.compiled import compiled_copy
    except InputError:
        return choose
    found = compiled_copy(choose, waiting_at, shortest_on_time, leaves_slack)
    one = np.ones(1)
    found((one, one, one, np.ones(1, np.bool_), np.argsort(one)), 1, 1.0, 1.0, 0.0, 1, 1.0, 0.0, True)
    return found
