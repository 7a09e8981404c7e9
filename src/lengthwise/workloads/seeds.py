"""One seed, one independent generator per purpose.

So that asking for another rate leaves prompts and true lengths as they were: comparisons stay paired.
"""

from __future__ import annotations

import numpy as np
import xxhash


def generator(seed: int, purpose: str) -> np.random.Generator:
    """The generator of this seed for this purpose ("arrivals", "lengths", ...)."""
    return np.random.default_rng([seed, xxhash.xxh3_64_intdigest(purpose.encode())])


def in_rounds(items: int, n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """n picks out of `items`: every item once in random order, then all again in another order, and so on."""
    rounds = -(-n // items)
    picks = np.concatenate([rng.permutation(items) for _ in range(rounds)])[:n]
    return picks.astype(np.int64)
