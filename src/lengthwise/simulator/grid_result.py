"""The results of a grid of simulations, and paired comparisons of its policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.simulator.cluster import Capacity
from lengthwise.simulator.disaggregated import Pools
from lengthwise.simulator.fleet import Fleet
from lengthwise.simulator.metrics import TRUTH as TRUTH
from lengthwise.simulator.metrics import Slo, Summary, time_per_output_token
from lengthwise.simulator.outcome import Outcome
from lengthwise.simulator.paired import Ratio, over_requests, over_seeds
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.simulator.routing import RoutingTrace

if TYPE_CHECKING:
    from lengthwise.workloads import Workload

Measure = Literal["ttft_s", "tpot_s", "e2e_s", "per_token_s"]
Statistic = Literal["mean", "p50", "p90", "p99"]

BASELINE: Final = "fcfs"
USUAL_ROUTER: Final = "round_robin"
MEASURES: Final[tuple[Measure, ...]] = ("ttft_s", "tpot_s", "e2e_s", "per_token_s")
STATISTICS: Final[tuple[Statistic, ...]] = ("mean", "p50", "p90", "p99")
COMPARED: Final[tuple[tuple[Measure, Statistic], ...]] = tuple(
    (measure, statistic) for measure in MEASURES for statistic in ("mean", "p99")
)
"""Statistics that are compared with FCFS."""
_SMALLEST_GAIN: Final = 0.01
"""Share of FCFS's latency. Of a smaller gain no share is computed."""


