"""The simulator beside queueing theory: one server, one job at a time, and the formula for its mean response time.

The server is an engine with one slot whose every step takes the same short time, whatever it computes: a job of so many
tokens is served in so many steps, and one that was preempted goes on where it was, as its recomputation takes no step
of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy import special

from experiments.theory.queueing import SIZES, Queue
from lengthwise.policies import Policy, make_policy
from lengthwise.policies.preemptive import Preemptive, Srpt
from lengthwise.simulator import EngineSpec, Fleet, RequestPredictions, StepCost, simulate
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lengthwise.policies import Job, JobColumns
    from lengthwise.policies.base import Numbers

    Array = NDArray[np.float64]

TOKENS_PER_SERVICE: Final = 400
"""Steps of a job of mean size: how finely time is cut."""

_WARM_UP: Final = 0.1  # of the jobs, left out of the mean: the server starts empty
_ALL: Final = 1 << 29  # tokens; more than any job has


@dataclass(frozen=True)
class PreemptiveSjf(Preemptive):
    """Shortest prediction first, and whoever runs yields to a shorter one: a size, once known, does not shrink."""

    kind = "preemptive-sjf"
    margin = 1.0
    times = math.inf
    preempt_check_interval = 0

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """The prediction itself."""
        return jobs.expected


@dataclass(frozen=True)
class CertainSrpt(Srpt):
    """SRPT as theory has it: preempted as often as may be, which costs nothing there.

    Lengths are predicted with certainty: what is left only shrinks, so once asked is enough.
    """

    kind = "srpt"
    preempt_check_interval = 0
    times: float = math.inf


@dataclass(frozen=True)
class Claim:
    """A policy, a queue, and what theory says of the two."""

    name: str
    policy: Policy
    queue: Queue
    expected: float


@dataclass(frozen=True)
class Finding:
    """The simulated mean response time of a claim, over independent runs, with its 95 % interval."""

    claim: Claim
    mean: float
    half_width: float
    runs: int
    jobs: int

    @property
    def error(self) -> float:
        """How far from theory, as a share of it."""
        return self.mean / self.claim.expected - 1


@dataclass(frozen=True)
class Effort:
    """How many independent runs, and how many jobs in each. Preempting policies are asked often, so get fewer jobs.

    They need fewer as well: FCFS and SJF on the very same jobs, whose means theory knows, tell how lucky a run was.
    """

    runs: int = 20
    jobs: int = 100_000
    preemptive_jobs: int = 5_000


@dataclass(frozen=True, eq=False)
class Jobs:
    """One run's jobs: when they come, how long they take and are predicted to take, in mean services."""

    arrival: Array
    size: Array
    predicted: Array

    @classmethod
    def draw(cls, queue: Queue, count: int, seed: int) -> Jobs:
        """Poisson arrivals; one size from each of as many equal slices of the distribution, in random order.

        So the moments that the formulas speak of are those of the sample, nearly.
        """
        rng = np.random.default_rng(seed)
        size = SIZES[queue.sizes]((rng.permutation(count) + 1 - rng.random(count)) / count)
        predicted = size if queue.predictions == "perfect" else size * rng.exponential(size=count)
        return cls(np.cumsum(rng.exponential(1 / queue.rate, count)), size, predicted)

    def response(self, policy: Policy) -> float:
        """The mean response time on one server, without those who came while it was filling up."""
        finish = serve(self, policy)
        return float((finish - self.arrival)[int(_WARM_UP * len(self.arrival)) :].mean())


