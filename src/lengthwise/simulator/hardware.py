"""What GPUs can do and what LLMs ask of them, by their published numbers: an engine for any pair of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lengthwise.errors import InputError
from lengthwise.simulator.costs import Roofline

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


def refuse_too_large(name: str, llm: Llm, gpu: Gpu) -> None:
    """Raise an InputError if the weights leave no memory."""
    if llm.kv_tokens(gpu) < 1:
        raise InputError(
            f"{llm.weight_bytes / 1e9:.0f} GB of weights do not fit into {gpu.memory * MEMORY_SHARE / 1e9:.0f} GB",
            source=name,
            field="fleet",
            hint="take several GPUs as one, as in llama-3-70b@4xh100",
        )
