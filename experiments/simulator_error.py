"""How far is the simulator from measured runs: the same arrivals, prompts, lengths, policy and predictions.

The cost model is fitted on the logged steps of the setting's other cells, never on those of the cell it is compared
with; or it is an engine's file. Compared are mean, p50 and p99 of E2E latency, and the order of the policies.

With `draws`, measured requests are also simulated with other arrivals: how far a few repeats may be from the next ones.
Repeats on a real engine take half an hour each, and above capacity two draws of arrivals differ by more than the
requests of one. So the requests of each repeat, with their predictions, arrive in another order and at other times, on
the engine whose steps were measured. Every policy gets the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.study import Run, Study
from lengthwise.bench.evidence.plan import STOCK, Cell, predictor_label
from lengthwise.bench.evidence.store import Result, Store, under_load
from lengthwise.engines.fit import STALL, StepTimes, engine_spec, fit_cost
from lengthwise.engines.steps import EngineFacts, read_steps
from lengthwise.errors import InputError
from lengthwise.reports.tables import Table
from lengthwise.simulator import EngineSpec, Fleet, RequestPredictions, Spread, StepCost, simulate
from lengthwise.simulator.fleet import read_engine
from lengthwise.workloads import Workload
from lengthwise.workloads.arrivals import generator, poisson

Floats = NDArray[np.float64]


_FAR: Final = 1e9  # seconds: before the first step and after the last, both run at the same speed


@dataclass(frozen=True, eq=False)
class MachineTime:
    """Wall-clock times and the machine times they correspond to, both increasing.

    Machine time stops while a step stalls and runs ahead while one is quick: a step takes the time of the cost model,
    and between steps both clocks run at the same speed.
    """

    clock: Floats
    machine: Floats

    @classmethod
    def of(cls, log: pa.Table, cost: StepCost, last_end: float) -> Self:
        """From a log of steps; `last_end` is the wall-clock time at which its last step ended."""
        begin, took = log["start_s"].to_numpy(), log["seconds"].to_numpy()
        begin = begin - (begin[-1] + took[-1]) + last_end
        clock = np.stack([begin, begin + took], axis=1).ravel()
        passed = np.zeros(len(clock))
        passed[1::2] = StepTimes.of(log).at(cost)
        passed[2::2] = np.maximum(0.0, np.diff(clock)[1::2])
        machine = clock[0] + np.cumsum(passed)
        return cls(
            np.concatenate([[clock[0] - _FAR], clock, [clock[-1] + _FAR]]),
            np.concatenate([[machine[0] - _FAR], machine, [machine[-1] + _FAR]]),
        )

    def at(self, clock: Floats) -> Floats:
        """Machine time at a wall-clock time."""
        return np.interp(clock, self.clock, self.machine)

    def on_the_clock(self, machine: Floats) -> Floats:
        """The inverse of `at`."""
        return np.interp(machine, self.machine, self.clock)


MEAN_WITHIN, P99_WITHIN = 0.10, 0.20
"""Targets of the relative error."""


@dataclass(frozen=True, eq=False)
class Log:
    """The steps of one cell, and facts of its engine."""

    table: pa.Table
    facts: EngineFacts

    @cached_property
    def times(self) -> StepTimes:
        """Step times for the fit."""
        return StepTimes.of(self.table)


@dataclass(frozen=True)
class Comparison:
    """One measured cell and its simulation; E2E latency in seconds."""

    cell: str
    order: str
    """Policy and predictor."""
    load: str
    """Setting and load."""
    repeat: int
    measured: Spread
    simulated: Spread
    slower: float = math.nan
    """Step times of this cell over those of the fit, minus 1; NaN without a log."""
    paced: Spread | None = None
    """Simulated in machine time: every step is as slow or fast as the machine was at that moment. It uses the cell's
    steps and so predicts nothing; it separates the simulator's error from the machine's variation."""

    def error(self, figure: str, *, paced: bool = False) -> float:
        """Simulated over measured, minus 1; NaN where there is no simulation."""
        simulated = self.paced if paced else self.simulated
        return float(getattr(simulated, figure, math.nan) / getattr(self.measured, figure) - 1.0)


@dataclass(frozen=True)
class Swap:
    """Two policies that the simulator orders differently from the engine, by mean E2E latency."""

    load: str
    repeat: int
    faster: str
    """As measured."""
    slower: str
    difference: float
    """Measured: the slower over the faster, minus 1."""


def compare(
    store: Store, *, engine: EngineSpec | None = None, on_cell: Callable[[str, float], None] = lambda *_: None
) -> list[Comparison]:
    """Replay every measured cell; an InputError where there is none, or nothing to fit on."""
    results = store.results()
    if not results:
        raise InputError("holds no finished cell", source=store.folder, hint="run `lengthwise bench engine` first")
    settings = logged(store, results)
    found = []
    for number, result in enumerate(results):
        on_cell(result.cell.id, number / len(results))
        name, logs = result.cell.id, settings[result.cell.setting]
        others = {cell: log for cell, log in logs.items() if cell != name}
        spec = engine or replace(fitted(store, others, f"besides {name} "), max_num_seqs=int(result.told["slots"]))
        found.append(_compare(result, spec, logs.get(name)))
    return found


def logged(store: Store, results: Sequence[Result]) -> dict[str, dict[str, Log]]:
    """The logged steps of every cell, by setting: sampling differs between settings, and so does its time."""
    found: dict[str, dict[str, Log]] = {result.cell.setting: {} for result in results}
    for cell in (result.cell for result in results):
        path = store.place(cell) / "steps.parquet"
        if path.is_file():
            found[cell.setting][cell.id] = Log(*read_steps(path))
    return found


def fitted(store: Store, logs: Mapping[str, Log], but: str = "") -> EngineSpec:
    """The engine fitted on these steps; `but` names the cell that is left out, for the error message."""
    if not logs:
        hint = "measure a policy other than fcfs too, or give --set engine=FILE"
        raise InputError(f"no cell {but}has a log of steps to fit on", source=store.folder, hint=hint)
    paced = store.settings.get("at_once", 1) > 1  # paced engines make up for stalls: every step counts
    cost = fit_cost(StepTimes.joined([log.times for log in logs.values()]), math.inf if paced else STALL).cost
    return engine_spec("fitted", cost, next(iter(logs.values())).facts)


def policy_label(cell: Cell) -> str:
    """Policy and predictor."""
    return "fcfs (stock)" if cell.stock else f"{cell.policy}, {predictor_label(cell.predictor)}"


def load_label(cell: Cell) -> str:
    """Setting and load."""
    return f"({cell.setting}) " + ("offline" if cell.load is None else f"load {cell.load:g}")


def _compare(result: Result, spec: EngineSpec, log: Log | None) -> Comparison:
    cell = result.cell
    workload, predicted = replayed(result)
    simulated = simulate(workload, Fleet((spec,)), cell.policy, predictor=predicted).summary.e2e_s
    found = Comparison(cell.id, policy_label(cell), load_label(cell), cell.repeat, Spread.of(result.e2e_s), simulated)
    if log is None or not isinstance(spec.cost, StepCost):
        return found
    times = log.times
    slower = float(times.seconds.sum() / times.at(spec.cost).sum()) - 1.0
    sent = result.column("sent_s")
    last = float(np.nanmax(result.column("finished_s")) - np.nanmin(sent))  # the first is sent at 0
    time = MachineTime.of(log.table, spec.cost, last)
    arrival = time.at(workload.arrival_s)
    moved = workload.replace(arrival_s=arrival - arrival[0])
    outcome = simulate(moved, Fleet((spec,)), cell.policy, predictor=predicted)
    finish = time.on_the_clock(outcome.finish + arrival[0])
    return replace(found, slower=slower, paced=Spread.of(finish - workload.arrival_s))


def replayed(result: Result) -> tuple[Workload, RequestPredictions]:
    """The cell's requests as sent and answered, with their predictions on arrival.

    Failed requests are left out. The engine's online learning is not reproduced.
    """
    missing = [name for name in ("prompt_tokens", "prediction_mu") if name not in result.requests.column_names]
    if missing or "cap" not in result.told:
        raise InputError("was measured by an earlier version", source=result.cell.id, hint="measure it again")
    answered = np.flatnonzero(~np.isnan(result.e2e_s))
    rows = answered[np.argsort(result.column("sent_s")[answered], kind="stable")]
    sent = result.column("sent_s")[rows]
    lengths, caps = result.column("output_tokens")[rows], np.full(len(rows), float(result.told["cap"]))
    workload = Workload.from_table(
        {
            "arrival_s": sent - (sent[0] if len(sent) else 0.0),
            "input_tokens": result.column("prompt_tokens")[rows].astype(np.int64),
            "output_tokens": lengths.astype(np.int64),
            "max_tokens": caps.astype(np.int64),
        },
        name=result.cell.id,
    )
    mu, sigma = (result.column(name)[rows] for name in ("prediction_mu", "prediction_sigma"))
    one_llm = np.full(len(rows), "", dtype=object)
    return workload, RequestPredictions(result.cell.predictor, mu, sigma, caps, one_llm, lengths)


def swaps(found: Sequence[Comparison]) -> list[Swap]:
    """Every pair of policies under the same traffic that the simulator orders differently."""
    pairs = []
    for one, other in combinations(found, 2):
        if (one.load, one.repeat) != (other.load, other.repeat):
            continue
        first, second = sorted((one, other), key=lambda each: each.measured.mean)
        if first.simulated.mean > second.simulated.mean:
            difference = second.measured.mean / first.measured.mean - 1.0
            pairs.append(Swap(one.load, one.repeat, first.order, second.order, difference))
    return sorted(pairs, key=lambda pair: -pair.difference)


@dataclass(frozen=True)
class DrawnRatios:
    """Ratios of a policy's latencies to FCFS's, simulated draw by draw, and as measured."""

    load: str
    order: str
    mean: Sequence[float]
    per_token: Sequence[float]
    p99: Sequence[float]
    measured: Sequence[tuple[float, float, float]]
    """Mean, per token and p99 in each measured repeat."""


def draw_again(
    store: Store,
    draws: int,
    *,
    seed: int = 0,
    engine: EngineSpec | None = None,
    on_draw: Callable[[str, float], None] = lambda *_: None,
) -> list[DrawnRatios]:
    """Draw arrivals for each policy that was measured under a load beside stock vLLM."""
    if draws < 1:
        raise InputError(f"{draws} draws", field="draws", hint="give at least 1")
    results = store.results()
    groups = under_load(results)
    logs = logged(store, results)
    specs = {setting: engine or fitted(store, logs[setting]) for setting in {setting for setting, _ in groups}}
    found = []
    for place, ((setting, _), orders) in enumerate(sorted(groups.items())):
        stock = next((runs for (policy, _), runs in orders.items() if policy == STOCK), {})
        base: dict[tuple[int, int], Floats] = {}
        for (policy, _), runs in orders.items():
            pairs = {r: run for r, run in runs.items() if r in stock and len(run.requests) == len(stock[r].requests)}
            if policy != STOCK and pairs:
                on_draw(next(iter(pairs.values())).cell.id, place / len(groups))
                found.append(_order_ratios(pairs, stock, base, range(draws), seed, specs[setting]))
    if not found:
        hint = "measure one with `lengthwise bench engine` first"
        raise InputError("holds no policy beside stock vLLM under a load", source=store.folder, hint=hint)
    return found


def _order_ratios(
    runs: Mapping[int, Result],
    stock: Mapping[int, Result],
    base: dict[tuple[int, int], Floats],
    draws: Sequence[int],
    seed: int,
    spec: EngineSpec,
) -> DrawnRatios:
    """One policy; `base` caches FCFS's latencies of each repeat and draw."""
    repeats = sorted(runs)
    ratios = []
    for draw in draws:
        repeat = repeats[draw % len(repeats)]
        if (repeat, draw) not in base:
            base[repeat, draw] = _simulated(stock[repeat], draw, seed, spec)
        ratios.append(_ratios(_simulated(runs[repeat], draw, seed, spec), base[repeat, draw]))
    measured = [_ratios(*(np.stack([run.e2e_s, run.per_token_s]) for run in (runs[r], stock[r]))) for r in repeats]
    cell = runs[repeats[0]].cell
    mean, per_token, p99 = zip(*ratios, strict=True)
    return DrawnRatios(load_label(cell), policy_label(cell), mean, per_token, p99, measured)


