"""The simulator beside queueing theory: one server, one job at a time, and the formula for its mean response time.

The server is an engine with one slot whose steps all take the same short time: a job of n tokens is served in n steps,
and a preempted job resumes where it stopped, as its recomputation takes no step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from experiments.study import Run, Study, table_of
from lengthwise.errors import InputError
from lengthwise.policies import Job, JobColumns, Policy, make_policy
from lengthwise.policies.base import Numbers
from lengthwise.policies.preemptive import Preemptive, Srpt
from lengthwise.reports.tables import Table
from lengthwise.simulator import EngineSpec, Fleet, RequestPredictions, StepCost, simulate
from lengthwise.workloads import Workload

Array = NDArray[np.float64]

Quantile = Callable[[Array], Array]


_NODES: Final = 20_000
_PREDICTED_NODES: Final = 250
_RANKS: Final = 600
_CROWDING: Final = 4  # of nodes towards the tail

_SPREAD: Final = 1.0  # sigma of the log-normal: a squared coefficient of variation of 1.7


SIZES: Final[Mapping[str, Quantile]] = {
    "exponential": lambda beyond: -np.log(beyond),
    "log-normal": lambda beyond: np.exp(-_SPREAD * special.ndtri(beyond) - _SPREAD**2 / 2),
}
"""Distributions of size with mean 1: the size that a share of jobs lies beyond. The log-normal's tail is heavy."""


def _levels(count: int) -> tuple[Array, Array]:
    """Shares that lie beyond, from nearly 1 to very nearly 0, and how much of the jobs each of them stands for."""
    left = 1 - (np.arange(count) + 0.5) / count
    weight = _CROWDING * left ** (_CROWDING - 1) / count
    return left**_CROWDING, weight / weight.sum()


@dataclass(frozen=True)
class Queue:
    """M/G/1 with arrivals at a rate, jobs of some sizes, and predictions of them (`exponential`: of mean the size)."""

    rate: float
    sizes: str
    predictions: str = "perfect"

    @cached_property
    def jobs(self) -> tuple[Array, Array, Array]:
        """Sizes, predictions and weights of jobs, by rising prediction."""
        if self.predictions == "perfect":
            beyond, weight = _levels(_NODES)
            size = SIZES[self.sizes](beyond)
            return size, size, weight
        beyond, weight = _levels(_PREDICTED_NODES)
        size = np.repeat(SIZES[self.sizes](beyond), len(beyond))
        predicted = size * np.tile(SIZES["exponential"](beyond), len(beyond))
        order = np.argsort(predicted, kind="stable")
        return size[order], predicted[order], np.asarray(np.outer(weight, weight).ravel()[order], np.float64)

    def mean(self, values: Array) -> float:
        """The expectation of something about a job."""
        return float(values @ self.jobs[2])

    def fcfs(self) -> float:
        """Pollaczek and Khinchine: E[S] + rate E[S^2] / (2 (1 - rho))."""
        size, _, _ = self.jobs
        return self.mean(size) + self.rate * self.mean(size**2) / (2 * (1 - self.rate * self.mean(size)))

    def sjf(self) -> float:
        """Shortest prediction first, without preemption: E[S] + E[rate E[S^2] / (2 (1 - rho_r)^2)]."""
        size, _, _ = self.jobs
        return self.mean(size) + self.mean(self.rate * self.mean(size**2) / (2 * (1 - self._load_up_to_each) ** 2))

    def preemptive_sjf(self) -> float:
        """Shortest prediction first, preemptive: E[rate E[S^2; R <= r] / (2 (1 - rho_r)^2) + S / (1 - rho_r)]."""
        size, _, _ = self.jobs
        load = self._load_up_to_each
        return self.mean(self.rate * self._up_to_each(size**2) / (2 * (1 - load) ** 2) + size / (1 - load))

    def srpt(self) -> float:
        """Schrage and Miller, for perfect predictions.

        E[T(x)] = rate (E[S^2; S <= x] + x^2 P(S > x)) / (2 (1 - rho_x)^2) + integral from 0 to x of da / (1 - rho_a)
        """
        size, _, _ = self.jobs
        load = self._load_up_to_each
        beyond = 1 - self._up_to_each(np.ones_like(size))
        waited = self.rate * (self._up_to_each(size**2) + size**2 * beyond) / (2 * (1 - load) ** 2)
        return self.mean(waited + _integral(size, 1 / (1 - load)))

    def limited_srpt(self, c: float) -> float:
        """TRAIL: shortest predicted remaining first, preempted only up to age c * r, r the prediction.

        E[T(x, r)] = rate / (2 (1 - rho_r)^2) (E[S^2; R <= r] + E[((S - min(R - r, c R))^+)^2; R > r])
                     + integral from 0 to min(x, c r) of da / (1 - rho_(r - a)) + (x - c r)^+
        """
        size, predicted, weight = self.jobs
        load = self._load_up_to_each
        # The middle term has no running sum: it is worked out at some ranks, and taken as smooth between them.
        at = np.linspace(0, len(size) - 1, _RANKS).astype(int)
        rank = predicted[at]
        left = np.array([_left(size[i + 1 :], predicted[i + 1 :], weight[i + 1 :], predicted[i], c) for i in at])
        waited = self.rate / (2 * (1 - load[at]) ** 2) * (self._up_to_each(size**2)[at] + left)
        resident = _integral(predicted, 1 / (1 - load))
        open_for = np.minimum(size, c * predicted)
        slowed = resident - np.interp(predicted - open_for, predicted, resident, left=0.0)
        return self.mean(np.interp(predicted, rank, waited) + slowed + np.maximum(size - c * predicted, 0.0))

    @cached_property
    def _load_up_to_each(self) -> Array:
        """Load of the jobs whose prediction is no longer than each one's."""
        return self.rate * self._up_to_each(self.jobs[0])

    def _up_to_each(self, values: Array) -> Array:
        """E[value; prediction up to each one's], half of its own weight counted."""
        weighted = values * self.jobs[2]
        return np.asarray(np.cumsum(weighted) - weighted / 2)


