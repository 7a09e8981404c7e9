"""TRAIL (arXiv 2410.01035): does limited preemption pay, and at which c?

Mean latency and TTFT against FCFS over c at the poster's rate, with predictions from the prompt alone, refined by age,
by a stand-in for the probe of hidden states, and with true lengths; without a prefix cache, as in the paper, where a
preempted request is computed again from the start, and with one, as in vLLM today, where most of it is found again.
Then where preemption pays: few slots and many, below capacity and above; a run of the paper's size; and an engine whose
KV memory is full before its slots are, which is what the limit on preemption is for. TRAIL's formula is checked by the
study `theory`.

The probe is a STAND-IN: it knows the true remaining length and adds noise, scaled to the stated error. It shows what
refined predictions of that error would do to scheduling, not that a probe reaches it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from experiments.study import Claim, Run, SeededGrid, Study, table_of
from lengthwise.intervals import Ratio, over_seeds
from lengthwise.policies import Job, JobColumns, Policy
from lengthwise.policies.base import Numbers
from lengthwise.policies.preemptive import Srpt
from lengthwise.policies.residual import expected_remaining
from lengthwise.predictors.probe import DEFAULT, load_probe
from lengthwise.reports.tables import Table, seconds, share
from lengthwise.simulator import Fleet, Outcome, RequestPredictions, measure_capacity, predict_workload, simulate
from lengthwise.simulator.cluster import at_rate
from lengthwise.training.probe.errors_by_age import error_ratio
from lengthwise.workloads import LengthSamples, Workload, castillo_workload
from lengthwise.workloads.arrivals import generator

PAPER_RATE: Final = 14.0
"""Requests per second at which the poster shows mean latency and TTFT over c."""
PAPER_C: Final = 0.8
MAX_TOKENS: Final = 512
"""Answers are cut here: the last bin of the probe."""
PAPER_E2E_GAIN: Final = (1.66, 2.01)
"""FCFS (vLLM) over TRAIL, mean latency: least and most over the rates tried. One A100, Alpaca, 10,000 prompts."""
PAPER_TTFT_GAIN: Final = (1.76, 24.07)
PAPER_ERROR_RATIO: Final = 2.66
"""Error of the prediction from the prompt (BERT) over that of the probe, Llama-3-8B."""

Floats = NDArray[np.float64]


EVERY: Final = 16
"""Tokens between two readings of the probe; in between its last reading is counted down."""
REMEMBERS: Final = 64
"""Tokens over which the probe's errors decay: smoothing correlates neighbouring readings."""


def point(predictions: RequestPredictions) -> RequestPredictions:
    """The same means with sigma 0: the remaining length is the prediction minus the tokens generated."""
    return replace(predictions, mu=np.log(predictions.expected_and_tail()[0]), sigma=np.zeros(len(predictions)))


