"""Prompts without lengths, made from training prompts and from noise: an ensemble says what it predicts of them.

A student that only ever meets its training prompts is sure of itself everywhere. Pieces of prompts show it more of the
same; noise, other scripts and emptiness show it where the teachers disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from lengthwise.training.encoder.config import DataConfig
    from lengthwise.workloads import LengthSamples

_SCRIPTS: Final = {
    "Latin": (0x61, 0x7A),
    "accents": (0xE0, 0xFF),
    "Greek": (0x3B1, 0x3C9),
    "Cyrillic": (0x430, 0x44F),
    "Arabic": (0x627, 0x64A),
    "Devanagari": (0x905, 0x939),
    "kana": (0x3041, 0x3093),
    "Han": (0x4E00, 0x9FA5),
    "Hangul": (0xAC00, 0xD7A3),
    "signs": (0x21, 0x40),
    "control": (0x01, 0x1F),
}
_NOISE_EACH: Final = 12


def more_prompts(samples: LengthSamples, config: DataConfig, seed: int = 0) -> list[tuple[str, str | None]]:
    """Two pieces of each trained prompt with its corpus, and noise of none. Nothing of a held-out or test prompt."""
    from lengthwise.training.encoder.data import trained_texts

    rng = np.random.default_rng(seed)
    pieces = [(piece(text, rng), corpus) for text, corpus in trained_texts(samples, config) for _ in range(2)]
    return [*pieces, *((text, None) for text in noise(rng))]


def piece(text: str, rng: np.random.Generator) -> str:
    """Some neighbouring lines or sentences of a prompt, between a quarter and all of it."""
    units = text.splitlines(keepends=True)
    if len(units) < 4:
        units = [part + ". " for part in text.split(". ")]
    if len(units) < 3:
        units = [word + " " for word in text.split(" ")]
    count = max(1, round(len(units) * rng.uniform(0.25, 0.9)))
    # Half keep the beginning, where most prompts say what is asked.
    start = 0 if rng.random() < 0.5 else int(rng.integers(0, len(units) - count + 1))
    return "".join(units[start : start + count]).strip()


def noise(rng: np.random.Generator) -> list[str]:
    """Words of random signs of many scripts, short and long, and nothing at all."""
    texts = ["", " ", "?", "a"]
    for low, high in _SCRIPTS.values():
        for _ in range(_NOISE_EACH):
            words = int(np.exp(rng.uniform(0, 6)))
            sizes = rng.integers(1, 9, words)
            texts.append(" ".join("".join(map(chr, rng.integers(low, high + 1, size))) for size in sizes))
    return texts
