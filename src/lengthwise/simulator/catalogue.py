"""Engines by name: fitted ones, any LLM on any GPU by their published numbers, and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from lengthwise.errors import InputError
from lengthwise.simulator.costs import CostModel, CostSegment, Piecewise, Roofline, StepCost
from lengthwise.simulator.spec import EngineSpec

_GIB: Final = 2**30
MEMORY_SHARE: Final = 0.9  # what an engine takes of the GPU; activations are not subtracted


@dataclass(frozen=True, slots=True)
class Gpu:
    """Dense bf16 operations and bytes of memory traffic per second, and bytes of memory."""

    flops: float
    bandwidth: float
    memory: float
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048

    def times(self, count: int) -> Gpu:
        """Several as one, as if they did not have to talk to each other (tensor parallelism at its best)."""
        return Gpu(
            count * self.flops,
            count * self.bandwidth,
            count * self.memory,
            self.max_num_seqs,
            self.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True)
class Llm:
    """A dense transformer in bf16. `embedding` parameters are looked up, or multiplied with once per answer's token."""

    parameters: int
    embedding: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int = 128
    max_model_len: int = 131_072

    @property
    def weight_bytes(self) -> int:
        """In GPU memory."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> int:
        """Of one token: K and V."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size

    def kv_tokens(self, gpu: Gpu) -> int:
        """How many tokens of KV memory are left beside the weights."""
        return int((gpu.memory * MEMORY_SHARE - self.weight_bytes) / self.kv_bytes)


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How near real kernels come to the published numbers.

    The defaults bring the roofline near the fits for Llama-3-8B on A100 and H100 (see the simulator's documentation).
    """

    compute: float = 0.76
    weights: float = 0.77
    attention: float = 0.80
    context: float = 0.87
    overhead_s: float = 0.5e-3


GPUS: Final[Mapping[str, Gpu]] = {
    # vLLM's API server gives GPUs with 70 GiB and more, the A100 aside, larger batches.
    "a100": Gpu(312e12, 2.039e12, 80 * _GIB),
    "h100": Gpu(989.5e12, 3.35e12, 80 * _GIB, 1024, 8192),
    "h200": Gpu(989.5e12, 4.8e12, 141e9, 1024, 8192),
    "a6000": Gpu(154.8e12, 0.768e12, 48 * _GIB),
    "l40s": Gpu(362e12, 0.864e12, 48 * _GIB),
    "l4": Gpu(121e12, 0.3e12, 24 * _GIB),
}
LLMS: Final[Mapping[str, Llm]] = {
    "llama-3-8b": Llm(8_030_261_248, 2 * 128_256 * 4096, 32, 32, 8),
    "llama-3-70b": Llm(70_553_706_496, 2 * 128_256 * 8192, 80, 64, 8),
    "mistral-7b": Llm(7_241_732_096, 2 * 32_000 * 4096, 32, 32, 8, max_model_len=32_768),
    "qwen2.5-7b": Llm(7_615_616_512, 2 * 152_064 * 3584, 28, 28, 4),
    "qwen2.5-32b": Llm(32_763_876_352, 2 * 152_064 * 5120, 64, 40, 8),
}


def roofline(llm: Llm, gpu: Gpu, efficiency: Efficiency | None = None) -> Roofline:
    """The cost model of an LLM on a GPU.

    prefill = o + max(2 W n / (e_c F), 2 P / (e_m BW)) + 2 L h d n^2 / (e_a F)
    decode  = o + max(2 W B / (e_c F), 2 P / (e_m BW)) + kv K / (e_k BW)
    """
    reached = Efficiency() if efficiency is None else efficiency
    return Roofline(
        overhead=reached.overhead_s,
        token=2 * (llm.parameters - llm.embedding) / (reached.compute * gpu.flops),
        weights=llm.weight_bytes / (reached.weights * gpu.bandwidth),
        prefill_pair=2 * llm.layers * llm.heads * llm.head_size / (reached.attention * gpu.flops),
        kv_token=llm.kv_bytes / (reached.context * gpu.bandwidth),
    )


def _check_size(name: str, llm: Llm, gpu: Gpu) -> None:
    """Raise an InputError if the weights leave no memory."""
    if llm.kv_tokens(gpu) < 1:
        raise InputError(
            f"{llm.weight_bytes / 1e9:.0f} GB of weights do not fit into {gpu.memory * MEMORY_SHARE / 1e9:.0f} GB",
            source=name,
            field="fleet",
            hint="take several GPUs as one, as in llama-3-70b@4xh100",
        )


_PREBLE_KV_TOKENS: Final = 198_516  # per GPU, in Preble's simulator


def _on(llm: Llm, gpu: Gpu, name: str, cost: CostModel, kv_tokens: int | None = None) -> EngineSpec:
    return EngineSpec(
        name,
        cost,
        llm.kv_tokens(gpu) if kv_tokens is None else kv_tokens,
        max_model_len=llm.max_model_len,
        max_num_seqs=gpu.max_num_seqs,
        max_num_batched_tokens=gpu.max_num_batched_tokens,
        kv_bytes_per_token=llm.kv_bytes,
    )


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
    # Mistral-7B as Preble's simulator has it, FlashInfer kernels.
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


def _fitted(name: str, cost: CostModel) -> EngineSpec:
    llm, gpu = name.split("@")
    return _on(LLMS[llm], GPUS[gpu], name, cost, _PREBLE_KV_TOKENS if isinstance(cost, Piecewise) else None)


ENGINES: Final[Mapping[str, EngineSpec]] = {name: _fitted(name, cost) for name, cost in _FITTED.items()}
"""Engines with fitted step times, MODEL@GPU."""


def find_engine(name: str) -> EngineSpec:
    """The engine of that name: fitted, or MODEL@GPU by published numbers (`llama-3-70b@4xh100`), or a file."""
    if name.endswith((".yaml", ".yml")):
        from lengthwise.simulator.engine_file import read_engine  # pydantic is loaded only for files

        return read_engine(name)
    if name in ENGINES:
        return ENGINES[name]
    parts = re.fullmatch(r"(?P<llm>[^@]+)@(?:(?P<count>[1-9]\d?)x)?(?P<gpu>[^@]+)", name)
    if parts is not None and parts["llm"] in LLMS and parts["gpu"] in GPUS:
        llm, gpu = LLMS[parts["llm"]], GPUS[parts["gpu"]].times(int(parts["count"] or 1))
        _check_size(name, llm, gpu)
        return _on(llm, gpu, name, roofline(llm, gpu))
    near = get_close_matches(name, [*ENGINES, *(f"{llm}@{gpu}" for llm in LLMS for gpu in GPUS)], n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}? " if near else ""
    hint = f"{meant}MODEL is one of {', '.join(LLMS)}, GPU one of {', '.join(GPUS)}; or give an engine's YAML file"
    raise InputError(f"no engine is called '{name}'", field="fleet", hint=hint)
