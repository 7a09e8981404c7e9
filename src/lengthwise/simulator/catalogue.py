"""Engines by name: fitted ones, any LLM on any GPU by their published numbers, and files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from lengthwise.errors import InputError
from lengthwise.simulator.costs import CostModel, Line, Piecewise, StepCost
from lengthwise.simulator.hardware import GPUS, LLMS, Gpu, Llm, refuse_too_large, roofline
from lengthwise.simulator.spec import EngineSpec

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
        lines=(Line(0, 22.0), Line(192, -118.0, 1.25, -2.56e-3), Line(384, 4.209777, 0.10842571)),
        efficiency=0.9,
        attention_below=0.32,
        attention_constant=0.159,
        attention_slope=1.86e-4,
        long_from=2**20 + 1,
        long_terms=(0.0, 1.13e-3, 1.75e-3, 2.19e-6),
    ),
    "mistral-7b@a100": Piecewise(
        lines=(Line(0, 8.96), Line(64, 10.5), Line(256, 5.505997, 0.05031337)),
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
        refuse_too_large(name, llm, gpu)
        return _on(llm, gpu, name, roofline(llm, gpu))
    near = get_close_matches(name, [*ENGINES, *(f"{llm}@{gpu}" for llm in LLMS for gpu in GPUS)], n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}? " if near else ""
    hint = f"{meant}MODEL is one of {', '.join(LLMS)}, GPU one of {', '.join(GPUS)}; or give an engine's YAML file"
    raise InputError(f"no engine is called '{name}'", field="fleet", hint=hint)
