"""Seeds x loads x predictors x policies, paired: who is compared meets the same arrivals, lengths and noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lengthwise.predictors.experimental import parse_predictor_spec
from lengthwise.routers import make_router
from lengthwise.simulator.capacity import measure_capacity
from lengthwise.simulator.cluster import simulate
from lengthwise.simulator.disaggregated import simulate_disaggregated
from lengthwise.simulator.grid_result import Cell, Grid, Level
from lengthwise.simulator.plan import Plan
from lengthwise.simulator.predictions import RequestPredictions, predict_workload
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lengthwise.simulator.capacity import Capacity
    from lengthwise.simulator.outcome import Outcome

    Draw = Callable[[int], Workload]
    Report = Callable[[str, float], None]
    Predictions = Mapping[str, tuple[RequestPredictions, ...]]

__all__ = ["Plan", "run_grid"]

_READ: Final = ("input_tokens", "output_tokens", "max_tokens", "sample_mean", "prompt", "llm")
"""What a model's predictions can depend on."""


def run_grid(plan: Plan, draw: Draw, *, on_progress: Report | None = None) -> Grid:
    """Serve every combination to the last request.

    `draw` makes the workload of a seed: with its own arrivals where these are kept, else at one request per second,
    which is then sped up. So predictions and capacity are those of the seed, at whatever load.
    """
    drawn = [draw(seed) for seed in plan.seeds]
    asked = (*plan.predictors, *(() if plan.refresh is None else (plan.refresh,)))
    for name in asked:
        if parse_predictor_spec(name).kind == "model":
            predict_workload(
                drawn[0].head(1), name
            )  # a model that cannot be read, or has nothing to read, is told at once
    steps = _Steps(on_progress, len(drawn) * (1 + len(asked) + _levels(plan) * len(plan.runs)))
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
                _serve(plan, (router, policy), each, steps.next(f"{policy} {router} {level.load:.2f}"))
                for each in zip(workloads, known, refreshed or [None] * len(drawn), strict=True)
            )
            cells.append(Cell(level, predictor, outcomes[0].policy, outcomes, make_router(router).name))
    given = plan.fleet, tuple(plan.seeds), plan.slo, drawn[0], capacities, predictions, tuple(cells)
    return Grid(*given, pools=plan.pools, refresh=plan.refresh)


def _serve(
    plan: Plan,
    who: tuple[str, str],
    seed: tuple[Workload, RequestPredictions, RequestPredictions | None],
    on_progress: Callable[[float], None],
) -> Outcome:
    """One run: of a router and a policy, on a seed's requests with what is predicted first and later."""
    (router, policy), (workload, predicted, refreshed) = who, seed
    routing_s = plan.routing_s.get(router.partition(":")[0], 0.0)
    if plan.pools is not None:
        return simulate_disaggregated(
            workload,
            plan.fleet,
            plan.pools,
            policy,
            router=router,
            predictor=predicted,
            refresh=refreshed,
            decision_s=plan.decision_s,
            routing_s=routing_s,
            on_progress=on_progress,
        )
    return simulate(
        workload,
        plan.fleet,
        policy,
        router=router,
        predictor=predicted,
        prediction_delay_s=plan.prediction_delay_s,
        decision_s=plan.decision_s,
        routing_s=routing_s,
        changes=plan.changes,
        explain=plan.explain,
        on_progress=on_progress,
    )


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
    """Of every seed. A model reads a prompt that several seeds have drawn only once."""
    if parse_predictor_spec(name).kind != "model" or len(drawn) == 1:
        return tuple(
            predict_workload(workload, name, seed=seed, on_progress=steps.next(name))
            for workload, seed in zip(drawn, seeds, strict=True)
        )
    rows = pa.concat_tables([workload.table.select(_READ) for workload in drawn])
    rows = rows.append_column("arrival_s", pa.array(np.zeros(len(rows))))
    pooled = predict_workload(
        Workload.from_table(rows, name=drawn[0].name), name, on_progress=steps.next(name, steps=len(drawn))
    )
    ends = np.cumsum([len(workload) for workload in drawn])
    return tuple(pooled.take(slice(int(end) - len(each), int(end))) for end, each in zip(ends, drawn, strict=True))


class _Steps:
    """Turns the progress of each step into that of the whole."""

    def __init__(self, tell: Report | None, total: int) -> None:
        self._tell, self._total, self._done = tell, total, 0

    def next(self, what: str, *, steps: int = 1) -> Callable[[float], None]:
        """What the next step, or so many at once, may call with its share done."""
        begun = self._done
        self._done += steps

        def report(share: float) -> None:
            if self._tell is not None:
                self._tell(what, (begun + steps * share) / self._total)

        return report
