"""When does it pay to run prefill and decode on separate engines?

Disaggregated serving (Splitwise-like, as the length-aware extension of Preble proposes) against mixed engines, on the
same fleet, arrivals, lengths and predictions: once with every engine doing both, once for each way to split the fleet.
The router `lengthwise` chooses the engine, in a split fleet once per pool; engines serve in order of arrival. Load is
relative to the capacity of the mixed fleet. Then: the value of a better prediction at the end of prefill, with a
probe's measured error on the traces, and with the hidden states themselves on held-out prompts of the probe's own LLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.study import Call, Run, SeededGrid, Study, sections
from lengthwise.errors import InputError
from lengthwise.files import data_folder, data_home, read_parquet_table
from lengthwise.intervals import Ratio
from lengthwise.predictors.probe import DEFAULT, load_probe, log_bins, of_prediction
from lengthwise.reports.runs import NAMES
from lengthwise.reports.tables import Table, multiple, seconds
from lengthwise.simulator import (
    Capacity,
    Fleet,
    KvLink,
    Outcome,
    Pools,
    RequestPredictions,
    measure_capacity,
    predict_workload,
    simulate,
)
from lengthwise.simulator.cluster import at_rate
from lengthwise.simulator.grid import Metric, Statistic
from lengthwise.simulator.tasks import SeedResults
from lengthwise.training.probe.errors_by_age import read_states_with
from lengthwise.training.probe.states import TABLES, read_states
from lengthwise.workloads import Workload, castillo_workload, load_castillo, load_trace, redraw
from lengthwise.workloads.arrivals import gamma, generator
from lengthwise.workloads.generators import DiscreteLengths, react_workload
from lengthwise.workloads.traces import find_trace

PROBED: Final = "smollm2"
"""The case with hidden states."""
PROMPT: Final = "default"
"""What predicts there from the prompt."""
CASES: Final = ("react", "mooncake", "azure", "castillo", PROBED)
LLM: Final = "llama-3.1-8b"
LENGTHS: Final = DiscreteLengths((1, 300), (0.5, 0.5))
"""Lengths of ReAct's answers: the variance-maximising ones of length-aware Preble."""
_TRACES: Final = {"mooncake": ("mooncake_conversation",), "azure": ("azure2023_conv", "azure_sample")}


def trace_name(case: str) -> str | None:
    """The largest available trace of a workload, its own name if it is not of a trace; None: no trace is available."""
    if case == PROBED:
        there = find_spec("torch") is not None and (home := data_home()) is not None and (home / PROBED).is_dir()
        return PROBED if there else None
    names = _TRACES.get(case)
    return case if names is None else next((name for name in names if find_trace(name).path is not None), None)


@lru_cache(maxsize=8)
def draw(case: str, requests: int, seed: int) -> Workload:
    """Requests in random order with Poisson arrivals, at one per second."""
    if case == "react":
        return react_workload(requests=requests, rate=1.0, lengths=LENGTHS, seed=seed)
    if case == PROBED:
        rows = _held_out_rows(requests, seed)
        return _held_out()[0].take(rows, arrival_s=gamma(requests, 1.0, 1.0, generator(seed, "arrivals")))
    if case == "castillo":
        return castillo_workload(load_castillo(split="test"), LLM, requests=requests, rate=1.0, seed=seed)
    return redraw(_loaded(trace_name(case) or case), requests=requests, rate=1.0, seed=seed)


Floats = NDArray[np.float64]


@lru_cache(maxsize=1)
def _held_out() -> tuple[Workload, dict[str, RequestPredictions], Floats]:
    """Held-out prompts whose hidden state after prefill is known, what the prompt predicts and what a probe reads.

    The packaged probe is for answers with a frequency penalty, which these have not: one is trained on the others. The
    first state of a long answer is less often among those collected; the last value is the share of each to draw.
    """
    from lengthwise.training.probe.learn import ProbeRecipe, train_probe  # torch

    folder, llm = data_folder(PROBED, None, "needs the states of SmolLM2"), load_probe(DEFAULT).llm
    states = read_states(folder, PROMPT, llm)
    trained = train_probe(
        states, log_bins(states.cap), llm, recipe=ProbeRecipe(), name=PROBED, report=lambda _what, _done: None
    )
    rows = states.tested & (states.generated == 0)
    probe, first, share = trained.probe, trained.correction.of(states.where(rows)), states.weight[rows]
    prompt_tokens = read_parquet_table(folder / TABLES[1])["prompt_tokens"].to_numpy()[first.answer]
    workload = Workload.from_table(
        {"arrival_s": np.zeros(len(first)), "input_tokens": prompt_tokens, "output_tokens": first.remaining},
        name=PROBED,
    )
    mass = probe.smoothing.rows(
        probe.bins, read_states_with(probe, first), first.prior(probe.bins), first.answer, first.generated
    )
    read = [of_prediction(probe.prediction(row, first.cap)) for row in mass]
    known = predict_workload(workload, "oracle")
    caps = np.full(len(first), float(first.cap))
    predicted = {
        PROMPT: replace(known, predictor=PROMPT, mu=first.mu, sigma=first.sigma, cap=caps),
        "probe": replace(
            known, predictor="probe", **dict(zip(("mu", "sigma"), np.array(read).T, strict=True)), cap=caps
        ),
    }
    return workload, predicted, share / share.sum()