@dataclass(frozen=True, slots=True)
class Level:
    """The offered load, averaged over the seeds. `load` is the requested one, else offered rate over capacity."""

    load: float
    offered_per_s: float


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy with one predictor and router at one level, seed by seed. `predictor` is None where none is used."""

    level: Level
    predictor: str | None
    policy: str
    outcomes: tuple[Outcome, ...]
    router: str = USUAL_ROUTER

    @property
    def label(self) -> str:
        """The policy, and the router if it is not the usual one."""
        return self.policy if self.router == USUAL_ROUTER else f"{self.policy} behind {self.router}"

    def mean(self, figure: Callable[[Summary], float]) -> float:
        """A figure of the runs, averaged over the seeds."""
        return float(np.mean([figure(outcome.summary) for outcome in self.outcomes]))

    def figures(self, measure: Measure, statistic: Statistic) -> list[float]:
        """A statistic of latency, seed by seed."""
        return [float(getattr(getattr(outcome.summary, measure), statistic)) for outcome in self.outcomes]

    def latency(self, measure: Measure, statistic: Statistic) -> float:
        """A statistic of latency, averaged over the seeds."""
        return float(np.mean(self.figures(measure, statistic)))

    @property
    def kv_mean(self) -> float:
        """The mean share of allocated KV blocks while engines were busy."""
        engines = [engine for outcome in self.outcomes for engine in outcome.engines if engine.busy_s > 0]
        busy = sum(engine.busy_s for engine in engines)
        return sum(engine.kv_mean * engine.busy_s for engine in engines) / busy if busy else math.nan

    @property
    def kv_peak(self) -> float:
        """The highest share of allocated KV blocks."""
        return max(engine.kv_peak for outcome in self.outcomes for engine in outcome.engines)

    def within(self, slo: Slo) -> float:
        """The share of all requests, refused ones too, that were served within the limits."""
        return float(np.mean(np.concatenate([_met(outcome, slo) for outcome in self.outcomes])))

    def goodput(self, slo: Slo) -> float:
        """Requests per second of makespan that were served within the limits."""
        rates = [float(_met(outcome, slo).sum()) / outcome.summary.makespan_s for outcome in self.outcomes]
        return float(np.mean(rates))


@dataclass(frozen=True, eq=False)
class Grid:
    """All cells, level by level, predictor by predictor. `workload` is that of the first seed."""

    fleet: Fleet
    seeds: tuple[int, ...]
    slo: Slo
    workload: Workload
    capacities: tuple[Capacity, ...]
    predictions: Mapping[str, tuple[RequestPredictions, ...]]
    cells: tuple[Cell, ...]
    pools: Pools | None = None
    """Separate engines for prefill and decode; None: every engine does both."""
    refresh: str | None = None
    """Predictor that is run again between prefill and decode."""

    @property
    def true_lengths(self) -> bool:
        """Whether any cell is predicted by the true lengths (`oracle`), which no deployment has."""
        return any(cell.predictor == TRUTH for cell in self.cells)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels in the order of the plan."""
        return tuple(dict.fromkeys(cell.level for cell in self.cells))

    @property
    def routers(self) -> tuple[str, ...]:
        """Routers in the order of the plan."""
        return tuple(dict.fromkeys(cell.router for cell in self.cells))

    @property
    def capacity_per_s(self) -> float:
        """Capacity of the fleet, averaged over the seeds."""
        return float(np.mean([capacity.requests_per_s for capacity in self.capacities]))

    def tau(self, predictor: str) -> float:
        """Kendall's tau of a predictor on these requests, averaged over the seeds."""
        return float(np.mean([predictions.tau for predictions in self.predictions[predictor]]))

    def baseline(self, level: Level) -> Cell | None:
        """Return the cell of FCFS at a level, behind the first router; None if it was not run."""
        return next((cell for cell in self.cells if cell.level == level and cell.policy == BASELINE), None)

    def ratio(self, cell: Cell, measure: Measure, statistic: Statistic) -> Ratio:
        """A cell's figure over FCFS's at the same level."""
        return self._ratios[id(cell), measure, statistic]

    @cached_property
    def _ratios(self) -> dict[tuple[int, Measure, Statistic], Ratio]:
        return {(id(cell), *what): self._compare(cell, *what) for cell in self.cells for what in COMPARED}

    def _compare(self, cell: Cell, measure: Measure, statistic: Statistic) -> Ratio:
        base = self.baseline(cell.level)
        if base is None:
            return Ratio.none()
        if cell is base:
            return Ratio(1.0, 1.0, 1.0)
        if len(self.seeds) > 1:
            return over_seeds(cell.figures(measure, statistic), base.figures(measure, statistic))
        ours, theirs = latencies(cell.outcomes[0])[measure], latencies(base.outcomes[0])[measure]
        q = None if statistic == "mean" else int(statistic[1:]) / 100
        return over_requests(ours, theirs, q, seed=self.seeds[0])

    def gain_captured(self, cell: Cell, measure: Measure) -> float:
        """(FCFS - this) / (FCFS - the same policy with true lengths), on means; NaN where the truth gains under 1 %."""
        base = self.baseline(cell.level)
        truth = next(
            (c for c in self.cells if (c.level, c.label, c.predictor) == (cell.level, cell.label, TRUTH)), None
        )
        if base is None or truth is None:
            return math.nan
        before = base.latency(measure, "mean")
        gain = before - truth.latency(measure, "mean")
        return (before - cell.latency(measure, "mean")) / gain if gain > _SMALLEST_GAIN * before else math.nan

    def to_table(self) -> pa.Table:
        """Return one row per request of every run, with the routing trace if any run has one."""
        explained = any(outcome.trace is not None for cell in self.cells for outcome in cell.outcomes)
        return pa.concat_tables(
            _marked(_explained(outcome) if explained else outcome.to_table(), cell, seed)
            for cell in self.cells
            for seed, outcome in zip(self.seeds, cell.outcomes, strict=True)
        )


def latencies(outcome: Outcome) -> dict[Measure, NDArray[np.float64]]:
    """Return the latencies of each request, in order of arrival; NaN for refused ones."""
    e2e = outcome.finish - outcome.arrival
    return {
        "ttft_s": outcome.first_token - outcome.arrival,
        "tpot_s": time_per_output_token(outcome.first_token, outcome.finish, outcome.output_tokens),
        "e2e_s": e2e,
        "per_token_s": e2e / outcome.output_tokens,
    }


def _met(outcome: Outcome, slo: Slo) -> NDArray[np.bool_]:
    return slo.met(
        sent=outcome.arrival,
        first_token=outcome.first_token,
        finish=outcome.finish,
        output_tokens=outcome.output_tokens,
    )


def _explained(outcome: Outcome) -> pa.Table:
    table, trace = outcome.to_table(), outcome.trace or RoutingTrace.of({}, len(outcome))
    for name, column in trace.columns().items():
        table = table.append_column(name, column)
    return table


def _marked(table: pa.Table, cell: Cell, seed: int) -> pa.Table:
    n = len(table)
    marks = (("seed", pa.scalar(seed)), ("load", pa.scalar(cell.level.load)), ("router", pa.scalar(cell.router)))
    for name, value in (*marks, ("predictor", pa.scalar(cell.predictor, pa.string()))):
        table = table.append_column(name, pa.repeat(value, n))
    return table