def _integral(at: Array, values: Array) -> Array:
    """The integral from 0 to each of `at`; before the first the value is 1."""
    steps = np.diff(at) * (values[1:] + values[:-1]) / 2
    return np.concatenate([at[:1] * (1 + values[0]) / 2, at[0] * (1 + values[0]) / 2 + np.cumsum(steps)])


def _left(size: Array, predicted: Array, weight: Array, rank: float, c: float) -> float:
    """E[square of the work that is left when a job comes before a rank or cannot be preempted any more]."""
    return float(np.maximum(size - np.minimum(predicted - rank, c * predicted), 0.0) ** 2 @ weight)


TOKENS_PER_SERVICE: Final = 400
"""Steps of a job of mean size: how finely time is cut."""

_WARM_UP: Final = 0.1  # of the jobs, left out of the mean: the server starts empty
_ALL: Final = 1 << 29  # tokens; more than any job has


@dataclass(frozen=True)
class PreemptiveSjf(Preemptive):
    """Shortest prediction first, preemptive; predictions do not shrink with age."""

    kind = "preemptive-sjf"
    margin = 1.0
    times = math.inf
    preempt_check_interval = 0

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """The prediction."""
        return jobs.expected


@dataclass(frozen=True)
class CertainSrpt(Srpt):
    """SRPT as in theory: unlimited preemption at no cost.

    Lengths are known: the remaining length only shrinks, so one check per arrival is enough.
    """

    kind = "srpt"
    preempt_check_interval = 0
    times: float = math.inf


@dataclass(frozen=True)
class Formula:
    """A policy, a queue, and the mean response time that theory gives."""

    name: str
    policy: Policy
    queue: Queue
    expected: float


