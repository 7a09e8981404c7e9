"""Grids of simulations: seeds x loads x routers x predictors x policies.

All cells of a seed share arrivals, true lengths and prediction noise, so that comparisons are paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, ShareChange, gain_captured, over_requests, over_seeds, share_change
from lengthwise.policies import make_policy
from lengthwise.predictors.resolve import parse_predictor_spec
from lengthwise.routers import make_router
from lengthwise.simulator.acceleration import worth_compiling
from lengthwise.simulator.cluster import Capacity, as_predictions, check_seconds
from lengthwise.simulator.disaggregated import Pools
from lengthwise.simulator.fleet import Fleet, FleetEvent, sorted_events
from lengthwise.simulator.metrics import TRUTH, LatencyLimits, Summary
from lengthwise.simulator.outcome import Outcome, RoutingTrace
from lengthwise.simulator.predictions import (
    RequestPredictions,
    check_before_prefill,
    default_predictor,
    learns,
    predict_workload,
)
from lengthwise.simulator.tasks import CapacityTask, DrawnSetting, Report, Setting, SimulationTask, Steps
from lengthwise.specs import parse_spec
from lengthwise.workloads import Workload

Metric = Literal["ttft_s", "tpot_s", "e2e_s", "per_token_s"]
Statistic = Literal["mean", "p50", "p90", "p99"]

BASELINE: Final = "fcfs"
USUAL_ROUTER: Final = "round_robin"
"""The router that labels do not name, and that of one engine."""
METRICS: Final[tuple[Metric, ...]] = ("ttft_s", "tpot_s", "e2e_s", "per_token_s")
STATISTICS: Final[tuple[Statistic, ...]] = ("mean", "p50", "p90", "p99")
COMPARED: Final[tuple[tuple[Metric, Statistic], ...]] = (
    *((metric, statistic) for metric in METRICS for statistic in ("mean", "p99")),
    ("ttft_s", "p50"),
)
"""Statistics that are compared with FCFS."""


def figure_name(metric: str, statistic: str) -> str:
    """Return the name of a statistic among ratios: `e2e_mean` for the mean of `e2e_s`."""
    return f"{metric.removesuffix('_s')}_{statistic}"


Draw = Callable[[int], Workload]
"""Makes the workload of a seed."""

_PREDICTOR_COLUMNS: Final = ("input_tokens", "output_tokens", "max_tokens", "sample_mean", "prompt", "llm")
"""Columns that a model's predictions can depend on."""


