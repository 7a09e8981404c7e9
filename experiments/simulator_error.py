"""How far is the simulator from episodes measured on a real engine: the same arrivals, lengths, policy and predictions.

The cost model is fitted on the engine's step log: even blocks are simulated with a fit on the steps of odd blocks and
the other way round, so that no episode is simulated with its own steps. One cost serves all policies, as it must for a
policy that was not measured. With `fit=policy` each policy has the cost of its own steps, which separates an error in
step times from one in the schedule. Compared are mean and p99 of E2E latency, and the order of the policies.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments.study import Run, Study
from lengthwise.bench.analysis import episode_tables
from lengthwise.bench.episodes import ORACLE
from lengthwise.bench.store import BenchStore
from lengthwise.errors import InputError
from lengthwise.reports.tables import Table
from lengthwise.simulator import EngineSpec, Fleet, Spread, simulate
from lengthwise.simulator.fit import StepTimes, engine_spec, fit_cost
from lengthwise.simulator.fleet import read_engine
from lengthwise.simulator.replay import Replay
from lengthwise.simulator.step_log import read_steps

Floats = NDArray[np.float64]

KEPT: Final = Path(__file__).parent / "results" / "h200-32"
"""Episodes on one H200 with the step log of the first two blocks."""
MEAN_WITHIN, P99_WITHIN = 0.05, 0.10
"""Targets of the relative error."""
_FIGURES: Final = ("mean", "p50", "p99")
_REPLAYED: Final = ("arrival_s", "input_tokens", "cached_tokens", "output_tokens", "mu", "sigma")


@dataclass(frozen=True)
class Comparison:
    """One measured episode and its simulation; E2E latency in seconds."""

    kind: str
    arm: str
    block: int
    measured: Spread
    simulated: Spread


@dataclass(frozen=True)
class SimulatorErrorGrid:
    """The measured episodes and how they are simulated."""

    results: Path = KEPT
    """The folder of `lengthwise bench`."""
    engine: Path | None = None
    """An engine file, instead of a fit on the step log."""
    steps: Path | None = None
    """The engine's step log; None: steps.parquet in the folder."""
    fit: Literal["all", "policy"] = "all"
    """Whether a cost is fitted on the steps of all policies or on those of the one that is simulated."""


def compare(run: Run, grid: SimulatorErrorGrid) -> list[Comparison]:
    """Simulate every measured episode."""
    store = BenchStore(grid.results)
    rows = store.rows()
    if not len(rows):
        raise InputError("has no complete block", source=store.folder, hint="run `lengthwise bench` first")
    spec_of = fitted(store, grid)
    episodes = list(episode_tables(rows))
    progress, found = run.part(0.0, 1.0), []
    for number, (kind, arm, block, table) in enumerate(episodes):
        progress(f"{kind} {block} {arm.label}", number / len(episodes))
        e2e = table["finished_s"].to_numpy() - table["arrival_s"].to_numpy()
        spec = spec_of(arm.policy, block)
        replay = replayed(table, int(store.settings()["traffic"]["cap"]), spec.block_size)
        predictor = arm.predictor if arm.predictor == ORACLE else replay.predictions
        outcome = simulate(replay.workload, Fleet((spec,)), arm.policy, predictor=predictor)
        found.append(Comparison(kind, arm.label, block, Spread.of(e2e), outcome.summary.e2e_s))
    return found


def fitted(store: BenchStore, grid: SimulatorErrorGrid) -> Callable[[str, int], EngineSpec]:
    """Return the engine that simulates a policy in a block."""
    if grid.engine is not None:
        spec = read_engine(grid.engine)
        return lambda policy, block: spec
    table, facts = read_steps(grid.steps or store.steps)
    start = table["start_s"].to_numpy()
    steps: dict[tuple[str, bool], NDArray[np.bool_]] = defaultdict(lambda: np.zeros(len(start), bool))
    for each in store.episodes():
        during = (start >= each["began"]) & (start <= each["began"] + each["makespan_s"])
        steps[each["policy"] if grid.fit == "policy" else "", each["block"] % 2 == 1] |= during
    if grid.fit == "all":
        steps["", False] = ~steps["", True]  # with the steps between episodes

    @cache
    def spec_of(policy: str, odd: bool) -> EngineSpec:
        others, own = steps[policy, not odd], steps[policy, odd]
        part = others if others.any() else own  # one block: there are no other steps to fit on
        return engine_spec("fitted", fit_cost(StepTimes.of(table.filter(pa.array(part)))).cost, facts)

    return lambda policy, block: spec_of(policy if grid.fit == "policy" else "", block % 2 == 1)


