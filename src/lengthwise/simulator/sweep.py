"""Sweeps: a YAML file whose lists are crossed, run as cached tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lengthwise.settings import invalid, read_yaml
from lengthwise.simulator.fleet import Fleet, parse_fleet_events
from lengthwise.simulator.grid import Plan
from lengthwise.simulator.routing import charged_times_s
from lengthwise.simulator.tasks import CapacityTask, CellTask, Report, ResultCache, Setting, TaskRunner, Workers
from lengthwise.workloads.traces import Source

__all__ = ["SweepConfig", "SweepResult", "read_sweep", "run_sweep"]


def _listed(value: Any) -> Any:  # noqa: ANN401  (any YAML value)
    return value if isinstance(value, list) else [value]


Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
Numbers = Annotated[list[float], BeforeValidator(_listed)]
Texts = Annotated[list[str], BeforeValidator(_listed)]


class Limits(BaseModel):
    """Limits of every engine; None keeps the engine's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_num_seqs: int | None = None
    """Requests that run at once."""
    max_num_batched_tokens: int | None = None
    """Tokens computed per step."""
    kv_tokens: int | None = None
    """KV memory in tokens."""
    prefix_caching: bool | None = None
    """Whether equal prompt prefixes are computed once."""
    admission: str | None = None
    """What must fit into KV memory for admission: `prompt`, `peak` or `reserve`."""


class SweepConfig(BaseModel):
    """All combinations of workload, fleet, load or rate, router, predictor, policy and seed.

    Names are those of `lengthwise simulate`. Times are in seconds; `routing_time` is in microseconds, one number for
    all routers or one for each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    workload: Names
    """`castillo`, names of `lengthwise traces list`, or workload files."""
    fleet: Names
    """Engines as COUNT*MODEL@GPU."""
    policy: Names = ["fcfs"]
    """Policies (docs/reference/policies.md)."""
    router: Names = ["round_robin"]
    """Routers (docs/reference/routing.md)."""
    predictor: Texts = []
    """Predictors; without any, `fast` where the workload has prompts, else `history`."""
    load: Numbers = []
    """Multiples of the capacity under FCFS and round robin."""
    rate: Numbers = []
    """Instead of a load: requests per second. With neither, the workload's own arrivals."""
    seeds: int = Field(1, ge=1)
    """Number of seeds."""
    seed: int = Field(0, ge=0)
    """The first seed."""
    requests: int | None = Field(None, ge=1)
    """Number of requests; without it all."""
    llm: str = "llama-3.1-8b"
    """castillo: the LLM whose answer lengths are used."""
    cv: float | None = None
    """Draw new arrivals with gaps of this coefficient of variation; 1 is Poisson."""
    limits: Limits = Limits()
    """Limits of every engine."""
    routing_time: dict[str, float] | float | None = None
    """Microseconds that a router takes per request; without it as measured."""
    prediction_delay: float = 0.0
    """Seconds from arrival to prediction."""
    decision_time: float = 0.0
    """Seconds that each admission or preemption costs the engine."""
    down: Texts = []
    """ENGINE@SECOND: the engine fails."""
    up: Texts = []
    """ENGINE@SECOND: the engine starts, or starts again."""
    drain: Texts = []
    """ENGINE@SECOND: the engine takes no new requests."""

    def plans(self) -> list[tuple[Source, Plan]]:
        """Return a validated plan for each pair of workload and fleet."""
        return [(self._source(name), self._plan(fleet)) for name in self.workload for fleet in self.fleet]

    def _source(self, name: str) -> Source:
        return Source(name, self.llm, self.requests, self.cv)

    def _plan(self, fleet: str) -> Plan:
        events = [
            event
            for kind, texts in (("down", self.down), ("up", self.up), ("drain", self.drain))
            for text in texts
            for event in parse_fleet_events(kind, text)  # type: ignore[arg-type]
        ]
        engines = Fleet.parse(fleet).limited_to(**self.limits.model_dump())
        return Plan(
            engines,
            policies=self.policy,
            predictors=self.predictor,
            rates=self.rate,
            loads=self.load,
            seeds=range(self.seed, self.seed + self.seeds),
            prediction_delay_s=self.prediction_delay,
            decision_s=self.decision_time,
            routers=self.router,
            routing_s=charged_times_s(self.router, len(engines), self.routing_time),
            fleet_events=events,
        )


def read_sweep(path: Path) -> SweepConfig:
    """Read a sweep from a YAML file; an InputError names the field that is wrong."""
    content = read_yaml(path, hint="begin with workload: and fleet:")
    try:
        return SweepConfig(**content)
    except ValidationError as error:
        raise invalid(error, SweepConfig, source=path) from None


@dataclass(frozen=True)
class SweepResult:
    """A row for each cell and seed, in the order of the file, and the number of results from the cache."""

    rows: list[dict[str, Any]]
    from_cache: int
    computed: int


def run_sweep(
    config: SweepConfig, cache: ResultCache, workers: Workers, *, on_progress: Report | None = None
) -> SweepResult:
    """Simulate every combination of the file. Interrupted and run again, it continues where it stopped."""
    runner = TaskRunner(cache, workers, on_progress)
    plans = []
    for source, plan in config.plans():  # a wrong source is an error before anything is simulated
        draw = source.draws(own_arrivals=plan.own_arrivals, slots=plan.fleet.slots, repeats=plan.repeats)
        plans.append((source, plan if plan.predictors else plan.with_predictors(draw(plan.seeds[0]))))
    settings = [
        (Setting(source, plan.fleet, seed, plan.own_arrivals), plan) for source, plan in plans for seed in plan.seeds
    ]
    measured = [CapacityTask(setting) for setting, plan in settings if plan.loads]
    capacities = dict(zip(measured, runner.results("capacity", measured), strict=True))
    cells: list[tuple[dict[str, Any], CellTask]] = []
    for setting, plan in settings:
        capacity_per_s = capacities.get(CapacityTask(setting), {}).get("requests_per_s", math.nan)
        for load, rate in plan.levels(capacity_per_s):
            cells += _cells(setting, plan, load, rate)
    results = runner.results("simulate", [task for _, task in cells])
    rows = [{**labels, **result} for (labels, _), result in zip(cells, results, strict=True)]
    return SweepResult(rows, runner.from_cache, runner.computed)


def _cells(
    setting: Setting, plan: Plan, load: float | None, rate: float | None
) -> Iterator[tuple[dict[str, Any], CellTask]]:
    """The labels of each row and its task. The predictor is None where neither policy nor router uses one."""
    for router, predictor, policy in plan.runs:
        labels = {
            "workload": setting.source.name,
            "fleet": str(setting.fleet),
            "load": load,
            "rate": rate if load is None else None,
            "router": router,
            "predictor": predictor,
            "policy": policy,
            "seed": setting.seed,
        }
        task = CellTask(
            setting,
            rate,
            policy,
            router,
            plan.predictors[0] if predictor is None else predictor,
            **plan.options(router),
        )
        yield labels, task
