"""Slots and backlog: from how long a queue on does an order pay, and what does a slot cost in inter-token latency.

A simulated engine with the step times that were measured on an H200 (vLLM, the shape of Llama-3.1-8B, 256 slots; the
kept step log). Bursts of CASTILLO's test prompts with Llama-3.1-8B's lengths arrive at twice the capacity, then the
engine drains; the same requests for both policies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from experiments.frontier import LLM, Gains, figures, load_samples, predictions_of
from experiments.study import Call, Run, SeededGrid, Study, table_of
from lengthwise.reports.tables import Table, multiple
from lengthwise.simulator import EngineSpec, Fleet, measure_capacity, simulate
from lengthwise.simulator.cluster import at_rate
from lengthwise.simulator.fit import StepTimes, engine_spec, fit_cost
from lengthwise.simulator.step_log import read_steps
from lengthwise.workloads import Workload, castillo_workload

CAP: Final = 2048
LOAD: Final = 2.0
KV_TOKENS: Final = 844_304
"""KV memory of an H200 with this LLM at vLLM's default share of the GPU; the measured server had less."""
STEPS: Final = Path(__file__).parent / "results" / "h200-256" / "steps.parquet"


@dataclass(frozen=True)
class SlotsGrid(SeededGrid):
    """Slots of the engine and requests of a burst."""

    slots: tuple[int, ...] = (32, 64, 128, 256)
    requests: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    policy: str = "lengthwise"
    predictor: str = "default"
    steps: Path = STEPS


def burst(slots: int, requests: int, policy: str, predictor: str, seed: int, engine: EngineSpec) -> dict[str, Any]:
    """Simulate one burst under FCFS and the policy."""
    fleet = Fleet((replace(engine, max_num_seqs=slots),))

    def draw(count: int) -> Workload:
        return castillo_workload(load_samples(predictor), LLM, requests=count, rate=1.0, seed=seed, max_tokens=CAP)

    # Capacity is the engine's, not that of a burst which is too short to fill its slots.
    capacity = measure_capacity(draw(6 * slots), fleet).requests_per_s
    arriving = at_rate(draw(requests), LOAD * capacity)
    predictions = predictions_of(arriving, predictor, seed)
    fcfs, ours = (simulate(arriving, fleet, name, predictor=predictions) for name in ("fcfs", policy))
    speed = fcfs.summary
    return {
        "fcfs": figures(fcfs),
        policy: figures(ours),
        "speed": [capacity, speed.ttft_s.mean, 1000 * speed.tpot_s.p50, 1000 * speed.tpot_s.p99],
    }


def fitted(steps: Path) -> EngineSpec:
    """Return an engine with the step times of a log."""
    table, facts = read_steps(steps)
    return replace(engine_spec("fitted", fit_cost(StepTimes.of(table)).cost, facts), kv_tokens=KV_TOKENS)


@dataclass(frozen=True)
class SlotsPoint:
    """A burst on an engine, over seeds."""

    slots: int
    requests: int
    gains: Gains
    capacity: float
    ttft_s: float
    """Mean under FCFS: the wait that an order can shorten."""
    tpot_ms: float
    """Median time per output token under FCFS."""
    tpot_p99_ms: float


def measure(run: Run, grid: SlotsGrid) -> list[SlotsPoint]:
    """Simulate every burst."""
    engine, bursts = fitted(grid.steps), list(itertools.product(grid.slots, grid.requests))

    def task(at: tuple[int, int], seed: int) -> Call:
        return Call(burst, (*at, grid.policy, grid.predictor, seed, engine))

    points = []
    for (slots, requests), runs in run.by_seed("bursts", bursts, grid.seeds, task).items():
        speed = np.mean([each["speed"] for each in runs], axis=0).tolist()
        points.append(SlotsPoint(slots, requests, Gains.of(runs, grid.policy), *speed))
    return points


def tables(found: Sequence[SlotsPoint]) -> list[Table]:
    """Gains by slots and burst; speed by slots."""
    gains = table_of(
        "What an order gains, by slots and burst",
        found,
        [
            ("slots", lambda at: at.slots),
            ("requests", lambda at: at.requests),
            ("TTFT of fcfs, s", lambda at: f"{at.ttft_s:.2f}"),
            ("mean E2E", lambda at: multiple(at.gains.mean, 2)),
            ("per token", lambda at: multiple(at.gains.per_token, 2)),
            ("p99", lambda at: multiple(at.gains.p99, 2)),
        ],
        ["mean, per token: fcfs over the policy; p99: the policy over fcfs; 95 % intervals over seeds"],
    )
    speed = table_of(
        "What a slot costs, in the longest burst",
        list({at.slots: at for at in found}.values()),
        [
            ("slots", lambda at: at.slots),
            ("requests/s", lambda at: f"{at.capacity:.1f}"),
            ("TPOT p50, ms", lambda at: f"{at.tpot_ms:.1f}"),
            ("TPOT p99, ms", lambda at: f"{at.tpot_p99_ms:.1f}"),
        ],
    )
    return [gains, speed]


def answer(found: Sequence[SlotsPoint]) -> str:
    """Where the mean gains most, and where it does not gain."""
    best = max(found, key=lambda at: at.gains.mean.ratio)
    none = [f"{at.requests:,} requests on {at.slots} slots" for at in found if at.gains.mean.low <= 1]
    without = f" It gains nothing beyond noise with {', '.join(none)}." if none else ""
    return (
        f"Mean E2E gains {best.gains.mean.ratio:.2f}x in a burst of {best.requests:,} requests on {best.slots} slots, "
        f"where requests wait {best.ttft_s:.1f} s under fcfs.{without}"
    )


STUDY: Study[SlotsGrid, list[SlotsPoint]] = Study(
    name="slots",
    title="Slots and backlog",
    question="From how long a queue on does an order pay, and what does a slot cost?",
    source="CASTILLO",
    grid=SlotsGrid(),
    quick=SlotsGrid(slots=(32, 256), requests=(256, 1024), predictor="noisy:0.55", seeds=2),
    minutes=(4, 0.5),
    measure=measure,
    tables=tables,
    answer=answer,
)