@dataclass(frozen=True)
class Finding:
    """The simulated mean response time over independent runs, with its 95 % interval."""

    formula: Formula
    mean: float
    half_width: float
    runs: int
    jobs: int

    @property
    def error(self) -> float:
        """Relative difference from theory."""
        return self.mean / self.formula.expected - 1


@dataclass(frozen=True)
class TheoryGrid:
    """Load, independent runs, and jobs in each run.

    Preemptive policies are slow to simulate and get fewer jobs. They also need fewer: FCFS and SJF on the same jobs,
    whose means are known, serve as control variates.
    """

    load: float = 0.7
    """Arrivals per mean service."""

    runs: int = 20
    jobs: int = 100_000
    preemptive_jobs: int = 5_000

    def __post_init__(self) -> None:
        if not 0.0 < self.load < 1.0:
            raise InputError(
                f"a load of {self.load:g}", field="load", hint="above 0 and below 1: beyond, no mean exists"
            )
        if self.runs < 5:
            raise InputError(f"{self.runs} runs", field="runs", hint="give at least 5 for a meaningful interval")


@dataclass(frozen=True, eq=False)
class Jobs:
    """The jobs of one run: arrivals, sizes and predicted sizes, in mean services."""

    arrival: Array
    size: Array
    predicted: Array

    @classmethod
    def draw(cls, queue: Queue, count: int, seed: int) -> Jobs:
        """Poisson arrivals; one size from each of as many equal slices of the distribution, in random order.

        So the moments of the sample are nearly those of the formulas.
        """
        rng = np.random.default_rng(seed)
        size = SIZES[queue.sizes]((rng.permutation(count) + 1 - rng.random(count)) / count)
        predicted = size if queue.predictions == "perfect" else size * rng.exponential(size=count)
        return cls(np.cumsum(rng.exponential(1 / queue.rate, count)), size, predicted)

    def response(self, policy: Policy) -> float:
        """Mean response time on one server, without the jobs of the warm-up."""
        finish = serve(self, policy)
        return float((finish - self.arrival)[int(_WARM_UP * len(self.arrival)) :].mean())


def formulas(rate: float = 0.7) -> list[Formula]:
    """Every formula, on light and heavy tails, with perfect predictions and with exponential ones."""
    fcfs, sjf, preemptive = make_policy("fcfs"), make_policy("sjf"), PreemptiveSjf()
    found = []
    for queue in (Queue(rate, sizes) for sizes in SIZES):
        found += [
            Formula("FCFS (Pollaczek-Khinchine)", fcfs, queue, queue.fcfs()),
            Formula("SJF", sjf, queue, queue.sjf()),
            Formula("preemptive SJF", preemptive, queue, queue.preemptive_sjf()),
            Formula("SRPT (Schrage-Miller)", CertainSrpt(c=1.0), queue, queue.srpt()),
        ]
    perfect, noisy = Queue(rate, "exponential"), Queue(rate, "exponential", "exponential")
    found += [
        Formula("SJF", sjf, noisy, noisy.sjf()),
        Formula("preemptive SJF", preemptive, noisy, noisy.preemptive_sjf()),
    ]
    return found + [
        Formula(f"limited SRPT, c = {c:g} (TRAIL)", CertainSrpt(c=c), queue, queue.limited_srpt(c))
        for queue in (perfect, noisy)
        for c in (0.0, 0.5, 0.8, 1.0)
    ]


def examine(formula: Formula, grid: TheoryGrid, *, seed: int = 0) -> Finding:
    """Simulate a formula's policy in independent runs."""
    controls = _controls(formula)
    jobs = grid.preemptive_jobs if controls else grid.jobs
    means = np.empty(grid.runs)
    deviations = np.empty((grid.runs, len(controls)))
    for run in range(grid.runs):
        drawn = Jobs.draw(formula.queue, jobs, seed + run)
        means[run] = drawn.response(formula.policy)
        deviations[run] = [drawn.response(policy) - expected for policy, expected in controls]
    return Finding(formula, *_with_control_variates(means, deviations), grid.runs, jobs)


