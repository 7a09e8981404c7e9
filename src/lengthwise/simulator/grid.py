"""Grids of simulations: seeds x loads x routers x predictors x policies.

All cells of a seed share arrivals, true lengths and prediction noise, so that comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.resolve import parse_predictor_spec
from lengthwise.routers import make_router
from lengthwise.simulator.cluster import Capacity, check_seconds, measure_capacity, simulate
from lengthwise.simulator.disaggregated import Pools
from lengthwise.simulator.fleet import Fleet, FleetEvent, sorted_events
from lengthwise.simulator.grid_result import BASELINE, USUAL_ROUTER, Cell, Grid, Level
from lengthwise.simulator.metrics import Slo
from lengthwise.simulator.predictions import RequestPredictions, default_predictor, predict_workload
from lengthwise.simulator.tasks import Report
from lengthwise.specs import parse_spec
from lengthwise.workloads import Workload

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
    slo: Slo = field(default_factory=Slo)
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

    def options(self, router: str) -> dict[str, Any]:
        """Return the options of `simulate` that every cell behind a router shares."""
        return {
            "prediction_delay_s": self.prediction_delay_s,
            "decision_s": self.decision_s,
            "routing_s": self.routing_s.get(parse_spec(router).base, 0.0),
            "fleet_events": tuple(self.fleet_events),
        }

    def with_predictors(self, workload: Workload) -> Plan:
        """Return the plan with the default predictor for this workload, if it names none."""
        return self if self.predictors else replace(self, predictors=(default_predictor(workload),))

    @property
    def own_arrivals(self) -> bool:
        """Whether the workload keeps its own arrivals."""
        return not (self.rates or self.loads)

    @property
    def repeats(self) -> bool:
        """Whether seeds must differ in the workload, not only in prediction noise."""
        return len(self.seeds) > 1 and not any(name.startswith("noisy") for name in self.predictors)

    @property
    def runs(self) -> list[tuple[str, str | None, str]]:
        """Router, predictor and policy of each cell of a level.

        FCFS behind a router without predictions runs once per level, first, with predictor None.
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

    def _uses_predictions(self, router: str) -> bool:
        """Whether this router, or the decode pool's, uses predictions."""
        other = None if self.pools is None else self.pools.decode_router
        return any(make_router(name).uses_predictions for name in {router, other or router})


def run_grid(plan: Plan, draw: Draw, *, on_progress: Report | None = None) -> Grid:
    """Simulate every cell of the plan until its last request finishes.

    `draw` makes the workload of a seed: with its own arrivals if the plan keeps them, else at one request per second,
    which is then scaled. Predictions and capacity are computed once per seed and hold at every load.
    """
    drawn = [draw(seed) for seed in plan.seeds]
    plan = plan.with_predictors(drawn[0])
    names = (*plan.predictors, *(() if plan.refresh is None else (plan.refresh,)))
    for name in names:
        if parse_predictor_spec(name).kind == "model":
            predict_workload(drawn[0].head(1), name)  # fail early: no model file, or a workload without prompts
    steps = _Steps(on_progress, len(drawn) * (1 + len(names) + _levels(plan) * len(plan.runs)))
    capacities = tuple(measure_capacity(each, plan.fleet, on_progress=steps.next("capacity")) for each in drawn)
    predictions = {name: _predictions(name, drawn, plan.seeds, steps) for name in plan.predictors}
    refreshed = None if plan.refresh is None else _predictions(plan.refresh, drawn, plan.seeds, steps)
    cells: list[Cell] = []
    for place in range(_levels(plan)):
        workloads = [
            each if plan.own_arrivals else each.replace(arrival_s=each.arrival_s / _rate(plan, place, capacity))
            for each, capacity in zip(drawn, capacities, strict=True)
        ]
        level = _level(plan, place, workloads, capacities)
        for router, predictor, policy in plan.runs:
            known = predictions[plan.predictors[0] if predictor is None else predictor]
            outcomes = tuple(
                simulate(
                    workload,
                    plan.fleet,
                    policy,
                    router=router,
                    predictor=predicted,
                    refresh=again,
                    pools=plan.pools,
                    explain=plan.explain,
                    on_progress=steps.next(f"{policy} {router} {level.load:.2f}"),
                    **plan.options(router),
                )
                for workload, predicted, again in zip(workloads, known, refreshed or [None] * len(drawn), strict=True)
            )
            cells.append(Cell(level, predictor, outcomes[0].policy, outcomes, make_router(router).name))
    given = plan.fleet, tuple(plan.seeds), plan.slo, drawn[0], capacities, predictions, tuple(cells)
    return Grid(*given, pools=plan.pools, refresh=plan.refresh)


def _levels(plan: Plan) -> int:
    return max(1, len(plan.rates), len(plan.loads))


def _rate(plan: Plan, place: int, capacity: Capacity) -> float:
    return plan.rates[place] if plan.rates else plan.loads[place] * capacity.requests_per_s


def _level(plan: Plan, place: int, workloads: Sequence[Workload], capacities: Sequence[Capacity]) -> Level:
    pairs = list(zip(workloads, capacities, strict=True))
    offered = float(np.mean([workload.rate for workload in workloads]))
    load = float(np.mean([capacity.load(workload.rate) for workload, capacity in pairs]))
    return Level(plan.loads[place] if plan.loads else load, offered)


def _predictions(
    name: str, drawn: Sequence[Workload], seeds: Sequence[int], steps: _Steps
) -> tuple[RequestPredictions, ...]:
    """Predictions for every seed. A model predicts a prompt that several seeds have drawn once."""
    if parse_predictor_spec(name).kind != "model" or len(drawn) == 1:
        return tuple(
            predict_workload(workload, name, seed=seed, on_progress=steps.next(name))
            for workload, seed in zip(drawn, seeds, strict=True)
        )
    rows = pa.concat_tables([workload.table.select(_PREDICTOR_COLUMNS) for workload in drawn])
    rows = rows.append_column("arrival_s", pa.array(np.zeros(len(rows))))
    pooled = predict_workload(
        Workload.from_table(rows, name=drawn[0].name), name, on_progress=steps.next(name, steps=len(drawn))
    )
    ends = np.cumsum([len(workload) for workload in drawn])
    return tuple(pooled.take(slice(int(end) - len(each), int(end))) for end, each in zip(ends, drawn, strict=True))


class _Steps:
    """Turns the progress of each step into that of the whole grid."""

    def __init__(self, report: Report | None, total: int) -> None:
        self._report, self._total, self._done = report, total, 0

    def next(self, what: str, *, steps: int = 1) -> Callable[[float], None]:
        """Return the progress callback of the next step, or of the next `steps` together."""
        start = self._done
        self._done += steps

        def report(share: float) -> None:
            if self._report is not None:
                self._report(what, (start + steps * share) / self._total)

        return report