def _held_out_rows(requests: int, seed: int) -> NDArray[np.int64]:
    workload, _, share = _held_out()
    return generator(seed, "prompts").choice(len(workload), requests, p=share)


@lru_cache(maxsize=2)
def _loaded(name: str) -> Workload:
    return load_trace(name)


POLICY: Final = "fcfs"
ROUTER: Final = "lengthwise"


@dataclass(frozen=True, slots=True)
class FleetTask:
    """One simulation: a workload at a load, on a fleet with `prefill` engines for prompts only (0: all do both)."""

    case: str
    requests: int
    seed: int
    fleet: str
    load: float
    prefill: int = 0
    gb_per_s: float = KvLink().gb_per_s
    predictor: str = "oracle"
    refresh: str | None = None


def fleet_run(task: FleetTask) -> dict[str, Any]:
    """Return capacity, the summary of the run, and the transfer between pools."""
    drawn = (task.case, task.requests, task.seed)
    fleet, capacity = Fleet.parse(task.fleet), _capacity(*drawn, task.fleet)
    pools = Pools(task.prefill, len(fleet) - task.prefill, KvLink(task.gb_per_s)) if task.prefill else None
    outcome = simulate(
        at_rate(draw(*drawn), task.load * capacity.requests_per_s),
        fleet,
        POLICY,
        router=ROUTER,
        predictor=_predicted(*drawn, task.predictor),
        pools=pools,
        refresh=None if task.refresh is None else _predicted(*drawn, task.refresh),
    )
    return {
        "capacity_per_s": capacity.requests_per_s,
        "steady": capacity.steady,
        **outcome.summary.to_dict(),
        **_between(outcome),
    }


def _between(outcome: Outcome) -> dict[str, float | None]:
    """Means over transferred requests: seconds of transfer, and until admission."""
    handover = outcome.handover
    if handover is None or not (moved := handover.engine >= 0).any():
        return {"transfer_s": None, "memory_s": None}
    return {
        "transfer_s": float(np.mean((handover.arrived - outcome.first_token_s)[moved])),
        "memory_s": float(np.mean((handover.started - handover.arrived)[moved])),
    }


@lru_cache(maxsize=64)
def _capacity(case: str, requests: int, seed: int, fleet: str) -> Capacity:
    return measure_capacity(draw(case, requests, seed), Fleet.parse(fleet))


@lru_cache(maxsize=16)
def _predicted(case: str, requests: int, seed: int, predictor: str) -> RequestPredictions:
    if case == PROBED and predictor in (found := _held_out()[1]):
        return found[predictor].take(_held_out_rows(requests, seed))
    return predict_workload(draw(case, requests, seed), predictor, seed=seed)


What = tuple[Metric, Statistic]
"""A statistic of a latency."""

