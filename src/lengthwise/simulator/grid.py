"""Seeds x loads x predictors x policies, paired: who is compared meets the same arrivals, lengths and noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.predictors.experimental import parse_predictor_spec
from lengthwise.routers import make_router
from lengthwise.simulator.beliefs import RequestBeliefs, believe
from lengthwise.simulator.capacity import measure_capacity
from lengthwise.simulator.cells import BASELINE, USUAL_ROUTER, Cell, Grid, Level
from lengthwise.simulator.changes import in_order
from lengthwise.simulator.cluster import check_seconds, simulate
from lengthwise.simulator.metrics import Slo
from lengthwise.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lengthwise.simulator.capacity import Capacity
    from lengthwise.simulator.changes import Change
    from lengthwise.simulator.fleet import Fleet

    Draw = Callable[[int], Workload]
    Report = Callable[[str, float], None]
    Beliefs = Mapping[str, tuple[RequestBeliefs, ...]]

_READ: Final = ("input_tokens", "output_tokens", "max_tokens", "sample_mean", "prompt", "llm")
"""What a model's beliefs can depend on."""


@dataclass(frozen=True)
class Plan:
    """What is compared, checked at once. Rates or loads, not both; with neither, the workload's own arrivals."""

    fleet: Fleet
    policies: Sequence[str]
    predictors: Sequence[str] = ("oracle",)
    rates: Sequence[float] = ()
    loads: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    slo: Slo = field(default_factory=Slo)
    belief_delay_s: float = 0.0
    decision_s: float = 0.0
    routers: Sequence[str] = (USUAL_ROUTER,)
    routing_s: Mapping[str, float] = field(default_factory=dict)
    """What a router takes for a request, by its name without parameters; nothing where it is not named."""
    changes: Sequence[Change] = ()
    explain: bool = False

    def __post_init__(self) -> None:
        if self.rates and self.loads:
            raise InputError("both a rate and a load", field="load", hint="give one of --rate and --load")
        for name, values, unit in (("rate", self.rates, " requests per second"), ("load", self.loads, "")):
            for value in values:
                if not (np.isfinite(value) and value > 0):
                    raise InputError(f"a {name} of {value:g}{unit}", field=name, hint="give a number above 0")
        check_seconds(belief_delay_s=self.belief_delay_s, decision_s=self.decision_s)
        check_seconds(**{f"routing_s of {name}": seconds for name, seconds in self.routing_s.items()})
        in_order(self.changes, len(self.fleet))
        if not self.seeds:
            raise InputError("no seeds", field="seeds", hint="give at least 1")
        for policy in self.policies:
            make_policy(policy)
        for router in self.routers:
            make_router(router)
        for predictor in self.predictors:
            parse_predictor_spec(predictor)

    @property
    def own_arrivals(self) -> bool:
        """Whether the workload's own arrivals are kept."""
        return not (self.rates or self.loads)

    @property
    def repeats(self) -> bool:
        """Whether seeds are to differ in more than noise."""
        return len(self.seeds) > 1 and not any(name.startswith("noisy") for name in self.predictors)

    @property
    def runs(self) -> list[tuple[str, str | None, str]]:
        """Router, predictor and policy of each cell of a level.

        FCFS looks at no belief, so it is run once, and first, behind a router that looks at none either.
        """
        runs: list[tuple[str, str | None, str]] = []
        for router in self.routers:
            blind = [] if make_router(router).believes else [policy for policy in self.policies if policy == BASELINE]
            others = [policy for policy in self.policies if policy not in blind]
            runs += [(router, None, policy) for policy in blind]
            runs += [(router, predictor, policy) for predictor in self.predictors for policy in others]
        return runs


