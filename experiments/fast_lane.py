"""What a wider fast lane of `lengthwise` brings in a burst, and what it costs under a load that lasts.

The policy has nothing to tune; its constants are changed here in a private copy of its module. Places: the bursts that
were measured on an H200, replayed in the simulator with their predictions (as in `simulator_error`); the bursts of
`benchmarks.gateway_gain` on one queue with 32 slots; and two settings of `frontier`, where a load of 1.1 lasts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from experiments.frontier import ENGINE, SETTINGS, Gains, at_load, figures, predictions_of
from experiments.simulator_error import SimulatorErrorGrid, fitted, replayed
from experiments.study import Run, Study, table_of
from lengthwise.bench.analysis import episode_tables
from lengthwise.bench.episodes import Kind, TrafficPlan, draw, load_prompts
from lengthwise.bench.store import BenchStore
from lengthwise.errors import InputError
from lengthwise.policies import Policy, lengthwise
from lengthwise.reports.tables import Table
from lengthwise.simulator import Fleet, RequestPredictions, measure_capacity, predict_workload, simulate
from lengthwise.workloads import Workload

MEASURED: Final = tuple(
    Path(__file__).parent / "results" / name for name in ("h200-32", "h200-32-policies", "h200-32-fast")
)
H200, A100 = "H200 bursts, default", "A100 bursts, fast"
LASTING: Final = ("8 slots, load 1.1", "32 slots, load 1.1")
WIDE: Final = {"SHORT_JOB_FRACTION": 0.5, "FAST_WORK_FRACTION": 0.35}
LANES: Final[dict[str, dict[str, float]]] = {
    "as it is": {},
    "half of the jobs, 35 % of the work": WIDE,
    "the same, rounds of 400 tokens": {**WIDE, "TOKENS_PER_ROUND": 400.0},
    "the same, rounds of 800 tokens": {**WIDE, "TOKENS_PER_ROUND": 800.0},
    "60 % of the jobs, half of the work, rounds of 400": {
        "SHORT_JOB_FRACTION": 0.6,
        "FAST_WORK_FRACTION": 0.5,
        "TOKENS_PER_ROUND": 400.0,
    },
    "rounds of 400 tokens alone": {"TOKENS_PER_ROUND": 400.0},
}
"""The constants of `lengthwise.policies.lengthwise` that are replaced, by the name of the lane."""

Traffic = tuple[Workload, Fleet, RequestPredictions]


@dataclass(frozen=True)
class FastLaneGrid:
    """Blocks, bursts and seeds."""

    blocks: int = 16
    """Of those kept; the bench measured 16."""
    bursts: int = 6
    seeds: int = 8
    first_seed: int = 200
    predictor: str = "noisy:0.55"
    """Of the load that lasts."""
    lasting: tuple[str, ...] = LASTING

    def __post_init__(self) -> None:
        for name in ("blocks", "bursts", "seeds"):
            if getattr(self, name) < 2:
                raise InputError(f"{getattr(self, name)}", field=name, hint="give at least 2: intervals are over them")


def lane_policy(constants: dict[str, float]) -> Policy:
    """Return `lengthwise` with other constants: the policy of a copy of its module."""
    copy = ModuleType(lengthwise.__name__)
    exec(compile(inspect.getsource(lengthwise), lengthwise.__file__, "exec"), vars(copy))  # noqa: S102
    vars(copy).update(constants)
    policy: Policy = copy.Lengthwise()
    return policy


@lru_cache(maxsize=1)
def _blocks(folders: tuple[Path, ...]) -> list[Traffic]:
    """The measured bursts of `lengthwise` on `default`, each on the engine fitted to other blocks."""
    found = []
    for folder in folders:
        store = BenchStore(folder)
        spec_of = fitted(store, SimulatorErrorGrid(folder))
        for _, arm, block, table in episode_tables(store.rows()):
            if (arm.policy, arm.predictor) == ("lengthwise", "default"):
                spec, cap = spec_of(arm.policy, block), int(store.settings()["traffic"]["cap"])
                replay = replayed(table, cap, spec.block_size)
                found.append((replay.workload, Fleet((spec,)), replay.predictions))
    return found


def _burst(number: int) -> Traffic:
    fleet, plan = Fleet.parse(ENGINE).limited_to(max_num_seqs=32), TrafficPlan()
    prompts, n = load_prompts(plan), 12 * 32
    capacity = measure_capacity(draw(prompts, plan, Kind.of("backlog"), 0, n=n, capacity=1.0).workload, fleet)
    workload = draw(prompts, plan, Kind.of("burst"), number, n=n, capacity=capacity.requests_per_s).workload
    return workload, fleet, predict_workload(workload, "fast")


def lane_run(place: str, number: int, predictor: str, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Simulate one block, burst or seed of a place under FCFS and every lane."""
    predictions: RequestPredictions | None
    if place == H200:
        workload, fleet, predictions = _blocks(folders)[number]
    elif place == A100:
        workload, fleet, predictions = _burst(number)
    else:
        fleet, workload = at_load(SETTINGS[place], predictor, number)
        predictions = predictions_of(workload, predictor, number)
    policies: dict[str, Policy | str] = {"fcfs": "fcfs"}
    policies.update({name: lane_policy(constants) for name, constants in LANES.items()})
    return {
        name: figures(simulate(workload, fleet, policy, predictor=predictions)) for name, policy in policies.items()
    }