@dataclass(frozen=True, eq=False)
class Probe:
    """The stand-in: the true length of each request, by arrival, and the log of each reading's error."""

    arrival: Floats
    length: Floats
    log_error: Floats

    def remaining(self, jobs: JobColumns) -> Floats:
        """Predicted remaining tokens, at least one, of jobs with a first token."""
        row = np.searchsorted(self.arrival, jobs.arrival)
        age = np.maximum(jobs.generated, 1.0)
        reading = ((age - 1) // EVERY).astype(np.intp)
        at = 1.0 + EVERY * reading
        remaining = (self.length[row] - at) * np.exp(self.log_error[row, reading])
        return np.asarray(np.maximum(np.minimum(remaining, jobs.cap - at) - (age - at), 1.0))


@dataclass(frozen=True)
class Probed(Srpt):
    """`srpt` whose prediction after the first token is the probe's; hosts check preemption at every reading."""

    kind = "srpt"
    preempt_check_interval = EVERY

    probe: Probe = field(kw_only=True)

    def rank(self, jobs: Job | JobColumns) -> Numbers:
        """The probe's prediction; before the first token, the prompt's."""
        if isinstance(jobs, Job):
            return float(self.rank(JobColumns.of([jobs]))[0])
        return np.where(jobs.generated > 0, self.probe.remaining(jobs), jobs.expected)


def probe_of_error(workload: Workload, error: float, *, cap: int, seed: int) -> Probe:
    """A stand-in whose mean absolute error over all tokens of these requests is the given one."""
    readings = -(-cap // EVERY)
    fresh = generator(seed, "probe").standard_normal((len(workload), readings))
    decay = math.exp(-EVERY / REMEMBERS)
    noise = fresh.copy()
    for reading in range(1, readings):
        noise[:, reading] = decay * noise[:, reading - 1] + math.sqrt(1 - decay**2) * fresh[:, reading]
    arrival, length = workload.arrival_s, workload.output_tokens.astype(np.float64)
    ages = _ages(workload, cap)

    def off(scale: float) -> float:
        return _mean_off(Probe(arrival, length, scale * noise).remaining(ages), ages, workload) - error

    return Probe(arrival, length, float(brentq(off, 1e-3, 5.0, xtol=1e-3)) * noise)


def mean_error(workload: Workload, predictions: RequestPredictions, cap: int) -> float:
    """Mean absolute error of the expected remaining length, over all tokens of all requests but the last ones."""
    ages = _ages(workload, cap, predictions)
    return _mean_off(np.asarray(expected_remaining(ages)), ages, workload)


def _ages(workload: Workload, cap: int, predictions: RequestPredictions | None = None) -> JobColumns:
    """Every request at every age from its first token to its last but one."""
    rows = np.repeat(np.arange(len(workload)), workload.output_tokens - 1)
    begins = np.cumsum(workload.output_tokens - 1) - (workload.output_tokens - 1)
    ages = np.arange(len(rows)) - begins[rows] + 1
    arrival = workload.arrival_s[rows]
    if predictions is None:
        return JobColumns.filled(arrival=arrival, expected=1.0, cap=cap, generated=ages)
    expected = predictions.expected_and_tail()[0][rows]
    about = {"mu": predictions.mu[rows], "sigma": predictions.sigma[rows]}
    return JobColumns.filled(arrival=arrival, expected=expected, cap=cap, generated=ages, **about)


def _mean_off(predicted: Floats, ages: JobColumns, workload: Workload) -> float:
    rows = np.searchsorted(workload.arrival_s, ages.arrival)
    return float(np.abs(predicted - (workload.output_tokens[rows] - ages.generated)).mean())


LLM: Final = "llama-3.1-8b"
ENGINE: Final = "llama-3-8b@a100"
SLOTS: Final = 48
"""The poster's rate is then slightly above the engine's capacity; without a queue no order gains."""
CORPUS: Final = "Alpaca"
PROMPT, AGE, TRUTH = "prompt only", "refined by age", "truth"
AS_SHIPPED, AS_IN_PAPER = "probe stand-in, error as the shipped probe's", "probe stand-in, error as in the paper"
PROBES: Final = (AS_SHIPPED, AS_IN_PAPER)
KINDS: Final = (PROMPT, AGE, *PROBES, TRUTH)


@dataclass(frozen=True)
class TrailGrid(SeededGrid):
    """How much is simulated."""

    seeds: int = 5
    requests: int = 2000
    limits: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    slots: tuple[int, ...] = (1, 4, 16, SLOTS)
    loads: tuple[float, ...] = (0.7, 0.9, 1.1)
    large: int = 10_000
    """Requests of the runs of the paper's size."""
    kv_slots: int = 256
    kv_tokens: int = 12_000
    """An engine whose KV memory binds: about a quarter of the slots fill it."""
    predictor: str = "default"
    """Predictions from the prompt."""


@dataclass(frozen=True)
class Setting:
    """An engine and its request rate; `capacity_per_s` under backlog, averaged over the seeds."""

    slots: int
    caching: bool
    rate: float = 1.0
    capacity_per_s: float = math.nan
    kv_tokens: int | None = None
    """None: the engine's own KV memory, which these requests do not fill."""

    @property
    def fleet(self) -> Fleet:
        """The engine."""
        limits = {"max_num_seqs": self.slots, "kv_tokens": self.kv_tokens}
        return Fleet.parse(f"1*{ENGINE}").limited_to(**limits, prefix_caching=self.caching)

    @property
    def load(self) -> float:
        """Request rate over capacity."""
        return self.rate / self.capacity_per_s


@dataclass(frozen=True)
class Cell:
    """`srpt` with one c and one kind of prediction in one setting, over all seeds."""

    setting: Setting
    predictions: str
    c: float
    e2e_s: float
    ttft_s: float
    e2e: Ratio
    """FCFS's mean over this one's: above 1 is a gain. With its 95 % interval over seeds, as the next three."""
    ttft: Ratio
    e2e_p99: Ratio
    over_none: Ratio
    """Mean E2E of c = 0 over this one's: above 1, preemption pays."""
    preemptions: float
    """Per request."""
    recomputed: float
    """Tokens computed again, over all tokens of prompts and answers."""


@dataclass(frozen=True)
class TrailResult:
    """Everything measured. `over_c` is at the poster's rate; `where` uses predictions refined by age only."""

    origin: str
    corpus: str
    predictor: str
    tau: float
    errors: dict[str, float]
    """Mean absolute error of the remaining length over all tokens, of each kind of prediction (first seed)."""
    grid: TrailGrid
    over_c: tuple[Cell, ...]
    where: tuple[Cell, ...]
    large: tuple[Cell, ...]
    """At the poster's rate, as many requests as in the paper."""
    memory: tuple[Cell, ...]
    """As many, with KV memory that binds."""


def measure(run: Run, grid: TrailGrid) -> TrailResult:
    """Run everything on the answers of one LLM to Alpaca, or to all test prompts where Alpaca is missing."""
    samples = run.castillo()
    known = CORPUS in samples.corpora
    rows = samples.where(corpus=[CORPUS]) if known else samples.where(split="test")
    run.report("predictions", 0.0)
    ratios = {AS_SHIPPED: error_ratio(load_probe(DEFAULT)), AS_IN_PAPER: PAPER_ERROR_RATIO}
    traffic = [_Traffic.of(rows, grid.predictor, grid.requests, seed, ratios) for seed in range(grid.seeds)]
    first, tau = traffic[0], float(np.mean([each.predictions.tau for each in traffic]))
    errors = {
        PROMPT: first.prompt_error,
        AGE: mean_error(first.workload, first.predictions, MAX_TOKENS),
        **{name: first.prompt_error / ratio for name, ratio in ratios.items()},
        TRUTH: 0.0,
    }
    over_c: list[Cell] = []
    for caching in (False, True):
        setting = _at_load(Setting(SLOTS, caching), traffic)
        for kind in KINDS:
            run.report(f"rate {PAPER_RATE:g}, {kind}", 0.05 + 0.6 * len(over_c) / (2 * len(KINDS) * len(grid.limits)))
            over_c += _runs(setting, traffic, kind, grid.limits)
    where: list[Cell] = []
    places = list(product(grid.slots, grid.loads, (False, True)))
    for slots, load, caching in places:
        run.report(f"{slots} slots, load {load:g}", 0.65 + 0.15 * len(where) / (2 * len(places)))
        where += _runs(_at_load(Setting(slots, caching), traffic, load), traffic, AGE, (0.0, PAPER_C))
    run.report(f"{grid.large:,} requests, predictions", 0.8)
    traffic = [_Traffic.of(rows, grid.predictor, grid.large, seed, {}) for seed in range(grid.seeds)]
    large: list[Cell] = []
    memory: list[Cell] = []
    for caching in (False, True):
        run.report(f"{grid.large:,} requests", 0.92 if caching else 0.85)
        enough = _at_load(Setting(SLOTS, caching), traffic)
        full = Setting(grid.kv_slots, caching, kv_tokens=grid.kv_tokens)
        binding = [_at_load(full, traffic, load) for load in grid.loads]
        for kind in (AGE, TRUTH):
            large += _runs(enough, traffic, kind, grid.limits)
            memory += [cell for setting in binding for cell in _runs(setting, traffic, kind, grid.limits)]
    return TrailResult(
        origin=samples.origin,
        corpus=CORPUS if known else "all test prompts",
        predictor=grid.predictor,
        tau=tau,
        errors=errors,
        grid=grid,
        over_c=tuple(over_c),
        where=tuple(where),
        large=tuple(large),
        memory=tuple(memory),
    )


@dataclass(frozen=True, eq=False)
class _Traffic:
    """One seed's requests, at one per second, and their predictions."""

    workload: Workload
    predictions: RequestPredictions
    prompt_error: float
    probes: dict[str, Probe]

    @classmethod
    def of(cls, rows: LengthSamples, predictor: str, requests: int, seed: int, ratios: dict[str, float]) -> _Traffic:
        most = MAX_TOKENS
        workload = castillo_workload(rows, LLM, requests=requests, rate=1.0, seed=seed, max_tokens=most)
        predictions = predict_workload(workload, predictor, seed=seed)
        error = mean_error(workload, point(predictions), most)
        probes = {name: probe_of_error(workload, error / ratio, cap=most, seed=seed) for name, ratio in ratios.items()}
        return cls(workload, predictions, error, probes)

    def serve(self, setting: Setting, policy: Policy | str, predictions: RequestPredictions | str) -> Outcome:
        return simulate(at_rate(self.workload, setting.rate), setting.fleet, policy, predictor=predictions)

    def srpt(self, setting: Setting, kind: str, c: float) -> Outcome:
        """`srpt` with a kind of prediction."""
        if kind in PROBES:
            probe = self.probes[kind]
            moved = Probe(probe.arrival / setting.rate, probe.length, probe.log_error)
            return self.serve(setting, Probed(c=c, probe=moved), self.predictions)
        about: dict[str, RequestPredictions | str] = {
            PROMPT: point(self.predictions),
            AGE: self.predictions,
            TRUTH: "oracle",
        }
        return self.serve(setting, Srpt(c=c), about[kind])


def _at_load(setting: Setting, traffic: Sequence[_Traffic], load: float | None = None) -> Setting:
    """The setting with its capacity, at a load if one is given, else at the poster's rate."""
    capacity = float(np.mean([measure_capacity(each.workload, setting.fleet).requests_per_s for each in traffic]))
    return replace(setting, rate=PAPER_RATE if load is None else load * capacity, capacity_per_s=capacity)


def _runs(setting: Setting, traffic: Sequence[_Traffic], kind: str, limits: Sequence[float]) -> list[Cell]:
    base = [each.serve(setting, "fcfs", each.predictions) for each in traffic]
    found: list[Cell] = []
    without: list[Outcome] = []
    for c in limits:
        ours = [each.srpt(setting, kind, c) for each in traffic]
        without = without or ours
        tokens = sum(int((one.input_tokens + one.output_tokens).sum()) for one in ours)
        found.append(
            Cell(
                setting=setting,
                predictions=kind,
                c=c,
                e2e_s=float(np.mean(_by_seed(ours, "e2e_s"))),
                ttft_s=float(np.mean(_by_seed(ours, "ttft_s"))),
                e2e=over_seeds(_by_seed(base, "e2e_s"), _by_seed(ours, "e2e_s")),
                ttft=over_seeds(_by_seed(base, "ttft_s"), _by_seed(ours, "ttft_s")),
                e2e_p99=over_seeds(_by_seed(base, "e2e_s", "p99"), _by_seed(ours, "e2e_s", "p99")),
                over_none=over_seeds(_by_seed(without, "e2e_s"), _by_seed(ours, "e2e_s")),
                preemptions=float(np.mean([one.preemptions.mean() for one in ours])),
                recomputed=sum(int(one.recomputed_tokens.sum()) for one in ours) / tokens,
            )
        )
    return found


def _by_seed(outcomes: Sequence[Outcome], measure: str, statistic: str = "mean") -> list[float]:
    return [getattr(getattr(one.summary, measure), statistic) for one in outcomes]


def tables(found: TrailResult) -> list[Table]:
    """Errors of predictions, latency over c, and where preemption pays."""
    grid = found.grid
    return [
        _errors(found),
        *(_over_c(found, caching) for caching in (False, True)),
        _where(found),
        _paper_size(found.large, f"{grid.large:,} requests at {PAPER_RATE:g}/s, {SLOTS} slots"),
        _paper_size(
            found.memory,
            f"KV memory binds: {grid.kv_tokens:,} tokens, {grid.kv_slots} slots, {grid.large:,} requests",
        ),
    ]


Columns = list[tuple[str, Callable[[Cell], object]]]

_SRPT: Final[Columns] = [("predictions", lambda cell: cell.predictions), ("c", lambda cell: f"{cell.c:g}")]
_PRICE: Final[Columns] = [
    ("E2E, c = 0 / this", lambda cell: cell.over_none),
    ("p99 gain", lambda cell: f"{cell.e2e_p99.ratio:.3f}"),
    ("preempted", lambda cell: f"{cell.preemptions:.2f}"),
    ("recomputed", lambda cell: share(cell.recomputed)),
]


def _paper_size(cells: Sequence[Cell], title: str) -> Table:
    columns: Columns = [
        ("load", lambda cell: f"{cell.setting.load:.2f}"),
        ("prefix cache", lambda cell: "yes" if cell.setting.caching else "no"),
        *_SRPT,
        ("E2E gain", lambda cell: cell.e2e),
        ("TTFT gain", lambda cell: cell.ttft),
        *_PRICE,
    ]
    notes = [f"Gains over FCFS. The paper: E2E {PAPER_E2E_GAIN[0]:g} to {PAPER_E2E_GAIN[1]:g}, 10,000 prompts."]
    return table_of(title, cells, columns, notes, group=lambda cell: (cell.setting, cell.predictions))


def _cache(caching: bool) -> str:
    return "prefix cache" if caching else "no prefix cache"


def _errors(found: TrailResult) -> Table:
    base = found.errors[KINDS[0]]
    rows = [[kind, f"{error:.1f}", f"{base / error:.2f}" if error else "–"] for kind, error in found.errors.items()]
    notes = [
        (
            f"Mean absolute error over all tokens of all requests (first seed); {found.predictor} has tau "
            f"{found.tau:.3f} here. The paper's BERT has {PAPER_ERROR_RATIO:g} times its probe's error."
        ),
        (
            "A stand-in is not a probe: it is the true remaining length with log-normal noise of that "
            "error, read every "
            f"{EVERY} tokens, errors decaying over {REMEMBERS}. The shipped probe's error is the one on its card, of "
            "another LLM's answers: it is taken as a share of the prompt's."
        ),
    ]
    return Table("Remaining length: mean absolute error", ("predictions", "tokens", "prompt only / this"), rows, notes)


def _over_c(found: TrailResult, caching: bool) -> Table:
    cells = [cell for cell in found.over_c if cell.setting.caching == caching]
    setting, grid = cells[0].setting, found.grid
    columns: Columns = [
        *_SRPT,
        ("E2E", lambda cell: seconds(cell.e2e_s)),
        ("gain over FCFS", lambda cell: cell.e2e),
        ("TTFT", lambda cell: seconds(cell.ttft_s)),
        ("gain over FCFS", lambda cell: cell.ttft),
        *_PRICE,
    ]
    notes = [
        (
            f"{ENGINE}, {SLOTS} slots, {_cache(caching)}; answers of Llama-3.1-8B to {found.corpus} ({found.origin}) "
            f"cut at {MAX_TOKENS}; n {grid.requests:,} to drain, Poisson, {setting.rate:g} requests/s, load "
            f"{setting.load:.2f} of {setting.capacity_per_s:.3g}/s (FCFS, under backlog), {grid.seeds} seeds."
        ),
        "Gains: FCFS's mean over this policy's, paired, with 95 % intervals over seeds; above 1 is better.",
        (
            "preempted: times per request; recomputed: tokens computed again, over all tokens. Their time is part of "
            "every value."
        ),
    ]
    title = f"Over c at {setting.rate:g} requests/s, {_cache(caching)}"
    return table_of(title, cells, columns, notes, group=lambda cell: cell.predictions)


def _where(found: TrailResult) -> Table:
    return table_of(
        "Where preemption pays",
        list(zip(found.where[::2], found.where[1::2], strict=True)),
        [
            ("slots", lambda pair: pair[0].setting.slots),
            ("load", lambda pair: f"{pair[0].setting.load:.1f}"),
            ("prefix cache", lambda pair: "yes" if pair[0].setting.caching else "no"),
            ("E2E gain, c = 0", lambda pair: pair[0].e2e),
            (f"E2E gain, c = {PAPER_C:g}", lambda pair: pair[1].e2e),
            (f"E2E, c = 0 / c = {PAPER_C:g}", lambda pair: pair[1].over_none),
            ("TTFT gain, c = 0", lambda pair: f"{pair[0].ttft.ratio:.2f}"),
            (f"TTFT gain, c = {PAPER_C:g}", lambda pair: f"{pair[1].ttft.ratio:.2f}"),
            ("recomputed", lambda pair: share(pair[1].recomputed)),
        ],
        [f"Predictions: {found.predictor}, {AGE}. Loads are shares of each engine's capacity under backlog."],
        group=lambda pair: pair[0].setting.slots,
    )


def claims(found: TrailResult) -> list[Claim]:
    """Gains over FCFS at the poster's c, beside the least gain that the paper reports over its rates."""
    n, most = f"n = {found.grid.large:,}", max(found.grid.loads)
    full = [cell for cell in found.memory if math.isclose(cell.setting.load, most)]
    least, least_ttft = PAPER_E2E_GAIN[0], PAPER_TTFT_GAIN[0]
    rows = [
        (cell, "mean E2E", f"{cell.predictions}, {n}, {where}", least, cell.e2e)
        for where, cells in (("enough KV memory", found.large), ("KV memory binds", full))
        for cell in cells
        if cell.c in (0.0, PAPER_C)
    ]
    for cell in (cell for cell in found.over_c if cell.c == PAPER_C):
        rows.append((cell, "mean E2E", cell.predictions, least, cell.e2e))
        rows.append((cell, "mean TTFT", cell.predictions, least_ttft, cell.ttft))
    return [
        Claim(f"{what}, FCFS over srpt with c = {cell.c:g}, {where}", paper, ours, _cache(cell.setting.caching))
        for cell, what, where, paper, ours in rows
    ]


STUDY: Study[TrailGrid, TrailResult] = Study(
    name="trail",
    title="TRAIL: limited preemption",
    question="Does limited preemption pay, and at which c?",
    paper="TRAIL, arXiv 2410.01035",
    source="CASTILLO (Alpaca)",
    grid=TrailGrid(),
    quick=TrailGrid(
        seeds=2, requests=400, limits=(0.0, 0.8, 1.0), slots=(4, SLOTS), loads=(0.9,), large=2000, predictor="fast"
    ),
    minutes=(20, 0.3),
    serial=True,
    measure=measure,
    tables=tables,
    claims=claims,
    claim_notes=lambda _: [
        f"Paper: its least gain; the most is {PAPER_E2E_GAIN[1]:g} (E2E) and {PAPER_TTFT_GAIN[1]:g} (TTFT)."
    ],
)