def replayed(table: pa.Table, cap: int, block_size: int) -> Replay:
    """Return an episode's requests as sent and answered, with the predictions that they were ordered by."""
    columns = {name: table[name].to_numpy() for name in _REPLAYED}
    return Replay.of(columns | {"max_tokens": np.full(len(table), cap)}, name="episode", block_size=block_size)


def by_arm(found: Sequence[Comparison]) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Return measured and simulated figures of each kind and arm, the means over blocks."""
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for one in sorted(found, key=lambda each: (each.kind, each.arm)):
        groups[one.kind, one.arm].append(one)
    return {
        key: {
            figure: (
                float(np.mean([getattr(each.measured, figure) for each in group])),
                float(np.mean([getattr(each.simulated, figure) for each in group])),
            )
            for figure in _FIGURES
        }
        for key, group in groups.items()
    }


def swaps(figures: Mapping[tuple[str, str], Mapping[str, tuple[float, float]]]) -> list[tuple[str, str, str, float]]:
    """Return the pairs of arms that the simulator orders differently by mean, with how far apart they measure."""
    found = []
    for (one, other), (first, second) in zip(combinations(figures, 2), combinations(figures.values(), 2), strict=True):
        measured, simulated = (first["mean"][side] - second["mean"][side] for side in (0, 1))
        if one[0] == other[0] and measured * simulated < 0:
            apart = abs(math.log(first["mean"][0] / second["mean"][0]))
            found.append((one[0], one[1], other[1], apart))
    return found


def tables(found: Sequence[Comparison]) -> list[Table]:
    """Return figures and errors by arm, and the pairs in another order."""
    figures = by_arm(found)
    blocks = {key: len([one for one in found if (one.kind, one.arm) == key]) for key in figures}
    columns = ["episodes", "policy, predictor", "blocks"]
    for figure in _FIGURES:
        columns += [f"{figure} s", "simulated", "error"]
    rows = []
    for key, pairs in figures.items():
        cells = [*key, str(blocks[key])]
        for measured, simulated in pairs.values():
            cells += [f"{measured:.3g}", f"{simulated:.3g}", f"{simulated / measured - 1:+.1%}"]
        rows.append(cells)
    within = {
        name: sum(abs(pairs[name][1] / pairs[name][0] - 1) <= limit for pairs in figures.values())
        for name, limit in (("mean", MEAN_WITHIN), ("p99", P99_WITHIN))
    }
    other = swaps(figures)
    notes = [
        (
            f"of {len(figures)} rows the mean is within {MEAN_WITHIN:.0%} in {within['mean']}, "
            f"the p99 within {P99_WITHIN:.0%} in {within['p99']}"
        ),
        "order of policies by mean E2E: "
        + ("; ".join(f"{kind}: {one} and {two}, {apart:.1%} apart" for kind, one, two, apart in other) or "the same"),
    ]
    return [Table("E2E latency, measured and simulated", columns, rows, notes)]


def _needs(grid: SimulatorErrorGrid) -> str | None:
    if (grid.results / "bench.json").is_file():
        return None
    return f"needs measured episodes in {grid.results}: `lengthwise bench`, or --set results=FOLDER"


def answer(found: Sequence[Comparison]) -> str:
    """The error of the mean and of the p99, over all episodes."""
    mean, p99 = (
        [abs(getattr(each.simulated, name) / getattr(each.measured, name) - 1) for each in found]
        for name in ("mean", "p99")
    )
    means, tails = (
        f"{100 * sum(each) / len(each):.1f} % on average, {100 * max(each):.1f} % at most" for each in (mean, p99)
    )
    return f"The simulated mean E2E of {len(found)} measured episodes is off by {means}; the p99 by {tails}."


STUDY: Study[SimulatorErrorGrid, Sequence[Comparison]] = Study(
    name="simulator_error",
    title="E2E latency, measured and simulated",
    question="How far is the simulator from measured episodes on a real engine?",
    source="kept results of `lengthwise bench`, or yours",
    grid=SimulatorErrorGrid(),
    quick=SimulatorErrorGrid(),
    minutes=(0.5, 0.5),
    serial=True,
    measure=compare,
    tables=tables,
    answer=answer,
    needs=_needs,
)