ENGINE: Final = "llama-3-8b@a100"
FIGURES: Final[tuple[What, ...]] = (
    ("ttft_s", "mean"),
    ("ttft_s", "p99"),
    ("tpot_s", "mean"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
    ("per_token_s", "p99"),
)
FIRST: Final = "noisy:0.6"
"""The prediction before prefill, where the value of a better one after prefill is measured."""
REFRESHED: Final = ("probe", "noisy:0.8", "oracle")
REFRESHED_LOAD: Final = 0.9


@dataclass(frozen=True)
class DisaggregationGrid(SeededGrid):
    """What is simulated. `prefills`: engines that compute prompts, of `engines` in all."""

    seeds: int = 5
    requests: int = 4200
    engines: int = 8
    loads: tuple[float, ...] = (0.5, 0.7, 0.9, 1.1)
    prefills: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    gb_per_s: float = KvLink().gb_per_s
    """Bandwidth at which an engine sends or receives KV."""
    cases: tuple[str, ...] = CASES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.requests < 1:
            raise InputError(f"{self.requests} requests", field="requests", hint="give at least 1")

    @property
    def fleet(self) -> str:
        """As `Fleet.parse` reads it."""
        return f"{self.engines}*{ENGINE}"


@dataclass(frozen=True)
class Arrangement(SeedResults):
    """One workload at one load, engines mixed (`prefill` 0) or split.

    `ratios` are over the mixed fleet, or, with a refreshed prediction, over the same split without: below 1 is better.
    """

    case: str
    load: float
    prefill: int
    refresh: str | None
    ratios: dict[What, Ratio]


@dataclass(frozen=True)
class DisaggregationResult:
    """Everything measured. `sources`: the trace of each workload."""

    grid: DisaggregationGrid
    slots: int
    sources: dict[str, str]
    split: tuple[Arrangement, ...]
    refreshed: tuple[Arrangement, ...]

    def of(self, case: str, load: float) -> list[Arrangement]:
        """The mixed fleet, then the split ones."""
        return [one for one in self.split if (one.case, one.load) == (case, load)]

    def best(self, case: str, load: float, what: What) -> Arrangement:
        """The split with the lowest ratio of a statistic."""
        return min(self.of(case, load)[1:], key=lambda one: one.ratios[what].ratio)


def measure(run: Run, grid: DisaggregationGrid) -> DisaggregationResult:
    """Run everything that the cache does not have."""
    sources = {case: name for case in grid.cases if (name := trace_name(case)) is not None}
    for case in grid.cases:
        if case not in sources:
            run.note(f"LENGTHWISE_DATA does not hold {case}'s trace; it is left out")
    if trace_name("azure") == "azure_sample":
        run.note("LENGTHWISE_DATA does not hold Azure's trace; using the sample that ships with the package")
    first = [FleetTask(case, grid.requests, 0, grid.fleet, load) for case in sources for load in grid.loads]
    plain = [replace(one, prefill=n, gb_per_s=grid.gb_per_s) for one in first for n in (0, *grid.prefills)]
    split = _arranged(run, "mixed and split", plain, grid.seeds, lambda one: replace(one, prefill=0))
    found = DisaggregationResult(grid, Fleet.parse(grid.fleet).slots, sources, split, ())
    load = min(grid.loads, key=lambda value: abs(value - REFRESHED_LOAD))
    settings = [
        replace(
            one,
            predictor=PROMPT if one.case == PROBED else FIRST,
            prefill=found.best(one.case, load, ("e2e_s", "mean")).prefill,
            gb_per_s=grid.gb_per_s,
        )
        for one in first
        if one.load == load and one.case != "react"  # its lengths are drawn at random: no prediction helps
    ]
    refreshes = [replace(one, refresh=name) for one in settings for name in (None, *REFRESHED)]
    refreshed = _arranged(run, "refreshed predictions", refreshes, grid.seeds, lambda one: replace(one, refresh=None))
    return replace(found, refreshed=refreshed)


def _arranged(
    run: Run, what: str, tasks: Sequence[FleetTask], seeds: int, base: Callable[[FleetTask], FleetTask]
) -> tuple[Arrangement, ...]:
    """Every arrangement over all seeds, with ratios over its baseline, which is one of them."""
    results = run.by_seed(what, tasks, seeds, lambda task, seed: Call(fleet_run, (replace(task, seed=seed),)))
    found = {task: SeedResults(seeds=each) for task, each in results.items()}
    return tuple(
        Arrangement(
            task.case,
            task.load,
            task.prefill,
            task.refresh,
            {figure: each.over(found[base(task)], *figure) for figure in FIGURES},
            seeds=each.seeds,
        )
        for task, each in found.items()
    )


_CHOSEN_BY: Final[What] = ("e2e_s", "mean")
_TITLES: Final = {(measure, statistic): f"{NAMES[measure]} {statistic}" for measure, statistic in FIGURES}


def tables(found: DisaggregationResult) -> list[Table]:
    """When a split pays, every arrangement of every workload, and the value of refreshed predictions."""
    return [_verdicts(found), *(_case(found, case) for case in found.sources), _refreshed(found)]


def verdict(ratio: Ratio) -> str:
    """Whether a split pays, by its interval over seeds."""
    if math.isnan(ratio.ratio):
        return "unknown"
    return "pays" if ratio.high < 1 else "costs" if ratio.low > 1 else "even"


def _verdicts(found: DisaggregationResult) -> Table:
    """Every statistic at the split with the least mean E2E."""
    rows = []
    for case in found.sources:
        for load in found.grid.loads:
            best = found.best(case, load, _CHOSEN_BY)
            split = _split_name(found, best)
            cells = [f"{split} {verdict(best.ratios[what])} {best.ratios[what].ratio:.2f}" for what in FIGURES]
            rows.append([f"{case} {load:.1f}", *cells])
    how = (
        "Of the splits, prefill:decode, the one with the least mean E2E, and its multiples of the mixed fleet's; "
        "it pays where the whole 95 % interval is below 1, costs where it is above, else it is even. "
        "The best of several splits is a slightly optimistic estimate."
    )
    title, columns = "When separate prefill and decode engines pay", ("workload, load", *_TITLES.values())
    return Table(title, columns, rows, [how, _note(found)], sections(rows, lambda row: row[0].split()[0]))


def _case(found: DisaggregationResult, case: str) -> Table:
    times = (("ttft_s", "mean"), ("e2e_s", "mean"), ("transfer_s",), ("memory_s",))
    rows = [
        [
            f"{load:.1f} {_split_name(found, one)}",
            *(seconds(one.mean(*path)) for path in times),
            *(multiple(one.ratios[what]) for what in FIGURES),
        ]
        for load in found.grid.loads
        for one in found.of(case, load)
    ]
    capacity = found.of(case, found.grid.loads[0])[0]
    steady = "" if all(run["steady"] for run in capacity.seeds) else ", a lower bound"
    how = (
        "Transfer: from the first token until all KV has arrived. Memory: from there to admission. The "
        "mixed fleet serves "
        f"{capacity.mean('capacity_per_s'):.3g} requests/s (FCFS, round robin, under backlog{steady})."
    )
    columns = ("load", "TTFT", "E2E", "transfer", "memory", *_TITLES.values())
    title = f"{found.sources[case]} on {found.grid.fleet}: seconds, and multiples of the mixed fleet"
    return Table(title, columns, rows, [how, _note(found)], sections(rows, lambda row: row[0].split()[0]))


def _refreshed(found: DisaggregationResult) -> Table:
    rows = [
        [
            f"{one.case} {one.load:.1f} {_split_name(found, one)}",
            one.refresh or "kept",
            *(multiple(one.ratios[what]) for what in FIGURES),
        ]
        for one in found.refreshed
    ]
    how = (
        f"Over the same split with {FIRST} throughout; the decode pool's router uses the refreshed prediction. `probe` "
        "has the error of the packaged probe's first reading, as a trace has no hidden states. The held-out prompts of "
        f"{PROBED} have them: its first prediction is the prompt's, by {PROMPT}, recalibrated, and `probe` is what a "
        "probe reads that was trained on other prompts."
    )
    columns = ("workload, load, split", "predicted after prefill", *_TITLES.values())
    return Table("A prediction refreshed at the end of prefill", columns, rows, [how, _note(found)])


def _note(found: DisaggregationResult) -> str:
    grid = found.grid
    return (
        f"{POLICY} inside engines, router {ROUTER} for each pool, KV over {found.grid.gb_per_s:g} GB/s and "
        f"{seconds(KvLink().latency_s)}; load is of the mixed fleet's capacity; n {grid.requests:,}, "
        f"slots {found.slots:,}, {grid.seeds} seeds from 0, paired, 95 % intervals, run to drain."
    )


def _split_name(found: DisaggregationResult, one: Arrangement) -> str:
    return f"{one.prefill}:{found.grid.engines - one.prefill}" if one.prefill else "mixed"


def answer(found: DisaggregationResult) -> str:
    """Where the split with the least mean E2E pays, and where it costs."""
    words = {"pays": "pays", "costs": "costs", "even": "makes no difference beyond noise", "unknown": "is not measured"}
    places: dict[str, list[str]] = {}
    for case in found.sources:
        for load in found.grid.loads:
            kind = verdict(found.best(case, load, _CHOSEN_BY).ratios[_CHOSEN_BY])
            places.setdefault(kind, []).append(f"{case} at {load:g}")
    parts = [f"{words[kind]} for {', '.join(places[kind])}" for kind in words if kind in places]
    return f"By mean E2E, the best split {'; '.join(parts)} of the mixed fleet's capacity."


STUDY: Study[DisaggregationGrid, DisaggregationResult] = Study(
    name="disaggregation",
    title="Prefill and decode on separate engines",
    question="When does it pay to run prefill and decode on separate engines?",
    source="ReAct, Mooncake, Azure, CASTILLO, hidden states",
    grid=DisaggregationGrid(),
    quick=DisaggregationGrid(seeds=2, requests=300, loads=(0.9,), prefills=(2, 4)),
    minutes=(90, 0.3),
    measure=measure,
    tables=tables,
    answer=answer,
)
