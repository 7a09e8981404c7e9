"""The same prompts with and without a request to reason first: how one sentence changes answer lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lengthwise.errors import InputError
from lengthwise.workloads.data_home import sample
from lengthwise.workloads.files import read_parquet_table
from lengthwise.workloads.length_samples import LengthSamples

SENTENCE: Final = "Think step by step."
LIMIT: Final = 512
"""Tokens at which the packaged answers were cut off."""

Key = tuple[str, str, str]
"""Corpus, prompt id, LLM."""


@dataclass(frozen=True, eq=False)
class ReasoningPairs:
    """Row i of both is the same prompt to the same LLM; `steps` was asked with the sentence after it."""

    plain: LengthSamples
    steps: LengthSamples
    max_tokens: int
    """Where answers were cut off."""

    def __len__(self) -> int:
        return len(self.plain)


def with_sentence(prompt: str, sentence: str) -> str:
    """The prompt, a blank line and the sentence; the bare prompt where there is none."""
    return f"{prompt}\n\n{sentence}" if sentence else prompt


def load_reasoning() -> ReasoningPairs:
    """The packaged pairs: SmolLM2-135M-Instruct on test prompts of CASTILLO (see samples/CREDITS.md)."""
    table = read_parquet_table(sample("reasoning.parquet"))
    texts = _packaged_texts()
    halves = []
    for sentence in ("", SENTENCE):
        rows = table.filter(pc.equal(pc.fill_null(table["sentence"], ""), sentence))
        names = zip(rows["corpus"].to_pylist(), rows["prompt_id"].to_pylist(), strict=True)
        prompts = pa.array([with_sentence(texts[name], sentence) for name in names], pa.string())
        halves.append(LengthSamples.from_table(rows.append_column("prompt", prompts), origin="packaged sample"))
    return pair(*halves, max_tokens=LIMIT)


def read_reasoning(plain: Path, steps: Path, max_tokens: int) -> ReasoningPairs:
    """Pairs from two files of `lengthwise collect`, the second collected with a suffix."""
    return pair(LengthSamples.read(plain), LengthSamples.read(steps), max_tokens=max_tokens)


def pair(plain: LengthSamples, steps: LengthSamples, *, max_tokens: int) -> ReasoningPairs:
    """Put both in one order; prompts that only one of them has are left out."""
    ours, theirs = _places(plain), _places(steps)
    both = [key for key in ours if key in theirs]
    if not both:
        raise InputError(
            f"has no prompt in common with {plain.origin}",
            source=steps.origin,
            hint="collect both from the same prompts and LLM",
        )
    return ReasoningPairs(_take(plain, [ours[k] for k in both]), _take(steps, [theirs[k] for k in both]), max_tokens)


def _places(samples: LengthSamples) -> dict[Key, int]:
    names = (samples.table[name].to_pylist() for name in ("corpus", "prompt_id", "llm"))
    return {key: row for row, key in enumerate(zip(*names, strict=True))}


def _take(samples: LengthSamples, rows: Sequence[int]) -> LengthSamples:
    return LengthSamples(samples.table.take(pa.array(np.array(rows, np.int64))).combine_chunks(), samples.origin)


def _packaged_texts() -> dict[tuple[str, str], str]:
    table = read_parquet_table(sample("castillo.parquet"))
    names = (table[name].to_pylist() for name in ("corpus", "prompt_id", "prompt"))
    return {(corpus, prompt_id): text for corpus, prompt_id, text in zip(*names, strict=True)}
