"""Fleets: engines by name, their limits and speed, and the events in which they fail, join and drain."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import yaml  # type: ignore[import-untyped]
from numpy.typing import ArrayLike, NDArray

from lengthwise.defaults import ADMISSION_QUANTILE, DEFAULT_SLOTS
from lengthwise.errors import InputError, require_kind
from lengthwise.policies.admission import LENGTH_QUANTILE
from lengthwise.settings import read_yaml, validated
from lengthwise.simulator.costs import CostModel, CostSegment, Piecewise, Roofline, StepCost

Admission = Literal["prompt", "peak", "joint", "reserve"]
"""What must fit at admission: the prompt now, the predicted peak of all requests, a quantile of what all take together
(the gateway's rule), or a reservation for each."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: its speed, its memory and its scheduler's limits, under vLLM's names.

    `kv_tokens` is what requests may use (vLLM's num_gpu_blocks, less the null block, times block_size).
    Without `chunked_prefill` a prompt that does not fit into what a step has left of its token budget waits.
    `admission` other than `prompt` predicts lengths, or what all take together (`joint`), at `admission_quantile`;
    without one at that of every host, 0.8 for `joint` and 0.9 for a length.
    `kv_bytes_per_token` is sent per token where prefill and decode run on different engines; None where it is unknown.
    """

    name: str
    cost: CostModel
    kv_tokens: int
    max_model_len: int = 131_072
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    prefix_caching: bool = True
    chunked_prefill: bool = True
    admission: Admission = "prompt"
    admission_quantile: float | None = None
    kv_bytes_per_token: int | None = None

    __pydantic_config__ = {"extra": "forbid", "arbitrary_types_allowed": True}  # noqa: RUF012  (for files)

    def __post_init__(self) -> None:
        for field in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            value = getattr(self, field)
            self._require(field, isinstance(value, int | np.integer) and int(value) >= 1, "at least 1")
        self._require("admission", self.admission in get_args(Admission), f"one of {', '.join(get_args(Admission))}")
        self._require("admission_quantile", 0.0 < self.chosen_quantile < 1.0, "between 0 and 1")
        self._require(
            "kv_bytes_per_token", self.kv_bytes_per_token is None or self.kv_bytes_per_token >= 1, "at least 1"
        )
        self._require("kv_tokens", self.kv_blocks >= 1, f"at least one block of {self.block_size}")
        self._require(
            "max_num_batched_tokens",
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"each of {self.max_num_seqs} sequences needs one token a step: raise it or lower max_num_seqs",
        )
        self._require(
            "max_num_batched_tokens",
            self.chunked_prefill or self.max_num_batched_tokens >= self.max_model_len,
            f"without chunks a step must hold the longest prompt, {self.max_model_len} tokens: "
            "raise it or lower max_model_len",
        )

    def _require(self, field: str, valid: bool, hint: str) -> None:
        if not valid:
            raise InputError(f"{getattr(self, field)!r}", source=self.name, field=field, hint=hint)

    @property
    def chosen_quantile(self) -> float:
        """The quantile of admission: the one given, or the default of its rule."""
        if self.admission_quantile is not None:
            return self.admission_quantile
        return ADMISSION_QUANTILE if self.admission == "joint" else LENGTH_QUANTILE

    @property
    def kv_blocks(self) -> int:
        """Whole blocks of KV memory."""
        return self.kv_tokens // self.block_size

    def can_hold(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> NDArray[np.bool_]:
        """Whether each request fits when it is alone; the last token is never computed and takes no KV memory."""
        total = np.add(prompt_tokens, output_tokens)
        return np.asarray((total <= self.max_model_len) & (-(-(total - 1) // self.block_size) <= self.kv_blocks))


_GIB: Final = 2**30
MEMORY_SHARE: Final = 0.9  # of GPU memory that an engine uses; activations are not subtracted


@dataclass(frozen=True, slots=True)
class Gpu:
    """Dense bf16 operations and bytes of memory traffic per second, and bytes of memory."""

    flops: float
    bandwidth: float
    memory: float
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048

    def times(self, count: int) -> Gpu:
        """Return `count` GPUs as one, without the cost of communication (ideal tensor parallelism)."""
        return replace(self, flops=count * self.flops, bandwidth=count * self.bandwidth, memory=count * self.memory)


@dataclass(frozen=True, slots=True)
class Llm:
    """A dense transformer in bf16. `embedding`: parameters of embeddings, which do not count as work per token."""

    parameters: int
    embedding: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int = 128
    max_model_len: int = 131_072

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in GPU memory."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of one token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size

    def kv_tokens(self, gpu: Gpu) -> int:
        """Tokens of KV memory that fit beside the weights."""
        return int((gpu.memory * MEMORY_SHARE - self.weight_bytes) / self.kv_bytes)


GPUS: Final[Mapping[str, Gpu]] = {
    # vLLM's API server uses larger batches on GPUs with at least 70 GiB, except the A100.
    "a100": Gpu(312e12, 2.039e12, 80 * _GIB),
    "h100": Gpu(989.5e12, 3.35e12, 80 * _GIB, 1024, 8192),
    "h200": Gpu(989.5e12, 4.8e12, 141e9, 1024, 8192),
    "a6000": Gpu(154.8e12, 0.768e12, 48 * _GIB),
    "l40s": Gpu(362e12, 0.864e12, 48 * _GIB),
    "l4": Gpu(121e12, 0.3e12, 24 * _GIB),
}
LLMS: Final[Mapping[str, Llm]] = {
    "llama-3-8b": Llm(8_030_261_248, 2 * 128_256 * 4096, 32, 32, 8),
    "llama-3.1-8b": Llm(8_030_261_248, 2 * 128_256 * 4096, 32, 32, 8),  # the same shape
    "llama-3-70b": Llm(70_553_706_496, 2 * 128_256 * 8192, 80, 64, 8),
    "mistral-7b": Llm(7_241_732_096, 2 * 32_000 * 4096, 32, 32, 8, max_model_len=32_768),
    "qwen2.5-7b": Llm(7_615_616_512, 2 * 152_064 * 3584, 28, 28, 4),
    "qwen2.5-32b": Llm(32_763_876_352, 2 * 152_064 * 5120, 64, 40, 8),
}


# Shares of the published peak numbers that kernels reach: with them the roofline matches the fits for Llama-3-8B on
# A100 and H100 (see the simulator's documentation).
_COMPUTE, _WEIGHTS, _ATTENTION, _CONTEXT = 0.76, 0.77, 0.80, 0.87
_OVERHEAD_S: Final = 0.5e-3


def roofline(llm: Llm, gpu: Gpu) -> Roofline:
    """Return the cost model of an LLM on a GPU.

    prefill = o + max(2 W n / (e_c F), 2 P / (e_m BW)) + 2 L h d n^2 / (e_a F)
    decode  = o + max(2 W B / (e_c F), 2 P / (e_m BW)) + kv K / (e_k BW)
    """
    return Roofline(
        overhead=_OVERHEAD_S,
        token=2 * (llm.parameters - llm.embedding) / (_COMPUTE * gpu.flops),
        weights=llm.weight_bytes / (_WEIGHTS * gpu.bandwidth),
        prefill_pair=2 * llm.layers * llm.heads * llm.head_size / (_ATTENTION * gpu.flops),
        kv_token=llm.kv_bytes / (_CONTEXT * gpu.bandwidth),
    )


_PREBLE_KV_TOKENS: Final = 198_516  # per GPU, in Preble's simulator


_FITTED: Final[Mapping[str, CostModel]] = {
    # Llama-3-8B in bf16 on one GPU, fitted to kernel tables: A100 within 1.9 % (prefill) and 2.8 % (decode),
    # H100 within 4.1 % and 1.8 %. No CPU overhead.
    "llama-3-8b@a100": StepCost(
        prefill_base=7.032e-3,
        decode_base=10.71e-3,
        prefill_token=0.04863e-3,
        prefill_pair=2.147e-9,
        decode=0.02670e-3,
        kv_token=8.054e-8,
    ),
    "llama-3-8b@h100": StepCost(
        prefill_base=4.032e-3,
        decode_base=5.969e-3,
        prefill_token=0.01446e-3,
        prefill_pair=9.224e-10,
        decode=0.006894e-3,
        kv_token=4.100e-8,
    ),
    # Mistral-7B as in Preble's simulator, FlashInfer kernels.
    "mistral-7b@a6000": Piecewise(
        lines=(CostSegment(0, 22.0), CostSegment(192, -118.0, 1.25, -2.56e-3), CostSegment(384, 4.209777, 0.10842571)),
        efficiency=0.9,
        attention_below=0.32,
        attention_constant=0.159,
        attention_slope=1.86e-4,
        long_from=2**20 + 1,
        long_terms=(0.0, 1.13e-3, 1.75e-3, 2.19e-6),
    ),
    "mistral-7b@a100": Piecewise(
        lines=(CostSegment(0, 8.96), CostSegment(64, 10.5), CostSegment(256, 5.505997, 0.05031337)),
        efficiency=0.85,
        long_from=2**20,
        long_terms=(0.123864, -7.45e-4, 1.72e-3, 1.36e-6),
    ),
}


def _on(name: str, llm: Llm, gpu: Gpu, cost: CostModel) -> EngineSpec:
    kv_tokens = _PREBLE_KV_TOKENS if isinstance(cost, Piecewise) else llm.kv_tokens(gpu)
    if kv_tokens < 1:
        raise InputError(
            f"{llm.weight_bytes / 1e9:.0f} GB of weights do not fit into {gpu.memory * MEMORY_SHARE / 1e9:.0f} GB",
            source=name,
            field="fleet",
            hint="take several GPUs as one, as in llama-3-70b@4xh100",
        )
    return EngineSpec(
        name,
        cost,
        kv_tokens,
        max_model_len=llm.max_model_len,
        max_num_seqs=gpu.max_num_seqs,
        max_num_batched_tokens=gpu.max_num_batched_tokens,
        kv_bytes_per_token=llm.kv_bytes,
    )


_SAME_SHAPE: Final = {f"llama-3.1-8b@{gpu}": _FITTED[f"llama-3-8b@{gpu}"] for gpu in ("a100", "h100")}

ENGINES: Final[Mapping[str, EngineSpec]] = {
    name: _on(name, LLMS[name.partition("@")[0]], GPUS[name.partition("@")[2]], cost)
    for name, cost in {**_FITTED, **_SAME_SHAPE}.items()
}
"""Engines with fitted step times, MODEL@GPU."""


def find_engine(name: str) -> EngineSpec:
    """Return an engine by name: a fitted one, MODEL@GPU by published numbers (`llama-3-70b@4xh100`), or a YAML file."""
    if name.endswith((".yaml", ".yml")):
        return read_engine(name)
    if name in ENGINES:
        return ENGINES[name]
    parts = re.fullmatch(r"(?P<llm>[^@]+)@(?:(?P<count>[1-9]\d?)x)?(?P<gpu>[^@]+)", name)
    if parts is not None and parts["llm"] in LLMS and parts["gpu"] in GPUS:
        llm, gpu = LLMS[parts["llm"]], GPUS[parts["gpu"]].times(int(parts["count"] or 1))
        return _on(name, llm, gpu, roofline(llm, gpu))
    near = get_close_matches(name, [*ENGINES, *(f"{llm}@{gpu}" for llm in LLMS for gpu in GPUS)], n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}? " if near else ""
    hint = f"{meant}MODEL is one of {', '.join(LLMS)}, GPU one of {', '.join(GPUS)}; or give an engine's YAML file"
    raise InputError(f"no engine is called '{name}'", field="fleet", hint=hint)


_FILE_HINT: Final = "see docs/guides/simulator.md for an engine's file"
_FILE_COSTS: Final[Mapping[str, type[CostModel]]] = {"linear": StepCost, "roofline": Roofline}


def read_engine(path: str | Path) -> EngineSpec:
    """Read an engine from a YAML file: the fields of EngineSpec, and the cost's fields beside its `family`.

    name: my-engine
    cost: {family: linear, prefill_base: 7.0e-3, decode_base: 10.7e-3, prefill_token: 4.9e-5,
           prefill_pair: 2.1e-9, decode: 2.7e-5, kv_token: 8.1e-8}      # seconds; see StepCost and Roofline
    kv_tokens: 467291
    """
    path = Path(path)
    content = read_yaml(path, hint=_FILE_HINT)
    try:
        cost = dict(content["cost"])
        kind = _FILE_COSTS[cost.pop("family")]
    except (LookupError, TypeError, ValueError) as error:
        hint = f"a mapping whose family is one of {', '.join(_FILE_COSTS)}; {_FILE_HINT}"
        raise InputError("has no cost of a known family", source=path, field="cost", hint=hint) from error
    made = validated(kind, cost, source=path, section="cost")
    return validated(EngineSpec, {"name": path.stem, **content, "cost": made}, source=path)


def engine_yaml(spec: EngineSpec) -> str:
    """Return the YAML of an engine with a linear step time."""
    if not isinstance(spec.cost, StepCost):
        raise InputError(f"a cost of kind {type(spec.cost).__name__}", source=spec.name, hint="files are of StepCost")
    cost = {"family": "linear", **{name: float(f"{value:.6g}") for name, value in asdict(spec.cost).items()}}
    known = {name: value for name, value in asdict(spec).items() if value is not None}
    return str(yaml.safe_dump(known | {"cost": cost}, sort_keys=False))


_MAX_ENGINES: Final = 4096  # a larger fleet is a typing error


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of a cluster, in order."""

    engines: tuple[EngineSpec, ...]

    def __post_init__(self) -> None:
        if not self.engines:
            raise InputError("a fleet without engines", field="fleet", hint="for example 1*llama-3-8b@a100")

    @classmethod
    def parse(cls, text: str) -> Fleet:
        """Parse "2*llama-3-8b@a100,1*engine.yaml"; without a count, one engine."""
        require_kind(text, str, "fleet", 'a text such as "1*llama-3-8b@a100"')
        engines: list[EngineSpec] = []
        for part in text.split(","):
            count, name = _count_and_name(part.strip(), text)
            if len(engines) + count > _MAX_ENGINES:
                raise InputError(f"more than {_MAX_ENGINES} engines", source=text, field="fleet")
            engines += [find_engine(name)] * count
        return cls(tuple(engines))

    def limited_to(self, **limits: Any) -> Fleet:  # fields of EngineSpec
        """Return the same engines with other values of these fields of EngineSpec; None keeps a field."""
        changes = {name: value for name, value in limits.items() if value is not None}
        return Fleet(tuple(replace(engine, **changes) for engine in self.engines))

    def behind_gateway(self) -> Fleet:
        """Return the engines with the requests at once that a gateway sends each by default, at most their own."""
        return Fleet(tuple(replace(each, max_num_seqs=min(each.max_num_seqs, DEFAULT_SLOTS)) for each in self.engines))

    @property
    def slots(self) -> int:
        """Requests that may run at once, over all engines."""
        return sum(engine.max_num_seqs for engine in self.engines)

    def __len__(self) -> int:
        return len(self.engines)

    def __str__(self) -> str:
        counts = Counter(engine.name for engine in self.engines)
        return ",".join(f"{count}*{name}" for name, count in counts.items())


def _count_and_name(part: str, text: str) -> tuple[int, str]:
    found = re.fullmatch(r"(?:(\d+)\s*\*\s*)?([^\s*,]+)", part)
    if found is None or (found[1] and int(found[1]) == 0):
        raise InputError(
            f"'{part}' is no engine",
            source=None if part == text else text,
            field="fleet",
            hint="write COUNT*MODEL@GPU with a COUNT of at least 1, commas between",
        )
    return int(found[1] or 1), found[2]


FleetEventKind = Literal["down", "up", "drain"]

_KINDS: Final[tuple[FleetEventKind, ...]] = get_args(FleetEventKind)


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """An engine fails, joins or drains at `at_s` seconds of virtual time. `engine` is its index in the fleet.

    down: the engine and its KV memory are gone at once; its unfinished requests are routed again. up: the engine
    joins with empty memory, or accepts requests again after a drain. drain: it accepts no new requests and finishes
    those it has.
    """

    at_s: float
    engine: int
    kind: FleetEventKind


def parse_fleet_events(kind: FleetEventKind, text: str) -> list[FleetEvent]:
    """Parse "3@120,4@130.5"."""
    return [_parse(kind, part.strip()) for part in text.split(",")]


def _parse(kind: FleetEventKind, part: str) -> FleetEvent:
    number, at, moment = part.partition("@")
    try:
        engine, at_s = int(number), float(moment)
        if not at or engine < 0 or not (math.isfinite(at_s) and at_s >= 0):
            raise ValueError
    except ValueError:
        hint = "write ENGINE@SECONDS, as in 3@120, engines numbered from 0"
        raise InputError(f"'{part}'", field=kind, hint=hint) from None
    return FleetEvent(at_s, engine, kind)


def sorted_events(events: Iterable[FleetEvent], engines: int) -> tuple[FleetEvent, ...]:
    """Sort fleet events by time (stable).

    Raises InputError if an event names an unknown engine or the last events leave no engine running.
    """
    ordered = tuple(sorted(events, key=lambda event: event.at_s))
    for event in ordered:
        if event.kind not in _KINDS:
            raise InputError(f"'{event.kind}'", field="fleet_events", hint=f"one of {', '.join(_KINDS)}")
        if not 0 <= event.engine < engines:
            hint = f"the fleet has engines 0 to {engines - 1}"
            raise InputError(f"there is no engine {event.engine}", field=event.kind, hint=hint)
    last = {event.engine: event.kind for event in ordered}
    if len(last) == engines and "up" not in last.values():
        raise InputError(
            "no engine is up in the end", field="down", hint="bring one back with --up, or keep one running"
        )
    return ordered


def initially_absent(events: Sequence[FleetEvent]) -> frozenset[int]:
    """Return the engines that join later: those whose first event is "up"."""
    first: dict[int, FleetEventKind] = {}
    for event in events:
        first.setdefault(event.engine, event.kind)
    return frozenset(engine for engine, kind in first.items() if kind == "up")
