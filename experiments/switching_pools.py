"""Do pools that change with the predicted load beat the best fixed ratio of prefill to decode engines?

Length-aware Preble (section 4) proposes to move resources between prefill and decode by predicted lengths. The load
changes as it did on the traces' own clock: requests of some minutes, drawn again with their times, moved by a few
seconds, as many as give the stated load. Engines that change pools start at half and half, against every fixed split,
the best of which is picked in hindsight, and against engines that do both; with true lengths, with predictions of tau
0.6, refreshed or not by a probe's first reading, with the mean of earlier answers (`history`), and without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from experiments.disaggregation import FIRST, LLM, POLICY, ROUTER, verdict
from experiments.study import Call, Run, SeededGrid, Study, sections
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio
from lengthwise.reports.runs import NAMES
from lengthwise.reports.tables import Table, multiple, seconds, share
from lengthwise.simulator import (
    Capacity,
    Fleet,
    Pools,
    RequestPredictions,
    measure_capacity,
    predict_workload,
    simulate,
)
from lengthwise.simulator.grid import Metric, Statistic
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.switching import Switching
from lengthwise.simulator.tasks import SeedResults
from lengthwise.workloads import Workload, castillo_workload, load_castillo, load_trace, redraw
from lengthwise.workloads.arrivals import generator, rescale
from lengthwise.workloads.traces import find_trace

TRACES: Final = {
    "azure conversation": ("azure2023_conv",),
    "azure code": ("azure2023_code",),
    "azure both": ("azure2023_conv", "azure2023_code"),
    "mooncake": ("mooncake_conversation",),
}
CASTILLO: Final = "castillo"
"""It has no clock: Poisson arrivals."""
CASES: Final = (*TRACES, CASTILLO)
ENGINE: Final = "llama-3-8b@a100"
LIMITS: Final = LatencyLimits(ttft_s=1.0, tpot_s=0.05)
"""Of goodput."""
CAPACITY_OF: Final = 4200
"""Requests, drawn from the same minutes, of the backlog whose rate is the capacity."""
_MOVED_S: Final = 5.0  # at most, either way: the traces' clocks are coarse, and requests are drawn again
SWITCHING: Final = Switching()
PREDICTIONS: Final = ((FIRST, None), (FIRST, "probe"), ("history", None), ("none", None))
"""Before and after prefill, beside true lengths."""

What = tuple[Metric, Statistic]
FIGURES: Final[tuple[What, ...]] = (
    ("ttft_s", "mean"),
    ("ttft_s", "p99"),
    ("tpot_s", "mean"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
    ("per_token_s", "p99"),
)
_CHOSEN_BY: Final[What] = ("e2e_s", "mean")
_GOODPUT: Final = "goodput_per_s"


@dataclass(frozen=True, slots=True)
class PoolTask:
    """One simulation. `prefill` engines compute prompts, at first if engines change pools; 0: all do both."""

    case: str
    seconds: float
    engines: int
    load: float
    prefill: int
    switching: Switching | None = None
    predictor: str = "oracle"
    refresh: str | None = None
    seed: int = 0


@lru_cache(maxsize=4)
def _loaded(name: str) -> Workload:
    return load_trace(name)


def minutes_of(case: str, length_s: float, seed: int) -> Workload:
    """The requests of `length_s` seconds of a case's traces, from a random moment on."""
    traces = [_loaded(name) for name in TRACES[case]]
    ends = min(float(trace.arrival_s[-1]) for trace in traces)
    begin = generator(seed, "window").uniform(0.0, max(0.0, ends - length_s))
    parts = []
    for trace in traces:
        inside = np.flatnonzero((trace.arrival_s >= begin) & (trace.arrival_s < begin + length_s))
        parts.append(trace.take(inside, arrival_s=trace.arrival_s[inside] - begin))
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables([part.table for part in parts]).sort_by("arrival_s")
    return Workload.from_table(table, name=case)


@lru_cache(maxsize=4)
def draw(case: str, length_s: float, engines: int, load: float, seed: int) -> Workload:
    """Requests at a load of the mixed fleet's capacity, on the traces' own clock.

    Those of a trace with prefixes are not drawn again, which would repeat prefixes, but moved closer or apart.
    """
    rate = load * _capacity(case, length_s, engines, seed).requests_per_s
    if case == CASTILLO:
        count = max(1, round(rate * length_s))
        return castillo_workload(load_castillo(split="test"), LLM, requests=count, rate=rate, seed=seed)
    inside = minutes_of(case, length_s, seed)
    if inside.has_blocks:
        return rescale(inside, rate)
    rng = generator(seed, "again")
    rows = rng.integers(len(inside), size=max(1, round(rate * length_s)))
    moved = np.abs(inside.arrival_s[rows] + rng.uniform(-_MOVED_S, _MOVED_S, len(rows)))
    order = np.argsort(moved, kind="stable")
    return inside.take(rows[order], arrival_s=moved[order])