@dataclass(frozen=True)
class Plan:
    """The axes and options of a grid, validated.

    Rates or loads, not both; with neither, the workload's own arrivals.
    """

    fleet: Fleet
    policies: Sequence[str]
    predictors: Sequence[str] = ()
    """Empty: `fast` where the workload has text, else `history`."""
    rates: Sequence[float] = ()
    loads: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    slo: LatencyLimits = field(default_factory=LatencyLimits)
    prediction_delay_s: float = 0.0
    decision_s: float = 0.0
    routers: Sequence[str] = (USUAL_ROUTER,)
    routing_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds per request that a router needs, by its name without parameters; 0 for routers that are missing here."""
    fleet_events: Sequence[FleetEvent] = ()
    explain: bool = False
    pools: Pools | None = None
    """Separate engines for prefill and decode; None: every engine does both."""
    refresh: str | None = None
    """Predictor that is run again between prefill and decode pools; None: the first prediction stays."""

    def __post_init__(self) -> None:
        if self.rates and self.loads:
            raise InputError("both a rate and a load", field="load", hint="give one of --rate and --load")
        for name, values, unit in (("rate", self.rates, " requests per second"), ("load", self.loads, "")):
            for value in values:
                if not (np.isfinite(value) and value > 0):
                    raise InputError(f"a {name} of {value:g}{unit}", field=name, hint="give a number above 0")
        check_seconds(prediction_delay_s=self.prediction_delay_s, decision_s=self.decision_s)
        check_seconds(**{f"routing_s of {name}": seconds for name, seconds in self.routing_s.items()})
        sorted_events(self.fleet_events, len(self.fleet))
        if not self.seeds:
            raise InputError("no seeds", field="seeds", hint="give at least 1")
        for policy in self.policies:
            make_policy(policy)
        for router in self.routers:
            make_router(router)
        check_before_prefill(self.predictors)
        for predictor in (*self.predictors, *(() if self.refresh is None else (self.refresh,))):
            parse_predictor_spec(predictor)
        self._check_pools()

    def _check_pools(self) -> None:
        if self.pools is None:
            if self.refresh is not None:
                hint = "give pools too, with --disaggregate"
                raise InputError(
                    "predictions are refreshed only between prefill and decode pools", field="refresh", hint=hint
                )
            return
        self.pools.check(
            self.fleet,
            down=self.fleet_events,
            explain=self.explain,
            **{"prediction-delay": self.prediction_delay_s},
        )

    def tasks(
        self,
        setting: Setting | DrawnSetting,
        rate: float | None,
        known: Mapping[str, RequestPredictions] | None = None,
    ) -> list[SimulationTask]:
        """Return the simulations of `runs` in a setting and at a rate; `known` are predictions at hand, by name."""

        def predictions(name: str) -> str | RequestPredictions:
            return name if known is None else known[name]

        return [
            SimulationTask(
                setting,
                rate,
                policy,
                router,
                predictions(self.predictors[0] if predictor is None else predictor),
                prediction_delay_s=self.prediction_delay_s,
                decision_s=self.decision_s,
                routing_s=self.routing_s.get(parse_spec(router).base, 0.0),
                fleet_events=tuple(self.fleet_events),
                pools=self.pools,
                refresh=None if self.refresh is None else predictions(self.refresh),
                explain=self.explain,
            )
            for router, predictor, policy in self.runs
        ]

    def with_predictors(self, workload: Workload) -> Plan:
        """Return the plan with the default predictor for this workload, if it names none."""
        return self if self.predictors else replace(self, predictors=(default_predictor(workload),))

    @property
    def own_arrivals(self) -> bool:
        """Whether the workload keeps its own arrivals."""
        return not (self.rates or self.loads)

    def offered_loads(self, capacity_per_s: float) -> list[tuple[float | None, float | None]]:
        """Return loads (None unless given) and requests per second (None: the workload's arrivals)."""
        if self.loads:
            return [(load, load * capacity_per_s) for load in self.loads]
        return [(None, rate) for rate in self.rates] or [(None, None)]

    @property
    def repeats(self) -> bool:
        """Whether seeds must differ in the workload, not only in prediction noise."""
        return len(self.seeds) > 1 and not any(name.startswith("noisy") for name in self.predictors)

    @property
    def runs(self) -> list[tuple[str, str | None, str]]:
        """Router, predictor and policy of each cell at one offered load.

        FCFS behind a router without predictions runs once per offered load, first, with predictor None.
        """
        runs: list[tuple[str, str | None, str]] = []
        for router in self.routers:
            unpredicted = (
                [] if self._uses_predictions(router) else [policy for policy in self.policies if policy == BASELINE]
            )
            others = [policy for policy in self.policies if policy not in unpredicted]
            runs += [(router, None, policy) for policy in unpredicted]
            runs += [(router, predictor, policy) for predictor in self.predictors for policy in others]
        return runs

    @property
    def all_routers(self) -> list[str]:
        """The routers, and that of the decode pool where it is another."""
        other = None if self.pools is None else self.pools.decode_router
        return [*self.routers, *([] if other is None else [other])]

    def _uses_predictions(self, router: str) -> bool:
        """Whether this router, or the decode pool's, uses predictions."""
        other = None if self.pools is None else self.pools.decode_router
        return any(make_router(name).uses_predictions for name in {router, other or router})


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The offered load, averaged over the seeds. `load` is the requested one, else offered rate over capacity."""

    load: float
    offered_per_s: float


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy with one predictor and router at one offered load, by seed. `predictor` is None where none is used."""

    offered: OfferedLoad
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

    def figures(self, metric: Metric, statistic: Statistic) -> list[float]:
        """A statistic of latency, seed by seed."""
        return [float(getattr(getattr(outcome.summary, metric), statistic)) for outcome in self.outcomes]

    def latency(self, metric: Metric, statistic: Statistic) -> float:
        """A statistic of latency, averaged over the seeds."""
        return float(np.mean(self.figures(metric, statistic)))

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

    def within(self, slo: LatencyLimits) -> float:
        """The share of all requests, refused ones too, that were served within the limits."""
        return float(np.mean(np.concatenate([outcome.within(slo) for outcome in self.outcomes])))

    def goodput(self, slo: LatencyLimits) -> float:
        """Requests per second of makespan that were served within the limits."""
        rates = [float(outcome.within(slo).sum()) / outcome.summary.makespan_s for outcome in self.outcomes]
        return float(np.mean(rates))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its requests' classes."""
        named = [outcome.request_class for outcome in self.outcomes if outcome.request_class is not None]
        return tuple(sorted({name for names in named for name in names if name is not None}))

    def attained_by(self, request_class: str, slo: LatencyLimits) -> tuple[float, float]:
        """Return the share of a class within the limits, and its requests per second of makespan within them."""
        met = [outcome.within(slo)[outcome.is_of(request_class)] for outcome in self.outcomes]
        rates = [
            float(each.sum()) / outcome.summary.makespan_s for each, outcome in zip(met, self.outcomes, strict=True)
        ]
        return float(np.mean(np.concatenate(met))), float(np.mean(rates))


@dataclass(frozen=True, eq=False)
class Grid:
    """All cells, by offered load, then by predictor. `workload` is that of the first seed."""

    fleet: Fleet
    seeds: tuple[int, ...]
    slo: LatencyLimits
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
    def offered_loads(self) -> tuple[OfferedLoad, ...]:
        """Offered loads in the order of the plan."""
        return tuple(dict.fromkeys(cell.offered for cell in self.cells))

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

    def baseline(self, offered: OfferedLoad) -> Cell | None:
        """Return the cell of FCFS at an offered load, behind the first router; None if it was not run."""
        return next((cell for cell in self.cells if cell.offered == offered and cell.policy == BASELINE), None)

    def ratio(self, cell: Cell, metric: Metric, statistic: Statistic) -> Ratio:
        """A cell's figure over FCFS's at the same offered load."""
        return self._ratios[id(cell), metric, statistic]

    @cached_property
    def _ratios(self) -> dict[tuple[int, Metric, Statistic], Ratio]:
        return {(id(cell), *what): self._compare(cell, *what) for cell in self.cells for what in COMPARED}

    def _compare(self, cell: Cell, metric: Metric, statistic: Statistic) -> Ratio:
        base = self.baseline(cell.offered)
        if base is None:
            return Ratio.none()
        if cell is base:
            return Ratio(1.0, 1.0, 1.0)
        if len(self.seeds) > 1:
            return over_seeds(cell.figures(metric, statistic), base.figures(metric, statistic))
        return paired_ratio(cell.outcomes[0], base.outcomes[0], metric, statistic, seed=self.seeds[0])

    def within(self, cell: Cell) -> ShareChange | None:
        """Return the share of requests within the limits beside FCFS's at the same offered load."""
        base = self.baseline(cell.offered)
        if base is None:
            return None
        met, theirs = ([outcome.within(self.slo) for outcome in each.outcomes] for each in (cell, base))
        return share_change(met, theirs, seed=self.seeds[0])

    def session_ratio(self, cell: Cell, statistic: Statistic) -> Ratio:
        """Return the time of a cell's sessions over that of FCFS at the same offered load; none without sessions."""
        base = self.baseline(cell.offered)
        if base is None or any(outcome.session is None for outcome in (*cell.outcomes, *base.outcomes)):
            return Ratio.none()
        if cell is base:
            return Ratio(1.0, 1.0, 1.0)
        if len(self.seeds) > 1:
            figures = [
                [float(getattr(outcome.summary.session_s, statistic)) for outcome in each.outcomes]
                for each in (cell, base)
            ]
            return over_seeds(figures[0], figures[1])
        q = None if statistic == "mean" else int(statistic[1:]) / 100
        return over_requests(cell.outcomes[0].session_s, base.outcomes[0].session_s, q, seed=self.seeds[0])

    def gain_captured(self, cell: Cell, metric: Metric) -> float:
        """The share of the gain of the same policy with true lengths, on means (`paired.gain_captured`)."""
        base = self.baseline(cell.offered)
        truth = next(
            (c for c in self.cells if (c.offered, c.label, c.predictor) == (cell.offered, cell.label, TRUTH)), None
        )
        if base is None or truth is None:
            return math.nan
        return gain_captured(*(each.latency(metric, "mean") for each in (cell, base, truth)))

    def to_table(self) -> pa.Table:
        """Return one row per request of every run, with the routing trace if any run has one."""
        explained = any(outcome.trace is not None for cell in self.cells for outcome in cell.outcomes)
        tables = []
        for cell in self.cells:
            for seed, outcome in zip(self.seeds, cell.outcomes, strict=True):
                n, trace = len(outcome), outcome.trace or RoutingTrace.of({}, len(outcome))
                marks = {"seed": seed, "load": cell.offered.load, "router": cell.router}
                columns = (trace.columns() if explained else {}) | {
                    name: pa.repeat(pa.scalar(value), n) for name, value in marks.items()
                }
                columns["predictor"] = pa.repeat(pa.scalar(cell.predictor, pa.string()), n)
                table = outcome.to_table()
                tables.append(pa.table(dict(zip(table.column_names, table.columns, strict=True)) | columns))
        return pa.concat_tables(tables)


def paired_ratio(ours: Outcome, base: Outcome, metric: Metric, statistic: Statistic, *, seed: int = 0) -> Ratio:
    """Return one outcome's statistic over another's on the same requests, with an interval over blocks of requests."""
    q = None if statistic == "mean" else int(statistic[1:]) / 100
    return over_requests(ours.latencies[metric], base.latencies[metric], q, seed=seed)


def run_grid(plan: Plan, draw: Draw, *, on_progress: Report | None = None) -> Grid:
    """Simulate every cell of the plan until its last request finishes.

    `draw` makes the workload of a seed: with its own arrivals if the plan keeps them, else at one request per second,
    which is then scaled. Capacity, and predictions but for those of a predictor that learns from finished requests, are
    computed once per seed and hold at every load.
    """
    settings = [DrawnSetting(draw(seed), plan.fleet, seed) for seed in plan.seeds]
    plan = plan.with_predictors(settings[0].workload)
    names = dict.fromkeys((*plan.predictors, *(() if plan.refresh is None else (plan.refresh,))))
    for name in names:
        if parse_predictor_spec(name).kind in ("model", "memory", "learn"):
            predict_workload(settings[0].workload.head(1), name)  # fail early: no model file, or no prompts
    n_loads = len(plan.offered_loads(1.0))
    again = sum(map(learns, names)) * (n_loads - 1)
    steps = Steps(on_progress, len(settings) * (1 + len(names) + again + n_loads * len(plan.runs)))
    runs = len(settings) * (1 + n_loads * len(plan.runs))
    tokens = runs * int(settings[0].workload.output_tokens.sum())
    blocks = runs * len(settings[0].workload.block_values) if settings[0].workload.has_blocks else 0
    accelerate = any(map(learns, names)) or worth_compiling(tokens, plan.all_routers, blocks)
    capacities = tuple(CapacityTask(setting, accelerate).capacity(steps.next("capacity")) for setting in settings)
    predictions = {name: _predictions(name, settings, steps) for name in names if not learns(name)}
    cells: list[Cell] = []
    for place in range(n_loads):
        rates = [plan.offered_loads(capacity.requests_per_s)[place][1] for capacity in capacities]
        here = [
            DrawnSetting(setting.workload_at(rate), plan.fleet, setting.seed)
            for setting, rate in zip(settings, rates, strict=True)
        ]
        offered = _offered(plan, place, here, capacities)
        # What a learner has seen depends on the load; the grid shows the predictions of the last one.
        predictions |= {name: _predictions(name, here, steps) for name in names if learns(name)}
        by_seed = [
            [
                replace(task, accelerate=accelerate).outcome(
                    steps.next(f"{task.policy} {task.router} {offered.load:.2f}")
                )
                for task in plan.tasks(setting, None, {name: predictions[name][seed] for name in names})
            ]
            for seed, setting in enumerate(here)
        ]
        for (router, predictor, _), *outcomes in zip(plan.runs, *by_seed, strict=True):
            cells.append(Cell(offered, predictor, outcomes[0].policy, tuple(outcomes), make_router(router).name))
    shown = {name: predictions[name] for name in plan.predictors}
    given = plan.fleet, tuple(plan.seeds), plan.slo, settings[0].workload, capacities, shown, tuple(cells)
    return Grid(*given, pools=plan.pools, refresh=plan.refresh)


def _offered(plan: Plan, place: int, settings: Sequence[DrawnSetting], capacities: Sequence[Capacity]) -> OfferedLoad:
    rates = [setting.workload.rate for setting in settings]
    load = float(np.mean([capacity.load(rate) for rate, capacity in zip(rates, capacities, strict=True)]))
    return OfferedLoad(plan.loads[place] if plan.loads else load, float(np.mean(rates)))


def _predictions(name: str, settings: Sequence[DrawnSetting], steps: Steps) -> tuple[RequestPredictions, ...]:
    """Predictions for every seed. A model predicts a prompt that several seeds have drawn once."""
    if parse_predictor_spec(name).kind != "model" or len(settings) == 1:
        return tuple(
            as_predictions(each.workload, each.fleet, name, seed=each.seed, on_progress=steps.next(name))
            for each in settings
        )
    drawn = [setting.workload for setting in settings]
    rows = pa.concat_tables([workload.table.select(_PREDICTOR_COLUMNS) for workload in drawn])
    rows = rows.append_column("arrival_s", pa.array(np.zeros(len(rows))))
    pooled = predict_workload(
        Workload.from_table(rows, name=drawn[0].name), name, on_progress=steps.next(name, steps=len(drawn))
    )
    ends = np.cumsum([len(workload) for workload in drawn])
    return tuple(pooled.take(slice(int(end) - len(each), int(end))) for end, each in zip(ends, drawn, strict=True))