def _controls(formula: Formula) -> list[tuple[Policy, float]]:
    """Control variates of a preemptive policy, with their known means."""
    if not formula.policy.preempts:
        return []
    return [(make_policy("fcfs"), formula.queue.fcfs()), (make_policy("sjf"), formula.queue.sjf())]


def _with_control_variates(means: Array, deviations: Array) -> tuple[float, float]:
    """The mean at zero deviation of the controls (linear regression), and its 95 % interval."""
    runs, controls = deviations.shape
    design = np.column_stack([np.ones(runs), deviations])
    fit = np.linalg.lstsq(design, means, rcond=None)[0]
    rest = means - design @ fit
    freedom = runs - 1 - controls
    variance = rest @ rest / freedom * np.linalg.inv(design.T @ design)[0, 0]
    return float(fit[0]), float(special.stdtrit(freedom, 0.975) * math.sqrt(variance))


def serve(jobs: Jobs, policy: Policy) -> Array:
    """Finish time of each job on one server."""
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
    return simulate(workload, server(), policy, predictor=predictions).finished_s


def server() -> Fleet:
    """A fleet of one engine that serves one job at a time."""
    step = 1 / TOKENS_PER_SERVICE
    cost = StepCost(step, step, prefill_token=0.0, prefill_pair=0.0, decode=0.0, kv_token=0.0)
    no_limit = EngineSpec("server", cost, kv_tokens=_ALL, max_model_len=_ALL, max_num_batched_tokens=_ALL)
    return Fleet((replace(no_limit, block_size=_ALL // 4, max_num_seqs=1, prefix_caching=False),))


def tables(findings: Sequence[Finding]) -> list[Table]:
    """One row per formula; times in mean services."""
    rate = findings[0].formula.queue.rate if findings else float("nan")
    return [
        table_of(
            f"One server at load {rate:g}: theory beside the simulator",
            findings,
            [
                ("order", lambda found: found.formula.name),
                ("sizes", lambda found: found.formula.queue.sizes),
                ("predictions", lambda found: found.formula.queue.predictions),
                ("formula", lambda found: f"{found.formula.expected:.4f}"),
                ("simulated", lambda found: f"{found.mean:.4f}"),
                ("95 %", lambda found: f"± {found.half_width:.4f}"),
                ("difference", lambda found: f"{found.error:+.2%}"),
                ("jobs", lambda found: f"{found.runs} x {found.jobs:,}"),
            ],
            [
                "mean response time in mean services; interval of the mean over independent runs (Student's t)",
                "preempting orders: FCFS and SJF on the same jobs serve as control variates",
                "± 0 where an order equals one of these two, job for job",
            ],
        )
    ]


def measure(run: Run, grid: TheoryGrid) -> list[Finding]:
    """Simulate every formula."""
    every = formulas(grid.load)
    findings = []
    for number, formula in enumerate(every):
        run.report(formula.name, number / len(every))
        findings.append(examine(formula, grid))
    return findings


def answer(found: Sequence[Finding]) -> str:
    """The largest difference from theory, and how many intervals hold the theoretical value."""
    worst = max(found, key=lambda each: abs(each.error))
    held = sum(abs(each.mean - each.formula.expected) <= each.half_width for each in found)
    return (
        f"The simulator is within {100 * abs(worst.error):.1f} % of queueing theory in all {len(found)} cases. "
        f"{held} of the 95 % intervals hold the theoretical value."
    )


STUDY: Study[TheoryGrid, list[Finding]] = Study(
    name="theory",
    title="One server: theory beside the simulator",
    question="Does the simulator agree with queueing theory, TRAIL's formula included?",
    paper="Pollaczek-Khinchine; Schrage and Miller; TRAIL, arXiv 2410.01035",
    source="synthetic",
    grid=TheoryGrid(),
    quick=TheoryGrid(runs=5, jobs=10_000, preemptive_jobs=1_000),
    minutes=(5, 0.5),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
)
