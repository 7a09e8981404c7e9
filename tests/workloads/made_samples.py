"""A small table of length samples with a known truth."""

from __future__ import annotations

import numpy as np

from lengthwise.lengths.families import LOGT
from lengthwise.workloads import LengthSamples


def made_up(prompts: int = 60, llms: tuple[str, ...] = ("owner/a", "owner/b"), seed: int = 0) -> LengthSamples:
    """Log-t lengths, with one constant row, one degenerate sample and one degenerate row."""
    rng = np.random.default_rng(seed)
    rows = prompts * len(llms)
    params = np.column_stack([rng.normal(5.5, 0.6, rows), np.full(rows, 0.2), np.full(rows, 3.5)])
    lengths = np.clip(np.rint(LOGT.draw(rng, params, 10)), 1, 8000).astype(np.int64)
    lengths[0] = 57
    lengths[1, 3] = 15_000
    lengths[2, :5] = 15_000
    return LengthSamples.from_table(
        {
            "corpus": np.repeat(["Mbpp", "DollyDataset"], [rows // 2, rows - rows // 2]).tolist(),
            "split": ["test"] * rows,
            "prompt_id": [f"p{i // len(llms)}" for i in range(rows)],
            "llm": list(llms) * prompts,
            "input_tokens": rng.integers(30, 300, rows).tolist(),
            "lengths": lengths.tolist(),
        },
        origin="made up",
    )
