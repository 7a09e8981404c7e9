"""A sweep as a person writes it: YAML whose lists are crossed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lengthwise.errors import InputError
from lengthwise.simulator import Fleet
from lengthwise.simulator.fleet_events import parse_changes
from lengthwise.simulator.grid import Plan
from lengthwise.simulator.routing_times import charged
from lengthwise.workloads.source import Source


def _listed(value: Any) -> Any:  # noqa: ANN401  (whatever the file holds)
    return value if isinstance(value, list) else [value]


Names = Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
Numbers = Annotated[list[float], BeforeValidator(_listed)]
Texts = Annotated[list[str], BeforeValidator(_listed)]


class Limits(BaseModel):
    """Of every engine; what is not given stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    prefix_caching: bool | None = None
    admission: str | None = None


class SweepConfig(BaseModel):
    """All combinations of workload, fleet, load or rate, router, predictor, policy and seed.

    Names are those of `lengthwise simulate`; times in seconds, `routing_time` in microseconds, for all or by router.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    workload: Names
    fleet: Names
    policy: Names = ["fcfs"]
    router: Names = ["round_robin"]
    predictor: Names = ["oracle"]
    load: Numbers = []
    rate: Numbers = []
    seeds: int = Field(1, ge=1)
    seed: int = Field(0, ge=0)
    requests: int | None = Field(None, ge=1)
    llm: str = "llama-3.1-8b"
    cv: float | None = None
    limits: Limits = Limits()
    routing_time: dict[str, float] | float | None = None
    prediction_delay: float = 0.0
    decision_time: float = 0.0
    down: Texts = []
    up: Texts = []
    drain: Texts = []

    def plans(self) -> list[tuple[Source, Plan]]:
        """A plan for each workload and fleet, checked."""
        return [(self._source(name), self._plan(fleet)) for name in self.workload for fleet in self.fleet]

    def _source(self, name: str) -> Source:
        return Source(name, self.llm, self.requests, self.cv)

    def _plan(self, fleet: str) -> Plan:
        changes = [
            change
            for kind, texts in (("down", self.down), ("up", self.up), ("drain", self.drain))
            for text in texts
            for change in parse_changes(kind, text)  # type: ignore[arg-type]
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
            routing_s=charged(self.router, len(engines), self.routing_time),
            changes=changes,
        )


def read_sweep(path: Path) -> SweepConfig:
    """Read a YAML file; what is wrong in it is told with its field."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("is not a file", source=path) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"is not YAML: {str(error).splitlines()[0]}", source=path) from error
    if not isinstance(content, dict):
        raise InputError("holds no fields", source=path, hint="begin with workload: and fleet:")
    try:
        return SweepConfig(**content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(step) for step in first["loc"])
        known = f"known are {', '.join(SweepConfig.model_fields)}" if first["type"] == "extra_forbidden" else None
        raise InputError(first["msg"], source=path, field=field, hint=known) from None