def _simulated(result: Result, draw: int, seed: int, spec: EngineSpec) -> Floats:
    """E2E and per-token latencies of a cell's requests with the arrivals of a draw."""
    workload, predicted = replayed(result)
    rng = generator(seed, f"draw {draw}")
    rows = rng.permutation(len(workload))
    arrival = poisson(len(workload), float(result.told["rate"]), rng)
    again = workload.take(rows, arrival_s=arrival)
    outcome = simulate(again, Fleet((spec,)), result.cell.policy, predictor=predicted.take(rows))
    e2e = outcome.finish - outcome.arrival
    return np.stack([e2e, e2e / outcome.output_tokens])


def _ratios(ours: Floats, base: Floats) -> tuple[float, float, float]:
    """Ratios of mean E2E, mean per-token latency and p99 E2E; failed requests are left out."""
    mean, per_token = np.nanmean(ours, axis=1) / np.nanmean(base, axis=1)
    return float(mean), float(per_token), float(np.nanquantile(ours[0], 0.99) / np.nanquantile(base[0], 0.99))


_FIGURES: Final = ("mean", "p50", "p99")
_RANGE: Final = (0.025, 0.5, 0.975)


def comparison_tables(found: Sequence[Comparison]) -> list[Table]:
    """Statistics and their errors, then where the order of policies differs."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for one in sorted(found, key=lambda each: (each.load, each.order)):
        groups.setdefault((one.load, one.order), []).append(one)
    columns = ["load", "order", "repeats"]
    for figure in _FIGURES:
        columns += [f"{figure}, s", "simulated", "error"]
    columns += ["machine", *(f"{figure} paced" for figure in _FIGURES)]
    begins = [place for place, (load, _) in enumerate(groups) if place and load != list(groups)[place - 1][0]]
    table = Table(
        "E2E latency, measured and simulated",
        columns,
        [[load, order, *_row(cells)] for (load, order), cells in groups.items()],
        [
            _met(found),
            "machine: its step times over those of the fit, minus 1",
            "paced: the remaining error in machine time, which uses the steps of the run itself and predicts nothing",
        ],
        frozenset(begins),
    )
    return [table, _order_table(found)]


def comparison_facts(found: Sequence[Comparison], drawn: Sequence[DrawnRatios] = ()) -> dict[str, Any]:
    """Everything that the tables show, for JSON."""
    return {
        "draws": drawn,
        "cells": [{"cell": one, "errors": {name: one.error(name) for name in _FIGURES}} for one in found],
        "swaps": swaps(found),
        "within": {"mean": MEAN_WITHIN, "p99": P99_WITHIN},
    }


def draws_table(drawn: Sequence[DrawnRatios]) -> Table:
    """Each policy over draws of arrivals: median and 95 % range, beside the measured ratios."""
    rows = [
        [one.load, one.order, str(len(one.mean)), *_ranges(one), str(len(one.measured)), *_middles(one)]
        for one in sorted(drawn, key=lambda each: (each.load, each.order))
    ]
    columns = ["load", "order", "draws", "mean E2E", "per token", "p99 / FCFS"]
    notes = [
        "mean E2E, per token: times better than FCFS; median of all draws, in brackets the central 95 %",
        "measured: the median of the repeats on the engine",
    ]
    measured = ["repeats", "measured: mean E2E", "per token", "p99 / FCFS"]
    return Table("The same requests with other arrivals, simulated", [*columns, *measured], rows, notes)


def _ranges(one: DrawnRatios) -> list[str]:
    def better(ratios: Sequence[float]) -> str:
        low, middle, high = np.quantile(1.0 / np.asarray(ratios), _RANGE)
        return f"{middle:.2f}x [{low:.2f}, {high:.2f}]"

    low, middle, high = np.quantile(one.p99, _RANGE)
    return [better(one.mean), better(one.per_token), f"{middle:.2f} [{low:.2f}, {high:.2f}]"]


def _middles(one: DrawnRatios) -> list[str]:
    mean, per_token, p99 = np.median(np.array(one.measured), axis=0)
    return [f"{1 / mean:.2f}x", f"{1 / per_token:.2f}x", f"{p99:.2f}"]


def _row(cells: Sequence[Comparison]) -> list[str]:
    texts = [str(len(cells))]
    for figure in _FIGURES:
        measured, simulated = (
            float(np.mean([getattr(getattr(one, side), figure) for one in cells])) for side in ("measured", "simulated")
        )
        texts += [f"{measured:.3g}", f"{simulated:.3g}", f"{simulated / measured - 1:+.1%}"]
    paced = [one for one in cells if one.paced is not None]
    if not paced:
        return [*texts, *"––––"]
    left = (np.mean([one.error(figure, paced=True) for one in paced]) for figure in _FIGURES)
    return [*texts, f"{np.mean([one.slower for one in paced]):+.1%}", *(f"{error:+.1%}" for error in left)]


def _met(found: Sequence[Comparison]) -> str:
    mean = sum(abs(one.error("mean")) <= MEAN_WITHIN for one in found)
    p99 = sum(abs(one.error("p99")) <= P99_WITHIN for one in found)
    of = f"of {len(found)} cells"
    return f"{of}, the mean is within {MEAN_WITHIN:.0%} in {mean}, the p99 within {P99_WITHIN:.0%} in {p99}"


def _order_table(found: Sequence[Comparison]) -> Table:
    """Pairs of policies that the simulator orders differently."""
    pairs = swaps(found)
    traffics = {(one.load, one.repeat) for one in found}
    rows = [
        [f"{pair.load}, repeat {pair.repeat}", pair.faster, pair.slower, f"{pair.difference:.1%}"] for pair in pairs
    ]
    summary = (
        "in all other pairs it agrees" if pairs else "the order of policies by mean E2E latency is the same in all"
    )
    return Table(
        "Pairs that the simulator orders differently",
        ["traffic", "faster, measured", "slower, measured", "difference"],
        rows,
        [f"{summary} ({len(traffics)} traffics)"],
    )


@dataclass(frozen=True)
class SimulatorErrorGrid:
    """The measured runs and how they are simulated."""

    results: Path = Path("out/evidence")
    """The folder of results of `lengthwise bench engine`."""
    engine: Path | None = None
    """An engine's file, instead of a fit on the other cells' steps."""
    draws: int = 0
    """Other draws of arrivals to simulate, beside the measured ones."""


@dataclass(frozen=True)
class SimulatorErrorResult:
    """Every measured cell beside its simulation, and other draws of arrivals."""

    comparisons: Sequence[Comparison]
    drawn: Sequence[DrawnRatios]


def measure(run: Run, grid: SimulatorErrorGrid) -> SimulatorErrorResult:
    """Replay every measured cell in the simulator."""
    spec = None if grid.engine is None else read_engine(grid.engine)
    store = Store(grid.results)
    found = compare(store, engine=spec, on_cell=run.part(0.0, 0.5 if grid.draws else 1.0))
    drawn = draw_again(store, grid.draws, engine=spec, on_draw=run.part(0.5, 1.0)) if grid.draws else []
    return SimulatorErrorResult(found, drawn)


def _needs(grid: SimulatorErrorGrid) -> str | None:
    if grid.results.is_dir():
        return None
    return f"needs measured runs in {grid.results}: `lengthwise bench engine`, or --set results=FOLDER"


STUDY: Study[SimulatorErrorGrid, SimulatorErrorResult] = Study(
    name="simulator_error",
    title="E2E latency, measured and simulated",
    question="How far is the simulator from measured runs on a real engine?",
    source="results of `lengthwise bench engine`",
    grid=SimulatorErrorGrid(draws=40),
    quick=SimulatorErrorGrid(),
    minutes=(10, 1),
    measure=measure,
    tables=lambda found: [*comparison_tables(found.comparisons), *([draws_table(found.drawn)] if found.drawn else [])],
    facts=lambda found: comparison_facts(found.comparisons, found.drawn),
    needs=_needs,
)