def run_grid(plan: Plan, draw: Draw, *, on_progress: Report | None = None) -> Grid:
    """Serve every combination to the last request.

    `draw` makes the workload of a seed: with its own arrivals where these are kept, else at one request per second,
    which is then sped up. So beliefs and capacity are those of the seed, at whatever load.
    """
    drawn = [draw(seed) for seed in plan.seeds]
    for name in plan.predictors:
        if parse_predictor_spec(name).kind == "model":
            believe(drawn[0].head(1), name)  # a model that cannot be read, or has nothing to read, is told at once
    steps = _Steps(on_progress, len(drawn) * (1 + len(plan.predictors) + _levels(plan) * len(plan.runs)))
    capacities = tuple(measure_capacity(each, plan.fleet, on_progress=steps.next("capacity")) for each in drawn)
    beliefs = {name: _beliefs(name, drawn, plan.seeds, steps) for name in plan.predictors}
    cells: list[Cell] = []
    for place in range(_levels(plan)):
        workloads = [
            each if plan.own_arrivals else each.replace(arrival_s=each.arrival_s / _rate(plan, place, capacity))
            for each, capacity in zip(drawn, capacities, strict=True)
        ]
        level = _level(plan, place, workloads, capacities)
        for router, predictor, policy in plan.runs:
            known = beliefs[plan.predictors[0] if predictor is None else predictor]
            outcomes = tuple(
                simulate(
                    workload,
                    plan.fleet,
                    policy,
                    router=router,
                    predictor=believed,
                    belief_delay_s=plan.belief_delay_s,
                    decision_s=plan.decision_s,
                    routing_s=plan.routing_s.get(router.partition(":")[0], 0.0),
                    changes=plan.changes,
                    explain=plan.explain,
                    on_progress=steps.next(f"{policy} {router} {level.load:.2f}"),
                )
                for workload, believed in zip(workloads, known, strict=True)
            )
            cells.append(Cell(level, predictor, outcomes[0].policy, outcomes, make_router(router).name))
    return Grid(plan.fleet, tuple(plan.seeds), plan.slo, drawn[0], capacities, beliefs, tuple(cells))


def _levels(plan: Plan) -> int:
    return max(1, len(plan.rates), len(plan.loads))


def _rate(plan: Plan, place: int, capacity: Capacity) -> float:
    return plan.rates[place] if plan.rates else plan.loads[place] * capacity.requests_per_s


def _level(plan: Plan, place: int, workloads: Sequence[Workload], capacities: Sequence[Capacity]) -> Level:
    pairs = list(zip(workloads, capacities, strict=True))
    offered = float(np.mean([workload.rate for workload in workloads]))
    load = float(np.mean([capacity.load(workload.rate) for workload, capacity in pairs]))
    return Level(plan.loads[place] if plan.loads else load, offered)


def _beliefs(name: str, drawn: Sequence[Workload], seeds: Sequence[int], steps: _Steps) -> tuple[RequestBeliefs, ...]:
    """Of every seed. A model reads a prompt that several seeds have drawn only once."""
    if parse_predictor_spec(name).kind != "model" or len(drawn) == 1:
        return tuple(
            believe(workload, name, seed=seed, on_progress=steps.next(name))
            for workload, seed in zip(drawn, seeds, strict=True)
        )
    rows = pa.concat_tables([workload.table.select(_READ) for workload in drawn])
    rows = rows.append_column("arrival_s", pa.array(np.zeros(len(rows))))
    pooled = believe(
        Workload.from_table(rows, name=drawn[0].name), name, on_progress=steps.next(name, steps=len(drawn))
    )
    ends = np.cumsum([len(workload) for workload in drawn])
    return tuple(_part(pooled, slice(int(end) - len(each), int(end))) for end, each in zip(ends, drawn, strict=True))


def _part(beliefs: RequestBeliefs, rows: slice) -> RequestBeliefs:
    return replace(
        beliefs,
        mu=beliefs.mu[rows],
        sigma=beliefs.sigma[rows],
        cap=beliefs.cap[rows],
        llms=beliefs.llms[rows],
        truth=beliefs.truth[rows],
    )


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
