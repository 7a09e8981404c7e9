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

from experiments.frontier import LLM, load_samples, predictions_of
from experiments.study import Run, SeededGrid, Study
from lengthwise.engines.fit import StepTimes, engine_spec, fit_cost
from lengthwise.engines.steps import read_steps
from lengthwise.reports.tables import Table
from lengthwise.simulator import EngineSpec, Fleet, measure_capacity, simulate
from lengthwise.simulator.paired import Ratio, over_seeds
from lengthwise.simulator.tasks import code_version, content_key, file_digest
from lengthwise.workloads import castillo_workload

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


@dataclass(frozen=True)
class SlotsCell:
    """One burst under both policies: a task that is cached."""

    slots: int
    requests: int
    policy: str
    predictor: str
    seed: int
    engine: EngineSpec

    @property
    def key(self) -> str:
        """Digest of the cell, the code and the data."""
        data = load_samples(self.predictor)
        return content_key(cell=self, code=(code_version(), file_digest(Path(__file__))), data=(data.origin, len(data)))

    def run(self) -> dict[str, Any]:
        """Simulate the burst."""
        fleet = Fleet((replace(self.engine, max_num_seqs=self.slots),))
        drawn = castillo_workload(
            load_samples(self.predictor), LLM, requests=self.requests, rate=1.0, seed=self.seed, max_tokens=CAP
        )
        # Capacity is the engine's, not that of a burst which is too short to fill its slots.
        enough = castillo_workload(
            load_samples(self.predictor), LLM, requests=6 * self.slots, rate=1.0, seed=self.seed, max_tokens=CAP
        )
        capacity = measure_capacity(enough, fleet).requests_per_s
        requests = drawn.replace(arrival_s=drawn.arrival_s / (LOAD * capacity))
        predictions = predictions_of(requests, self.predictor, self.seed)
        found: dict[str, Any] = {"capacity": capacity}
        for policy in ("fcfs", self.policy):
            outcome = simulate(requests, fleet, policy, predictor=predictions)
            e2e = outcome.finish - outcome.arrival
            found[policy] = [
                float(e2e.mean()),
                float((e2e / outcome.output_tokens).mean()),
                float(np.quantile(e2e, 0.99)),
                outcome.summary.ttft_s.mean,
                outcome.summary.tpot_s.p50,
                outcome.summary.tpot_s.p99,
            ]
        return found


def fitted(steps: Path) -> EngineSpec:
    """Return an engine with the step times of a log."""
    table, facts = read_steps(steps)
    return replace(engine_spec("fitted", fit_cost(StepTimes.of(table)).cost, facts), kv_tokens=KV_TOKENS)


@dataclass(frozen=True)
class SlotsPoint:
    """A burst on an engine, over seeds; gains above 1 and tails below 1 are better than fcfs."""

    slots: int
    requests: int
    capacity: float
    ttft_s: float
    """Mean under fcfs: the wait that an order can shorten."""
    tpot_ms: float
    """Median time per output token under fcfs."""
    tpot_p99_ms: float
    mean: Ratio
    per_token: Ratio
    p99: Ratio


def measure(run: Run, grid: SlotsGrid) -> list[SlotsPoint]:
    """Simulate every burst."""
    engine = fitted(grid.steps)
    bursts = list(itertools.product(grid.slots, grid.requests))
    cells = [
        SlotsCell(slots, requests, grid.policy, grid.predictor, seed, engine)
        for slots, requests in bursts
        for seed in range(grid.seeds)
    ]
    found = run.results("bursts", cells)
    starts = range(0, len(found), grid.seeds)
    return [
        _point(*burst, grid.policy, found[start : start + grid.seeds])
        for burst, start in zip(bursts, starts, strict=True)
    ]


def _point(slots: int, requests: int, policy: str, found: Sequence[dict[str, Any]]) -> SlotsPoint:
    base, ours = (np.array([each[name] for each in found]).T.tolist() for name in ("fcfs", policy))
    return SlotsPoint(
        slots,
        requests,
        capacity=float(np.mean([each["capacity"] for each in found])),
        ttft_s=float(np.mean(base[3])),
        tpot_ms=1000 * float(np.mean(base[4])),
        tpot_p99_ms=1000 * float(np.mean(base[5])),
        mean=over_seeds(base[0], ours[0]),
        per_token=over_seeds(base[1], ours[1]),
        p99=over_seeds(ours[2], base[2]),
    )


def tables(found: Sequence[SlotsPoint]) -> list[Table]:
    """Gains by slots and burst; speed by slots."""
    rows = [
        [
            f"{at.slots}",
            f"{at.requests:,}",
            f"{at.ttft_s:.2f}",
            *(f"{each.ratio:.2f} [{each.low:.2f}, {each.high:.2f}]" for each in (at.mean, at.per_token, at.p99)),
        ]
        for at in found
    ]
    last = {at.slots: at for at in found}
    speed = [
        [f"{slots}", f"{at.capacity:.1f}", f"{at.tpot_ms:.1f}", f"{at.tpot_p99_ms:.1f}"] for slots, at in last.items()
    ]
    notes = ["mean, per token: fcfs over the policy; p99: the policy over fcfs; 95 % intervals over seeds"]
    columns = ["slots", "requests", "TTFT of fcfs, s", "mean E2E", "per token", "p99"]
    return [
        Table("What an order gains, by slots and burst", columns, rows, notes),
        Table(
            "What a slot costs, in the longest burst",
            ["slots", "requests/s", "TPOT p50, ms", "TPOT p99, ms"],
            speed,
        ),
    ]


def answer(found: Sequence[SlotsPoint]) -> str:
    """Where the mean gains most, and where it does not gain."""
    best = max(found, key=lambda at: at.mean.ratio)
    none = [f"{at.requests:,} requests on {at.slots} slots" for at in found if at.mean.low <= 1]
    without = f" It gains nothing beyond noise with {', '.join(none)}." if none else ""
    return (
        f"Mean E2E gains {best.mean.ratio:.2f}x in a burst of {best.requests:,} requests on {best.slots} slots, "
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