LaneGains = dict[str, dict[str, Gains]]
"""By place and lane."""


def measure(run: Run, grid: FastLaneGrid) -> LaneGains:
    """Simulate every place."""
    seeds = range(grid.first_seed, grid.first_seed + grid.seeds)
    numbers = {H200: range(grid.blocks), A100: range(grid.bursts), **dict.fromkeys(grid.lasting, seeds)}
    found = {}
    for place, each in numbers.items():
        runs = run.each(place, lane_run, [(place, number, grid.predictor, MEASURED) for number in each])
        found[place] = {name: Gains.of(runs, name) for name in LANES}
    return found


def tables(found: LaneGains) -> list[Table]:
    """One row per place and lane."""
    rows = [(place, name, gains) for place, lanes in found.items() for name, gains in lanes.items()]
    notes = ["mean E2E: FCFS over the policy; p99: the policy over FCFS; 95 % intervals over blocks, bursts or seeds."]
    columns: list[tuple[str, Callable[[tuple[str, str, Gains]], object]]] = [
        ("place", lambda row: row[0]),
        ("lane", lambda row: row[1]),
        ("mean E2E", lambda row: row[2].mean),
        ("p99", lambda row: row[2].p99),
    ]
    return [table_of("A wider fast lane", rows, columns, notes, lambda row: row[0])]


def answer(found: LaneGains) -> str:
    """Half of the jobs in the lane and long rounds against the policy as it is."""
    now, wide = "as it is", "the same, rounds of 400 tokens"
    burst, lasting = found[H200], next(lanes for place, lanes in found.items() if place in LASTING)
    gained, before = burst[wide], burst[now]
    return (
        f"In a burst a wider lane gains {gained.mean.ratio:.2f}x instead of {before.mean.ratio:.2f}x on the mean, "
        f"at a p99 of {gained.p99.ratio:.2f} instead of {before.p99.ratio:.2f} times FCFS's; where the load lasts the "
        f"p99 is {lasting[wide].p99.ratio:.2f} instead of {lasting[now].p99.ratio:.2f}."
    )


STUDY: Study[FastLaneGrid, LaneGains] = Study(
    name="fast_lane",
    title="A wider fast lane",
    question="What does a wider fast lane bring in a burst, and what does it cost under a load that lasts?",
    source="kept H200 bursts, CASTILLO",
    grid=FastLaneGrid(),
    quick=FastLaneGrid(blocks=3, bursts=2, seeds=2, lasting=LASTING[:1]),
    minutes=(3, 0.5),
    measure=measure,
    tables=tables,
    answer=answer,
)
