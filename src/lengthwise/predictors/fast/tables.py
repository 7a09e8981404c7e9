"""Word tables: what each word and each pair of neighbouring words adds to the description of a prompt."""

from __future__ import annotations

import io
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from lengthwise.predictors.fast.text import FEATURES, Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Words = NDArray[np.int32]

PAIR_BITS: Final = 16
PAIRS: Final = 1 << PAIR_BITS
"""Rows that pairs of neighbouring words are hashed to."""

_LEFT: Final = np.uint32(2_654_435_761)
_RIGHT: Final = np.uint32(1_640_531_527)
_SHIFT: Final = np.uint32(32 - PAIR_BITS)


def terms(words: Words, size: int) -> Words:
    """Return the distinct words and pairs of a page in order, pairs after the `size` words.

    A pair is hashed with its order, by the upper bits of a product. np.unique does the same in twice the time.
    """
    own = words.view(np.uint32)
    found = np.empty(2 * len(own) - 1, np.uint32)
    found[: len(own)] = own
    pairs = found[len(own) :]
    np.multiply(own[:-1], _LEFT, out=pairs)
    pairs += own[1:] * _RIGHT
    pairs >>= _SHIFT
    pairs += np.uint32(size)
    found.sort()
    first = np.empty(len(found), bool)
    first[0] = True
    np.not_equal(found[1:], found[:-1], out=first[1:])
    kept: Words = found[first].view(np.int32)
    return kept


@dataclass(frozen=True, eq=False)
class Tables:
    """Rows for words, and narrower ones for pairs, which have the first columns only.

    Bytes, also in memory: most of the time of a lookup is waiting for memory. They are steps of no fixed size, since
    the network standardises its inputs anyway. `rarity` weighs words and pairs (inverse document frequency, 0 for what
    training hardly saw).
    """

    words: NDArray[np.int8]
    pairs: NDArray[np.int8]
    rarity: Floats

    @classmethod
    def of(cls, words: NDArray[np.floating], pairs: NDArray[np.floating], rarity: Floats) -> Self:
        """Round the rows to bytes; a column has the same step for words and pairs."""
        most = np.abs(words).max(axis=0)
        most[: pairs.shape[1]] = np.maximum(most[: pairs.shape[1]], np.abs(pairs).max(axis=0))
        step = np.where(most > 0.0, most, 1.0) / 127.0
        first, second = (
            np.ascontiguousarray(np.rint(rows / step[: rows.shape[1]]), np.int8) for rows in (words, pairs)
        )
        return cls(first, second, rarity)

    @property
    def width(self) -> int:
        """Numbers in a description."""
        return FEATURES + int(self.words.shape[1])

    def describe(self, page: Page) -> Floats:
        """Describe a page: its features, then the sum of the rows of its terms, each once and weighed by rarity."""
        out = np.empty(self.width, np.float32)
        out[:FEATURES] = page.features
        size, narrow = len(self.words), self.pairs.shape[1]
        found = terms(page.words, size)
        weight = self.rarity.take(found)
        weight *= 1.0 / (sqrt(weight @ weight) + 1e-6)
        edge = int(found.searchsorted(size))
        words, pairs = self.words.take(found[:edge], axis=0), self.pairs.take(found[edge:] - size, axis=0)
        np.dot(weight[:edge], words.astype(np.float32), out=out[FEATURES:])
        out[FEATURES : FEATURES + narrow] += weight[edge:] @ pairs.astype(np.float32)
        return out


def to_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write arrays as one part of a model file."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def from_bytes(data: bytes) -> dict[str, NDArray[Any]]:
    """Read what `to_bytes` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        # Row by row in memory: looking rows up in a matrix stored by columns takes ten times as long.
        return {name: np.ascontiguousarray(stored[name]) for name in stored.files}