@lru_cache(maxsize=16)
def _capacity(case: str, length_s: float, engines: int, seed: int) -> Capacity:
    if case == CASTILLO:
        test = load_castillo(split="test")
        some = castillo_workload(test, LLM, requests=CAPACITY_OF, rate=1.0, seed=seed)
    else:
        some = redraw(minutes_of(case, length_s, seed), requests=CAPACITY_OF, rate=1.0, seed=seed)
    return measure_capacity(some, _fleet(engines))


def _fleet(engines: int) -> Fleet:
    return Fleet.parse(f"{engines}*{ENGINE}")


@lru_cache(maxsize=4)
def _predicted(case: str, length_s: float, engines: int, load: float, seed: int, predictor: str) -> RequestPredictions:
    return predict_workload(draw(case, length_s, engines, load, seed), predictor, seed=seed)


def pool_run(task: PoolTask) -> dict[str, Any]:
    """Return capacity, the summary of the run, goodput within `LIMITS`, and how often an engine changed pools."""
    drawn = (task.case, task.seconds, task.engines, task.load, task.seed)
    pools = Pools(task.prefill, task.engines - task.prefill, switching=task.switching) if task.prefill else None
    outcome = simulate(
        draw(*drawn),
        _fleet(task.engines),
        POLICY,
        router=ROUTER,
        predictor=_predicted(*drawn, task.predictor),
        pools=pools,
        refresh=None if task.refresh is None else _predicted(*drawn, task.refresh),
    )
    within = outcome.within(LIMITS)
    return {
        "capacity_per_s": _capacity(task.case, task.seconds, task.engines, task.seed).requests_per_s,
        **outcome.summary.to_dict(),
        "within": float(within.mean()),
        _GOODPUT: float(within.sum()) / outcome.summary.makespan_s,
        "moves": 0 if outcome.handover is None else len(outcome.handover.moves),
    }


@dataclass(frozen=True)
class PoolsGrid(SeededGrid):
    """What is simulated: `seconds` of each trace, from another moment for each seed."""

    seeds: int = 4
    seconds: float = 300.0
    engines: int = 8
    loads: tuple[float, ...] = (0.8,)
    cases: tuple[str, ...] = CASES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engines < 2:
            raise InputError(f"{self.engines} engine", field="engines", hint="give at least 2: each pool needs one")
        if not self.seconds > 0:
            raise InputError(f"{self.seconds:g} seconds", field="seconds", hint="give a number above 0")


@dataclass(frozen=True)
class Arrangement(SeedResults):
    """One task over all seeds. `ratios` are over the best fixed split with true lengths: below 1 is better."""

    task: PoolTask
    ratios: dict[What, Ratio]
    goodput: Ratio


@dataclass(frozen=True)
class PoolsResult:
    """Everything measured: by case and load the mixed fleet, the fixed splits and the pools that change."""

    grid: PoolsGrid
    found: tuple[Arrangement, ...]

    def of(self, case: str, load: float) -> list[Arrangement]:
        """Every arrangement of a case at a load."""
        return [one for one in self.found if (one.task.case, one.task.load) == (case, load)]

    def cases(self) -> list[tuple[str, float]]:
        """Cases and loads, in order."""
        return list(dict.fromkeys((one.task.case, one.task.load) for one in self.found))


def measure(run: Run, grid: PoolsGrid) -> PoolsResult:
    """Run everything that the cache does not have."""
    found: list[Arrangement] = []
    for case in grid.cases:
        if any(find_trace(name).path is None for name in TRACES.get(case, ())):
            run.note(f"LENGTHWISE_DATA does not hold {case}'s trace; it is left out")
            continue
        for load in grid.loads:
            found += _arranged(run, grid, PoolTask(case, grid.seconds, grid.engines, load, 0))
    return PoolsResult(grid, tuple(found))


