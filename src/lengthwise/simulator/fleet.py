"""Which engines there are: one engine's limits, the engines known by name, and fleets of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from lengthwise.errors import InputError
from lengthwise.simulator.costs import CostModel, StepCost

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIB: Final = 2**30
_LLAMA_8B_WEIGHTS: Final = 16_060_522_496  # bytes: 8,030,261,248 parameters in bf16
_LLAMA_8B_KV: Final = 2 * 32 * 8 * 128 * 2  # bytes per token: K and V, layers, KV heads, head size, bf16
_MEMORY_SHARE: Final = 0.9  # what an engine takes of the GPU; activations are not subtracted
_MOST_ENGINES: Final = 4096  # a fleet beyond this is a slip of the finger


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: its speed, its memory and its scheduler's limits, under vLLM's names.

    `kv_tokens` is what requests may use (vLLM's num_gpu_blocks, less the null block, times block_size).
    """

    name: str
    cost: CostModel
    kv_tokens: int
    max_model_len: int = 131_072
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    block_size: int = 16

    def __post_init__(self) -> None:
        for field in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, field) < 1:
                raise InputError(f"{getattr(self, field)}", source=self.name, field=field, hint="at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"{self.max_num_batched_tokens} tokens a step for {self.max_num_seqs} sequences",
                source=self.name,
                field="max_num_batched_tokens",
                hint="every running sequence needs one token a step: raise it or lower max_num_seqs",
            )
        if self.kv_blocks < 1:
            raise InputError(
                f"{self.kv_tokens} tokens of KV memory are less than a block of {self.block_size}",
                source=self.name,
                field="kv_tokens",
                hint="give at least one block",
            )

    @property
    def kv_blocks(self) -> int:
        """Whole blocks of KV memory."""
        return self.kv_tokens // self.block_size

    def can_hold(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether this request fits when it is alone; the last token is never computed, so holds no slot."""
        total = prompt_tokens + output_tokens
        return total <= self.max_model_len and -(-(total - 1) // self.block_size) <= self.kv_blocks


def _llama_8b(gpu: str, cost: StepCost, *, memory: int, seqs: int, batched_tokens: int) -> EngineSpec:
    kv_tokens = int((memory * _MEMORY_SHARE - _LLAMA_8B_WEIGHTS) / _LLAMA_8B_KV)
    return EngineSpec(f"llama-3-8b@{gpu}", cost, kv_tokens, max_num_seqs=seqs, max_num_batched_tokens=batched_tokens)


# Llama-3-8B in bf16 on one GPU, fitted to kernel tables: A100 within 1.9 % (prefill) and 2.8 % (decode),
# H100 within 4.1 % and 1.8 %. No CPU overhead. Limits: vLLM 0.32's defaults of its API server on that GPU.
_KNOWN = (
    _llama_8b(
        "a100",
        StepCost(
            prefill_base=7.032e-3,
            decode_base=10.71e-3,
            prefill_token=0.04863e-3,
            prefill_pair=2.147e-9,
            decode=0.02670e-3,
            kv_token=8.054e-8,
        ),
        memory=80 * _GIB,
        seqs=256,
        batched_tokens=2048,
    ),
    _llama_8b(
        "h100",
        StepCost(
            prefill_base=4.032e-3,
            decode_base=5.969e-3,
            prefill_token=0.01446e-3,
            prefill_pair=9.224e-10,
            decode=0.006894e-3,
            kv_token=4.100e-8,
        ),
        memory=80 * _GIB,
        seqs=1024,
        batched_tokens=8192,
    ),
)
ENGINES: Final[Mapping[str, EngineSpec]] = {engine.name: engine for engine in _KNOWN}
"""Engines by name, MODEL@GPU."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines of a cluster, in order."""

    engines: tuple[EngineSpec, ...]

    def __post_init__(self) -> None:
        if not self.engines:
            raise InputError("a fleet without engines", field="fleet", hint="for example 1*llama-3-8b@a100")

    @classmethod
    def parse(cls, text: str) -> Fleet:
        """Read "2*llama-3-8b@a100,1*llama-3-8b@h100"; "llama-3-8b@a100" is one of it."""
        engines: list[EngineSpec] = []
        for part in text.split(","):
            count, name = _count_and_name(part.strip(), text)
            if len(engines) + count > _MOST_ENGINES:
                raise InputError(f"more than {_MOST_ENGINES} engines", source=text, field="fleet")
            engines += [find_engine(name)] * count
        return cls(tuple(engines))

    def limited_to(
        self,
        *,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        kv_tokens: int | None = None,
    ) -> Fleet:
        """The same engines with other limits; None leaves one as it is."""
        return Fleet(
            tuple(
                replace(
                    engine,
                    max_num_seqs=_given(max_num_seqs, engine.max_num_seqs),
                    max_num_batched_tokens=_given(max_num_batched_tokens, engine.max_num_batched_tokens),
                    kv_tokens=_given(kv_tokens, engine.kv_tokens),
                )
                for engine in self.engines
            )
        )

    @property
    def slots(self) -> int:
        """How many requests may run at once, all engines together."""
        return sum(engine.max_num_seqs for engine in self.engines)

    def __len__(self) -> int:
        return len(self.engines)

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for engine in self.engines:
            counts[engine.name] = counts.get(engine.name, 0) + 1
        return ",".join(f"{count}*{name}" for name, count in counts.items())


def find_engine(name: str) -> EngineSpec:
    """The engine of that name; an unknown one is an InputError with the nearest."""
    if name in ENGINES:
        return ENGINES[name]
    near = get_close_matches(name, ENGINES, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}? " if near else ""
    raise InputError(f"no engine is called '{name}'", field="fleet", hint=f"{meant}known are {', '.join(ENGINES)}")


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _count_and_name(part: str, text: str) -> tuple[int, str]:
    found = re.fullmatch(r"(?:(\d+)\s*\*\s*)?([^\s*,]+)", part)
    if found is None or found[1] == "0":
        raise InputError(
            f"'{part}' is no engine", source=text, field="fleet", hint="write COUNT*MODEL@GPU, commas between"
        )
    return int(found[1] or 1), found[2]
