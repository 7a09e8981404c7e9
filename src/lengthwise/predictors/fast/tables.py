"""Word tables: what each word and pair of words adds to the description of a prompt."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from lengthwise.predictors.fast.text import FEATURES, MOST_WORDS, Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Words = NDArray[np.int32]

PAIRS: Final = 1 << 14
"""Rows that pairs of neighbouring words are hashed to: a power of two."""

EDGE_WORDS: Final = 12
"""How many of the first and of the last words are also described by themselves: instructions stand there."""


_LOG_COUNTS: Final = np.log1p(np.arange(2 * MOST_WORDS + 1)).astype(np.float32)

_ONES: Final = np.ones(MOST_WORDS, np.float32)  # a product with it is the quickest sum


def terms(words: Words, size: int) -> tuple[Words, Floats]:
    """Return the distinct words and pairs of a page, pairs after the `size` words, and the log counts of each."""
    wide = words.astype(np.int64)
    left, right = wide[:-1], wide[1:]
    pairs = (((left * 1_000_003 + right * 7_919) ^ (right >> 3)) & (PAIRS - 1)) + size
    # np.unique does the same in twice the time.
    found = np.concatenate([wide, pairs]).astype(np.int32)
    found.sort()
    last = np.empty(len(found), bool)
    last[-1] = True
    np.not_equal(found[1:], found[:-1], out=last[:-1])
    ends = np.flatnonzero(last)
    counts = ends.copy()
    counts[0] += 1
    counts[1:] -= ends[:-1]
    return found.take(ends), _LOG_COUNTS.take(counts)


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix in bytes: each column a whole number from -127 to 127 times its scale.

    It stays so in memory: most of the time of a lookup is waiting for memory.
    """

    values: NDArray[np.int8]
    scales: Floats

    @classmethod
    def of(cls, matrix: NDArray[np.floating[Any]]) -> Self:
        """Round a matrix; the error is at most half a step of its column."""
        scales = (np.abs(matrix).max(axis=0) / 127.0).astype(np.float32)
        scales[scales == 0.0] = 1.0
        return cls(np.ascontiguousarray(np.rint(matrix / scales), np.int8), scales)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.values.shape[0], self.values.shape[1]

    def take(self, rows: Words) -> Floats:
        """Return some rows in steps, not yet scaled."""
        return self.values.take(rows, axis=0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Tables:
    """`meaning` (words) comes from a sentence encoder, `topics` (words and pairs) from the training prompts.

    `rarity` weighs words and pairs (inverse document frequency); `slope` is a ridge regression on the same
    weighted counts, a first guess at how much longer than usual the answer is, starting at `intercept`.
    """

    meaning: Packed
    topics: Packed
    rarity: Floats
    slope: Floats
    intercept: float

    @property
    def width(self) -> int:
        """Numbers in a description."""
        return FEATURES + 3 * self.meaning.shape[1] + self.topics.shape[1] + 1

    def describe(self, page: Page) -> Floats:
        """Describe a page: its features; mean meaning of all, the first and the last words; topics; first guess.

        Meaning and topics are in steps of their tables: the network standardises its inputs anyway.
        """
        out = np.empty(self.width, np.float32)
        out[:FEATURES] = page.features
        weight, meaning = self.rarity.take(page.words), self.meaning.take(page.words)
        ends = (slice(None), slice(EDGE_WORDS), slice(-EDGE_WORDS, None))
        start, wide = FEATURES, self.meaning.shape[1]
        for end in ends:
            own = weight[end]
            np.dot(own, meaning[end], out=out[start : start + wide])
            out[start : start + wide] /= float(own @ _ONES[: len(own)]) + 1e-6
            start += wide
        distinct, counts = terms(page.words, self.meaning.shape[0])
        tf_idf = counts * self.rarity.take(distinct)
        tf_idf /= math.sqrt(tf_idf @ tf_idf) + 1e-6
        np.dot(tf_idf, self.topics.take(distinct), out=out[start:-1])
        out[-1] = tf_idf @ self.slope.take(distinct) + self.intercept
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
