"""From a prompt to its description: word and pair rows of a table, and counts of character classes.

Works on bytes: translating and splitting bytes costs a third of a regular expression. Words are runs of ASCII letters,
digits and bytes of other scripts; a few punctuation marks count as words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from math import sqrt
from typing import Final, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]
Floats = NDArray[np.float32]

HEAD_CHARACTERS: Final = 4_000
"""Characters read from the beginning; the middle of a longer prompt is skipped, so that time is bounded."""

TAIL_CHARACTERS: Final = 1_000
"""Characters read from the end, where the instruction often is."""

MOST_WORDS: Final = 1_200
"""Maximum number of words looked up: enough for the characters read, except for noise."""

_TAIL_WORDS: Final = 240

SIGNS: Final = (b"\n", b"?", b":", b".", b"!")
_MARKS: Final = {sign: b" \x01%d " % number for number, sign in enumerate(SIGNS)}

EDGE: Final = 0
"""The row of the word before the first and after the last word of every prompt."""

NUMBERS: Final = 8
"""Rows for numbers outside the vocabulary, by number of digits."""

UNKNOWN_ROWS: Final = 256
"""Rows that other unknown words are hashed to."""

RESERVED: Final = 1 + len(SIGNS) + NUMBERS + UNKNOWN_ROWS
"""Rows before the first word of the vocabulary."""

_FIRST_NUMBER: Final = 1 + len(SIGNS)
_FIRST_UNKNOWN: Final = _FIRST_NUMBER + NUMBERS


def _tables() -> tuple[bytes, bytes, int]:
    keep = bytes(code if code >= 128 or code == 1 or chr(code).isalnum() else 32 for code in range(256)).lower()
    groups = [
        bytes(range(ord("a"), ord("z") + 1)), bytes(range(ord("A"), ord("Z") + 1)), b"0123456789", b" ", b"\n", b"\t\r",
        b"?", b"!", b".", b",", b":", b";", b"\"'", b"`", b"()", b"[]", b"{}", b"<>", b"=", b"+-", b"*", b"/", b"#",
        b"_", b"$\\^", b"@%&|~", bytes(range(128, 192)), bytes(range(192, 224)), bytes(range(224, 256)),
    ]  # fmt: skip
    classes = np.full(256, len(groups), np.uint8)  # bytes in no group are control bytes
    for number, group in enumerate(groups):
        classes[list(group)] = number
    return keep, classes.tobytes(), len(groups) + 1


_KEEP, _CLASSES, CLASSES = _tables()
_COUNTS: Final = CLASSES + 4
FEATURES: Final = 2 * _COUNTS


@dataclass(frozen=True, eq=False, slots=True)
class PromptText:
    """One prompt as read: rows of the word table in order, features, the share of unknown words."""

    words: NDArray[np.int32]
    features: NDArray[np.float32]
    unknown_share: float


@dataclass(frozen=True, eq=False)
class Reader:
    """Looks words up in a vocabulary."""

    rows: dict[bytes, int]

    @classmethod
    def of(cls, vocabulary: Sequence[bytes]) -> Self:
        """Number the words of a vocabulary after the reserved rows."""
        rows = {word: RESERVED + number for number, word in enumerate(vocabulary)}
        return cls(rows | {mark.strip(): 1 + number for number, mark in enumerate(_MARKS.values())})

    @property
    def size(self) -> int:
        """Rows of the word table."""
        return RESERVED + len(self.rows) - len(SIGNS)

    def read(self, text: str) -> PromptText:
        """Read one prompt: any string."""
        raw = excerpt(text)
        found = split(raw)
        words = np.array([EDGE, *map(self.rows.get, found, repeat(-1)), EDGE], np.int32)
        unknown = 0
        for place in (words < 0).nonzero()[0].tolist():
            words[place] = row = _unknown(found[place - 1])
            unknown += row >= _FIRST_UNKNOWN
        # A prompt without words counts as entirely unknown.
        unknown_share = unknown / len(found) if words.max() >= _FIRST_NUMBER else 1.0
        features = _features(raw, len(text), len(found), raw.count(b"\n\n"), unknown)
        return PromptText(words, features, unknown_share)


def excerpt(text: str) -> bytes:
    """Return the bytes that are read of a prompt."""
    if len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS:
        text = f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"
    return text.encode("utf-8", "replace").replace(b"\x01", b" ")


def split(raw: bytes) -> list[bytes]:
    """Split into lower-case words and marks of signs."""
    for sign, mark in _MARKS.items():
        raw = raw.replace(sign, mark)
    found = raw.translate(_KEEP).split()
    return found if len(found) <= MOST_WORDS else [*found[: MOST_WORDS - _TAIL_WORDS], *found[-_TAIL_WORDS:]]


def _unknown(word: bytes) -> int:
    if word.isdigit():
        return _FIRST_NUMBER + min(len(word), NUMBERS) - 1
    return _FIRST_UNKNOWN + crc32(word) % UNKNOWN_ROWS


def _features(raw: bytes, *sizes: int) -> NDArray[np.float32]:
    """Of each class of bytes and of each size: the log of its count, and its share of the bytes read."""
    counts = np.bincount(np.frombuffer(raw.translate(_CLASSES), np.uint8), minlength=_COUNTS)
    counts[CLASSES:] = sizes
    out = np.empty((2, _COUNTS), np.float32)
    np.log1p(counts, out=out[0])
    np.multiply(counts, 1.0 / (len(raw) + 1.0), out=out[1])
    return out.ravel()


PAIR_BITS: Final = 16
PAIRS: Final = 1 << PAIR_BITS
"""Rows that pairs of neighbouring words are hashed to."""

_LEFT: Final = np.uint32(2_654_435_761)
_RIGHT: Final = np.uint32(1_640_531_527)
_SHIFT: Final = np.uint32(32 - PAIR_BITS)


def terms(words: Words, size: int) -> Words:
    """Return the distinct words and pairs of a page in order, pairs after the `size` words.

    A pair is hashed with its order, by the upper bits of a product. np.unique takes twice the time.
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
class WordTables:
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

    def describe(self, page: PromptText) -> Floats:
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