def claims(rate: float = 0.7) -> list[Claim]:
    """Every formula, on light, heavy and no tails, with perfect predictions and with exponential ones."""
    found = []
    for sizes in SIZES:
        queue = Queue(rate, sizes)
        found += [
            Claim("FCFS (Pollaczek-Khinchine)", make_policy("fcfs"), queue, queue.fcfs()),
            Claim("SJF", make_policy("sjf"), queue, queue.sjf()),
            Claim("preemptive SJF", PreemptiveSjf(), queue, queue.preemptive_sjf()),
            Claim("SRPT (Schrage-Miller)", CertainSrpt(c=1.0), queue, queue.srpt()),
        ]
    perfect, noisy = Queue(rate, "exponential"), Queue(rate, "exponential", "exponential")
    found += [
        Claim("SJF", make_policy("sjf"), noisy, noisy.sjf()),
        Claim("preemptive SJF", PreemptiveSjf(), noisy, noisy.preemptive_sjf()),
    ]
    found += [
        Claim(f"limited SRPT, c = {c:g} (TRAIL)", CertainSrpt(c=c), queue, queue.limited_srpt(c))
        for queue in (perfect, noisy)
        for c in (0.0, 0.5, 0.8, 1.0)
    ]
    return found


def examine(
    claim: Claim, effort: Effort, *, seed: int = 0, on_progress: Callable[[float], None] | None = None
) -> Finding:
    """Simulate a claim in independent runs."""
    controls = _controls(claim)
    jobs = effort.preemptive_jobs if controls else effort.jobs
    means = np.empty(effort.runs)
    luck = np.empty((effort.runs, len(controls)))
    for run in range(effort.runs):
        drawn = Jobs.draw(claim.queue, jobs, seed + run)
        means[run] = drawn.response(claim.policy)
        luck[run] = [drawn.response(policy) - expected for policy, expected in controls]
        if on_progress is not None:
            on_progress((run + 1) / effort.runs)
    return Finding(claim, *_without_luck(means, luck), effort.runs, jobs)


def _controls(claim: Claim) -> list[tuple[Policy, float]]:
    """What is simulated beside a preempting policy, and what theory says of it."""
    if not claim.policy.preempts:
        return []
    both = [(make_policy("fcfs"), claim.queue.fcfs()), (make_policy("sjf"), claim.queue.sjf())]
    return both[:1] if claim.queue.all_alike else both


def _without_luck(means: Array, luck: Array) -> tuple[float, float]:
    """The mean of runs where the controls had neither good luck nor bad, and its 95 % interval."""
    runs, controls = luck.shape
    design = np.column_stack([np.ones(runs), luck])
    fit = np.linalg.lstsq(design, means, rcond=None)[0]
    rest = means - design @ fit
    freedom = runs - 1 - controls
    variance = rest @ rest / freedom * np.linalg.inv(design.T @ design)[0, 0]
    return float(fit[0]), float(special.stdtrit(freedom, 0.975) * math.sqrt(variance))


def serve(jobs: Jobs, policy: Policy) -> Array:
    """When each job is done, on one server."""
    tokens, predicted = (
        np.maximum(1, np.rint(time * TOKENS_PER_SERVICE)).astype(np.int64) for time in (jobs.size, jobs.predicted)
    )
    count = len(tokens)
    workload = Workload.from_table(
        {"arrival_s": jobs.arrival, "input_tokens": np.ones(count, np.int64), "output_tokens": tokens}, name="jobs"
    )
    predictions = RequestPredictions(
        predictor="given",
        mu=np.log(predicted.astype(np.float64)),
        sigma=np.zeros(count),
        cap=np.full(count, float(_ALL)),
        llms=np.full(count, "", dtype=object),
        truth=tokens.astype(np.float64),
    )
    return simulate(workload, server(), policy, predictor=predictions).finish


def server() -> Fleet:
    """A fleet of one engine that serves one job at a time."""
    step = 1 / TOKENS_PER_SERVICE
    cost = StepCost(step, step, prefill_token=0.0, prefill_pair=0.0, decode=0.0, kv_token=0.0)
    return Fleet(
        (
            EngineSpec(
                "server",
                cost,
                kv_tokens=_ALL,
                max_model_len=_ALL,
                max_num_seqs=1,
                max_num_batched_tokens=_ALL,
                block_size=_ALL // 4,
                prefix_caching=False,
            ),
        )
    )
