"""Engines in YAML files: limits and a fitted step time.

name: my-engine
cost: {family: linear, prefill_base: 7.0e-3, decode_base: 10.7e-3, prefill_token: 4.9e-5,
       prefill_pair: 2.1e-9, decode: 2.7e-5, kv_token: 8.1e-8}      # seconds; see StepCost
kv_tokens: 467291
max_model_len: 131072
max_num_seqs: 256
max_num_batched_tokens: 2048
block_size: 16
prefix_caching: true
chunked_prefill: true
kv_bytes_per_token: 131072      # needed only where prefill and decode run on different engines
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lengthwise.errors import InputError
from lengthwise.simulator.costs import CostModel, Roofline, StepCost
from lengthwise.simulator.fleet import Admission, EngineSpec

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Linear(_Strict):
    family: Literal["linear"]
    prefill_base: _Above0
    decode_base: _Above0
    prefill_token: _Seconds = 0.0
    prefill_pair: _Seconds = 0.0
    decode: _Seconds = 0.0
    kv_token: _Seconds = 0.0

    def model(self) -> CostModel:
        return StepCost(**self.model_dump(exclude={"family"}))


class _Roofline(_Strict):
    family: Literal["roofline"]
    overhead: _Seconds = 0.0
    token: _Seconds
    weights: _Above0
    prefill_pair: _Seconds = 0.0
    kv_token: _Seconds = 0.0

    def model(self) -> CostModel:
        return Roofline(**self.model_dump(exclude={"family"}))


class _File(_Strict):
    name: str | None = None
    cost: Annotated[_Linear | _Roofline, Field(discriminator="family")]
    kv_tokens: int
    max_model_len: int = 131_072
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    prefix_caching: bool = True
    chunked_prefill: bool = True
    admission: Admission = "prompt"
    admission_quantile: float = 0.9
    kv_bytes_per_token: int | None = None


def read_engine(path: str | Path) -> EngineSpec:
    """Read an engine from a YAML file; an InputError names the field that is wrong."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        given = _File.model_validate(content)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path, field="fleet") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError("is no YAML", source=path, hint="see docs/guides/simulator.md for an engine's file") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("linear", "roofline"))
        hint = "see docs/guides/simulator.md for an engine's file"
        raise InputError(first["msg"].lower(), source=path, field=where or None, hint=hint) from error
    limits = given.model_dump(exclude={"name", "cost"})
    return EngineSpec(given.name or path.stem, given.cost.model(), **limits)


def engine_yaml(spec: EngineSpec) -> str:
    """Return the YAML of an engine with a linear step time."""
    if not isinstance(spec.cost, StepCost):
        raise InputError(f"a cost of kind {type(spec.cost).__name__}", source=spec.name, hint="files are of StepCost")
    cost = {"family": "linear", **{name: float(f"{value:.6g}") for name, value in asdict(spec.cost).items()}}
    known = {name: getattr(spec, name) for name in _File.model_fields if name not in ("name", "cost")}
    limits = {name: value for name, value in known.items() if value is not None}
    return str(yaml.safe_dump({"name": spec.name, "cost": cost, **limits}, sort_keys=False))
