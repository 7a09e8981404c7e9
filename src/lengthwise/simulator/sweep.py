"""Sweeps: a YAML file whose lists are crossed, run as cached tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lengthwise.defaults import COMPARED_POLICIES, DEFAULT_ROUTER
from lengthwise.errors import InputError
from lengthwise.settings import read_yaml, validated
from lengthwise.simulator.cluster import default_loads
from lengthwise.simulator.fleet import Fleet, parse_fleet_events
from lengthwise.simulator.grid import USUAL_ROUTER, Plan
from lengthwise.simulator.routing import charged_times_s
from lengthwise.simulator.tasks import CapacityTask, Report, ResultCache, Setting, SimulationTask, TaskRunner, Workers
from lengthwise.specs import split_specs
from lengthwise.workloads.traces import Source


def _listed(value: Any) -> Any:  # any YAML value, or an option that is not given
    return value if isinstance(value, list) else [] if value is None else [value]


def separated(value: Any) -> Any:
    """Split a text at the commas between its specs; repeats count once."""
    return list(dict.fromkeys(split_specs(value))) if isinstance(value, str) else _listed(value)


def numbers(value: Any) -> Any:
    """Return the numbers of a text that separates them by commas; a list as it is."""
    try:
        return [float(part) for part in separated(value)]
    except (TypeError, ValueError) as error:
        raise InputError(f"'{value}'", hint="give numbers separated by commas") from error


def _times(value: Any) -> Any:
    """Read microseconds, or ROUTER=MICROSECONDS separated by commas."""
    if not isinstance(value, str):
        return value
    try:
        parts = (part.partition("=") for part in value.split(","))
        return {name.strip(): float(us) for name, _, us in parts} if "=" in value else float(value)
    except ValueError as error:
        hint = "give microseconds, or ROUTER=MICROSECONDS separated by commas"
        raise InputError(f"'{value}'", hint=hint) from error


Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
Events = Annotated[list[str], BeforeValidator(_listed), Field(json_schema_extra={"repeatable": True})]
Specs = Annotated[list[str], BeforeValidator(separated)]
Numbers = Annotated[list[float], BeforeValidator(numbers)]


class Limits(BaseModel):
    """Limits of every engine; without one, the engine's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_num_seqs: int | None = None
    """Requests that run at once in an engine [default: 64, as in `serve`, or fewer where an engine's file says so]."""
    max_num_batched_tokens: int | None = None
    """Tokens computed per step [default: vLLM's for the GPU]."""
    kv_tokens: int | None = None
    """KV memory of an engine in tokens [default: what the weights leave of the GPU]."""
    prefix_caching: bool | None = None
    """Reuse cached blocks of equal prompt prefixes [default: on, as in vLLM]."""
    admission: str | None = None
    """What must fit into KV memory for an engine to admit a request: its prompt (`prompt`, vLLM's rule), the predicted
    future `peak` of all running requests, a `reserve` for each, or a quantile of what all take together (`joint`, the
    rule by which `serve` holds requests in front of its engines) [default: prompt, or as an engine's file says: what is
    simulated is the engine]."""
    admission_quantile: float | None = None
    """The quantile that must fit: with `joint` of what all take together [default: 0.8, as in the gateway], with
    `peak` and `reserve` of each length [default: 0.9]."""


