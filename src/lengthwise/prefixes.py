"""Block hashes: the one definition of when two prompts share a prefix.

A hash stands for a block *and everything before it*: it is the xxh3-64 of the block, seeded with the hash of
the block before. So prompts share their first n blocks exactly when their first n hashes are equal (up to
64-bit collisions), and a prefix can be looked up by one number. Only full blocks count: a block that may
still grow has no hash yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import iter_unpack
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

BLOCK_TOKENS = 64
"""Tokens of a block where token ids are known."""

BYTES_PER_TOKEN = 4
"""Bytes per token of ordinary text, where no tokenizer is known."""

BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
"""Bytes of a block where only the text is known: 256."""

GOLDEN_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
"""The increment of splitmix64: multiples of it, added to a number, give unrelated bits."""


def hash_tokens(
    token_ids: Sequence[int] | NDArray[np.integer], block_size: int = BLOCK_TOKENS, before: int = 0
) -> NDArray[np.uint64]:
    """Return the chained hashes of the full blocks of a prompt's token ids; `before` is that of the block before."""
    data = np.ascontiguousarray(token_ids, dtype="<i8").tobytes()
    return hash_chunks(_full_chunks(data, 8 * block_size), before)


def hash_text(text: str, block_bytes: int = BLOCK_BYTES) -> NDArray[np.uint64]:
    """Return the chained hashes of the full blocks of a prompt's UTF-8 bytes, where no tokenizer is known."""
    return hash_bytes(text.encode(), block_bytes)


def hash_bytes(data: bytes, block_bytes: int = BLOCK_BYTES, before: int = 0) -> NDArray[np.uint64]:
    """Return the same of a prompt that is encoded; `before` is the hash of the block before its first."""
    return hash_chunks(_full_chunks(data, block_bytes), before)


def hash_chunks(chunks: Iterable[bytes | memoryview], before: int = 0) -> NDArray[np.uint64]:
    """Return the chained hashes of chunks; `before` is the hash of the block before the first."""
    hashes = []
    for chunk in chunks:
        before = xxhash.xxh3_64_intdigest(chunk, before)
        hashes.append(before)
    return np.array(hashes, dtype=np.uint64)


def _full_chunks(data: bytes, size: int) -> Iterable[bytes]:
    """Return the full blocks. Unpacks instead of slicing, because a router does this for every request."""
    full = memoryview(data)[: len(data) // size * size]
    return (chunk for (chunk,) in iter_unpack(f"{size}s", full)) if full else ()


def rechain(values: NDArray[np.uint64], before: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the hashes of the same blocks behind other prefixes, given by their hashes in `before`."""
    return np.asarray(splitmix64(splitmix64(before + GOLDEN_GAMMA) + values), np.uint64)


def splitmix64(number: Any) -> Any:
    """Return 64 well-mixed bits of a uint64 or an array of them: splitmix64's finalizer, which compiled code runs too.

    So the last bits of a block hash serve as its position in a table.
    """
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


class Scopes(NamedTuple):
    """What identifies the scopes of a request.

    Block hashes, and the hashes of tenant, template, session (0: none) and LLM.
    """

    blocks: NDArray[np.uint64]
    names: NDArray[np.uint64]