def _arranged(run: Run, grid: PoolsGrid, mixed: PoolTask) -> list[Arrangement]:
    """Every split and changing pools with true lengths, then the latter with predictions."""
    half = replace(mixed, prefill=grid.engines // 2, switching=SWITCHING)
    known = _results(run, grid, [*(replace(mixed, prefill=count) for count in range(grid.engines)), half])
    fixed = [task for task in known if task.prefill and task.switching is None]
    best = min(fixed, key=lambda task: known[task].mean(*_CHOSEN_BY))
    predicted = [replace(half, predictor=first, refresh=again) for first, again in PREDICTIONS]
    known |= _results(run, grid, predicted)
    base = known[best]
    return [
        Arrangement(
            task,
            {what: each.over(base, *what) for what in FIGURES},
            each.over(base, _GOODPUT),
            seeds=each.seeds,
        )
        for task, each in known.items()
    ]


def _results(run: Run, grid: PoolsGrid, tasks: Sequence[PoolTask]) -> dict[PoolTask, SeedResults]:
    found = run.by_seed(
        tasks[0].case, tasks, grid.seeds, lambda task, seed: Call(pool_run, (replace(task, seed=seed),))
    )
    return {task: SeedResults(seeds=each) for task, each in found.items()}


def best_fixed(arrangements: Sequence[Arrangement]) -> Arrangement:
    """The fixed split with the least mean E2E with true lengths: the base of all ratios."""
    fixed = [one for one in arrangements if one.task.prefill and one.task.switching is None]
    return min((one for one in fixed if one.task.predictor == "oracle"), key=lambda one: one.mean(*_CHOSEN_BY))


def changing(arrangements: Sequence[Arrangement], predictor: str = "oracle", refresh: str | None = None) -> Arrangement:
    """The pools that change, with these predictions."""
    return next(
        one
        for one in arrangements
        if one.task.switching and (one.task.predictor, one.task.refresh) == (predictor, refresh)
    )


_TITLES: Final = [f"{NAMES[metric]} {statistic}" for metric, statistic in FIGURES]


def tables(found: PoolsResult) -> list[Table]:
    """Ratios over the best fixed split, and the figures in seconds."""
    return [_ratios(found), _figures(found)]


def _name(task: PoolTask) -> str:
    if task.switching is not None:
        return "changing"
    return f"{task.prefill}:{task.engines - task.prefill}" if task.prefill else "mixed"


def _predictions(task: PoolTask) -> str:
    first = "true lengths" if task.predictor == "oracle" else task.predictor
    return first if task.refresh is None else f"{first}, then {task.refresh}"


def _rows(found: PoolsResult) -> list[tuple[list[str], Arrangement]]:
    return [
        ([f"{case} {load:g}", _name(one.task), _predictions(one.task)], one)
        for case, load in found.cases()
        for one in found.of(case, load)
    ]


def _ratios(found: PoolsResult) -> Table:
    rows = [
        [*names, *(multiple(one.ratios[what]) for what in FIGURES), multiple(one.goodput)]
        for names, one in _rows(found)
    ]
    how = (
        "Multiples of the fixed split with the least mean E2E with true lengths, picked in hindsight on the same "
        f"seeds. Of goodput, requests within {LIMITS} per second, above 1 is better."
    )
    columns = ("workload, load", "engines", "predictions", *_TITLES, "goodput")
    return Table("Over the best fixed split", columns, rows, [how, _note(found)], sections(rows))


def _figures(found: PoolsResult) -> Table:
    rows = [
        [*names, *(seconds(one.mean(*what)) for what in FIGURES), share(one.mean("within")), f"{one.mean('moves'):.1f}"]
        for names, one in _rows(found)
    ]
    rates = ", ".join(f"{case} {found.of(case, load)[0].mean('capacity_per_s'):.3g}" for case, load in found.cases())
    how = f"Moves: how often an engine changed pools. Capacity of the mixed fleet, requests/s: {rates}."
    columns = ("workload, load", "engines", "predictions", *_TITLES, "within limits", "moves")
    return Table("Seconds", columns, rows, [how, _note(found)], sections(rows))


def _note(found: PoolsResult) -> str:
    grid, how = found.grid, SWITCHING
    return (
        f"{POLICY} inside {grid.engines} engines {ENGINE}, router {ROUTER} per pool; {grid.seconds:g} s of a trace "
        f"on its own clock, CASTILLO Poisson; looked at every {how.period_s:g} s, arrivals of {how.window_s:g} s, "
        f"margin {how.margin:g}, from half and half; {grid.seeds} seeds from 0, each another part of the trace, "
        "paired, 95 % intervals, run to drain."
    )


def answer(found: PoolsResult) -> str:
    """Mean E2E of changing pools with true lengths, over the best fixed split and over the mixed fleet's ratio."""
    words = {"pays": "less", "costs": "more", "even": "the same within noise", "unknown": "not measured"}
    parts = []
    for case, load in found.cases():
        ours = changing(found.of(case, load)).ratios[_CHOSEN_BY]
        best = _name(best_fixed(found.of(case, load)).task)
        parts.append(f"{case} at {load:g}: {multiple(ours)} of {best}'s, {words[verdict(ours)]}")
    return f"Mean E2E of pools that change with the predicted load, over the best fixed split: {'; '.join(parts)}."


STUDY: Study[PoolsGrid, PoolsResult] = Study(
    name="switching_pools",
    title="Pools that change with the predicted load",
    question="Do pools that change with the predicted load beat the best fixed ratio of prefill to decode engines?",
    paper="Arango et al., ICLR 2025 workshop",
    source="Azure, Mooncake, CASTILLO",
    grid=PoolsGrid(),
    quick=PoolsGrid(seeds=2, seconds=60.0, engines=4, cases=("azure both", "castillo")),
    minutes=(10, 0.5),
    measure=measure,
    tables=tables,
    answer=answer,
)