class SweepConfig(BaseModel):
    """All combinations of workload, fleet, load or rate, router, predictor, policy and seed.

    `lengthwise simulate` takes the same fields as options, for one workload and fleet. A list may be one text with
    commas.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    workload: Names
    """`castillo`, names of `lengthwise traces list`, or workload files."""
    fleet: Names
    """Engines as COUNT*MODEL@GPU, separated by commas."""
    policy: Specs = list(COMPARED_POLICIES)
    """Policies to compare, separated by commas: names, specs (tie:beta=0.3) or package.module:Class."""
    router: Specs = []
    """Routers to compare, separated by commas; a router chooses the engine of each request [default: lengthwise where
    there are several engines]."""
    predictor: Specs = []
    """Predictors to compare, separated by commas: `fast`, `default` or a model file (workloads with prompts),
    `history`, `memory` (past lengths behind the same prefix, session or tenant), `memory+fast`, `none`, `noisy:TAU`,
    `oracle` (TRUE LENGTHS: an upper bound) [default: fast if the workload has prompts, else history]."""
    rate: Numbers = []
    """Requests per second, separated by commas [default: the workload's arrivals; castillo, which has none: load
    0.9]."""
    load: Numbers = []
    """Instead of a rate: multiples of the capacity under FCFS and round robin, separated by commas."""
    requests: int | None = Field(None, ge=1)
    """Number of requests [default: all; castillo: 1,000 or 20 per slot]."""
    llm: str = "llama-3.1-8b"
    """castillo: the LLM whose answer lengths are used."""
    seed: int = Field(0, ge=0)
    """Seed of prompts, lengths, arrivals and noise; with several seeds the first."""
    seeds: int = Field(1, ge=1)
    """Number of seeds; every policy sees the same ones."""
    cv: float | None = None
    """Draw new arrivals with gaps of this CV (1: Poisson), even if the workload has arrivals."""
    limits: Limits = Limits()
    """Limits of every engine."""
    prediction_delay: float = 0.0
    """Seconds from arrival to prediction."""
    decision_time: float = 0.0
    """Seconds that each admission or preemption costs the engine."""
    routing_time: Annotated[dict[str, float] | float | None, BeforeValidator(_times)] = None
    """Microseconds that a router takes per request: one number, or ROUTER=NUMBER separated by commas [default: as
    measured]."""
    down: Events = []
    """ENGINE@SECOND: this engine (numbered from 0) fails at this second; repeatable."""
    up: Events = []
    """ENGINE@SECOND: it starts, or starts again, at this second; repeatable."""
    drain: Events = []
    """ENGINE@SECOND: it takes no new requests from this second on; repeatable."""

    @property
    def drawn_seeds(self) -> str:
        """The seeds in words."""
        return str(self.seed) if self.seeds == 1 else f"{self.seed} to {self.seed + self.seeds - 1}"

    def plans(self) -> list[tuple[Source, Plan]]:
        """Return a validated plan for each pair of workload and fleet."""
        return [(self._source(name), self._plan(name, fleet)) for name in self.workload for fleet in self.fleet]

    def _source(self, name: str) -> Source:
        return Source(name, self.llm, self.requests, self.cv)

    def _plan(self, workload: str, fleet: str) -> Plan:
        events = [
            event
            for kind, texts in (("down", self.down), ("up", self.up), ("drain", self.drain))
            for text in texts
            for event in parse_fleet_events(kind, text)  # type: ignore[arg-type]
        ]
        engines = Fleet.parse(fleet).behind_gateway().limited_to(**self.limits.model_dump())
        if self.limits.admission_quantile is not None and all(each.admission == "prompt" for each in engines.engines):
            raise InputError(
                "no engine admits by a quantile",
                field="admission_quantile",
                hint="add --admission joint, peak or reserve",
            )
        routers = self.router or [DEFAULT_ROUTER if len(engines) > 1 else USUAL_ROUTER]
        return Plan(
            engines,
            policies=self.policy,
            predictors=self.predictor,
            rates=self.rate,
            loads=self.load or ([] if self.rate else default_loads(workload)),
            seeds=range(self.seed, self.seed + self.seeds),
            prediction_delay_s=self.prediction_delay,
            decision_s=self.decision_time,
            routers=routers,
            routing_s=charged_times_s(routers, len(engines), self.routing_time),
            fleet_events=events,
        )


def read_sweep(path: Path) -> SweepConfig:
    """Read a sweep from a YAML file; an InputError names the field that is wrong."""
    content = read_yaml(path, hint="begin with workload: and fleet:")
    return validated(SweepConfig, content, source=path)


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
    labels: list[dict[str, Any]] = []
    tasks: list[SimulationTask] = []
    for setting, plan in settings:
        capacity_per_s = capacities.get(CapacityTask(setting), {}).get("requests_per_s", math.nan)
        for load, rate in plan.offered_loads(capacity_per_s):
            tasks += plan.tasks(setting, rate)
            where = {
                "workload": setting.source.name,
                "fleet": str(setting.fleet),
                "load": load,
                "rate": rate if load is None else None,
            }
            labels += [
                {**where, "router": router, "predictor": predictor, "policy": policy, "seed": setting.seed}
                for router, predictor, policy in plan.runs
            ]
    results = runner.results("simulate", tasks)
    rows = [{**label, **result} for label, result in zip(labels, results, strict=True)]
    return SweepResult(rows, runner.from_cache, runner.computed)
