"""One engine's speed, memory and limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError
from lengthwise.simulator.costs import CostModel

Admission = Literal["prompt", "peak", "reserve"]
"""What must fit at admission: the prompt now, the predicted peak of all requests, or a reservation for each."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine: its speed, its memory and its scheduler's limits, under vLLM's names.

    `kv_tokens` is what requests may use (vLLM's num_gpu_blocks, less the null block, times block_size).
    Without `chunked_prefill` a prompt that does not fit into what a step has left of its token budget waits.
    `admission` other than `prompt` predicts lengths at `admission_quantile`. `kv_bytes_per_token` is sent
    per token where prefill and decode run on different engines; None where it is unknown.
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
    admission_quantile: float = 0.9
    kv_bytes_per_token: int | None = None

    def __post_init__(self) -> None:
        for field in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, field) < 1:
                raise InputError(f"{getattr(self, field)}", source=self.name, field=field, hint="at least 1")
        if self.admission not in get_args(Admission):
            known = ", ".join(get_args(Admission))
            raise InputError(f"'{self.admission}'", source=self.name, field="admission", hint=f"one of {known}")
        if not 0.0 < self.admission_quantile < 1.0:
            hint = "between 0 and 1"
            raise InputError(f"{self.admission_quantile}", source=self.name, field="admission_quantile", hint=hint)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"{self.max_num_batched_tokens} tokens a step for {self.max_num_seqs} sequences",
                source=self.name,
                field="max_num_batched_tokens",
                hint="every running sequence needs one token a step: raise it or lower max_num_seqs",
            )
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise InputError(
                f"{self.max_num_batched_tokens} tokens a step for prompts of up to {self.max_model_len} in one piece",
                source=self.name,
                field="max_num_batched_tokens",
                hint="without chunks a step must hold the longest prompt: raise it or lower max_model_len",
            )
        if self.kv_bytes_per_token is not None and self.kv_bytes_per_token < 1:
            hint = "bytes, at least 1"
            raise InputError(f"{self.kv_bytes_per_token}", source=self.name, field="kv_bytes_per_token", hint=hint)
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

    def can_hold(self, prompt_tokens: ArrayLike, output_tokens: ArrayLike) -> NDArray[np.bool_]:
        """Whether each request fits when it is alone; the last token is never computed, so holds no slot."""
        total = np.add(prompt_tokens, output_tokens)
        return np.asarray((total <= self.max_model_len) & (-(-(total - 1) // self.block_size) <= self.kv_blocks))
