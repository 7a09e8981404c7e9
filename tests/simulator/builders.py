"""Engines and workloads small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lengthwise.simulator import CostModel, EngineSpec, Fleet, StepCost
from lengthwise.workloads import Workload

TICK = StepCost(prefill_base=1.0, decode_base=1.0, prefill_token=0.0, prefill_pair=0.0, decode=0.0, kv_token=0.0)
"""Every step takes one second."""

UNEVEN = StepCost(
    prefill_base=0.7e-2,
    decode_base=1.1e-2,
    prefill_token=5e-5,
    prefill_pair=2e-9,
    decode=3e-5,
    kv_token=8e-8,
)
"""Every step takes a different time, as on a GPU."""


def engine(
    cost: CostModel = TICK,
    *,
    seqs: int = 8,
    budget: int = 64,
    blocks: int = 64,
    block_size: int = 4,
    context: int = 4096,
    caching: bool = False,
    **others: Any,
) -> EngineSpec:
    return EngineSpec(
        "tiny", cost, blocks * block_size, context, seqs, budget, block_size, prefix_caching=caching, **others
    )


def fleet(cost: CostModel = TICK, *, engines: int = 1, **limits: Any) -> Fleet:
    return Fleet((engine(cost, **limits),) * engines)


def requests(
    lengths: Sequence[tuple[int, int]],
    arrivals: Sequence[float] | float = 0.0,
    *,
    blocks: Sequence[Sequence[int]] | None = None,
    block_size: int | None = None,
    **columns: Any,
) -> Workload:
    """Return a workload of (prompt, answer) token counts; `blocks` are the block hashes of the prompts."""
    times = [arrivals] * len(lengths) if isinstance(arrivals, float) else arrivals
    prompts, answers = zip(*lengths, strict=True)
    table = {"arrival_s": times, "input_tokens": prompts, "output_tokens": answers, **columns}
    if blocks is not None:
        table["block_hashes"] = blocks
    return Workload.from_table(table, name="by hand", block_size=block_size)
