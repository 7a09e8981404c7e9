"""Reads a prompt: words as rows of a table, and counts of what else is on the page.

Bytes, not characters: translating and splitting bytes costs a third of a regular expression. Words are runs of
ASCII letters, digits and bytes of other scripts; a few signs that shape an answer are words of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Final, Self
from zlib import crc32

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.int32]

HEAD_CHARACTERS: Final = 4_000
"""How much of the beginning is read; the middle of a longer prompt is skipped, so that time is bounded."""

TAIL_CHARACTERS: Final = 1_000
"""How much of the end is read: where an instruction often stands."""

MOST_WORDS: Final = 1_200
"""No more words than this are looked up: enough for the characters read, unless they are noise."""

_TAIL_WORDS: Final = 240

SIGNS: Final = (b"\n", b"?", b":", b".", b"!")
_MARKS: Final = {sign: b" \x01%d " % number for number, sign in enumerate(SIGNS)}

EDGE: Final = 0
"""The row of the word that stands before the first and after the last one of every page."""

NUMBERS: Final = 8
"""Rows for numbers that are no word of the vocabulary, by their count of digits."""

STRANGERS: Final = 256
"""Rows that other unknown words are hashed to."""

RESERVED: Final = 1 + len(SIGNS) + NUMBERS + STRANGERS
"""Rows before the first word of the vocabulary."""

_FIRST_NUMBER: Final = 1 + len(SIGNS)
_FIRST_STRANGER: Final = _FIRST_NUMBER + NUMBERS


def _tables() -> tuple[bytes, bytes, int]:
    keep = bytes(code if code >= 128 or code == 1 or chr(code).isalnum() else 32 for code in range(256)).lower()
    groups = [
        bytes(range(ord("a"), ord("z") + 1)), bytes(range(ord("A"), ord("Z") + 1)), b"0123456789", b" ", b"\n", b"\t\r",
        b"?", b"!", b".", b",", b":", b";", b"\"'", b"`", b"()", b"[]", b"{}", b"<>", b"=", b"+-", b"*", b"/", b"#",
        b"_", b"$\\^", b"@%&|~", bytes(range(128, 192)), bytes(range(192, 224)), bytes(range(224, 256)),
    ]  # fmt: skip
    classes = np.full(256, len(groups), np.uint8)  # what is in no group is a control byte
    for number, group in enumerate(groups):
        classes[list(group)] = number
    return keep, classes.tobytes(), len(groups) + 1


_KEEP, _CLASSES, CLASSES = _tables()
_COUNTS: Final = CLASSES + 4
FEATURES: Final = 2 * _COUNTS


@dataclass(frozen=True, eq=False, slots=True)
class Page:
    """What was read of one prompt: rows of the word table in order, features, the share of unknown words."""

    words: NDArray[np.int32]
    features: NDArray[np.float32]
    strangeness: float


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

    def read(self, text: str) -> Page:
        """Read one prompt; any string is one."""
        raw = excerpt(text)
        found = split(raw)
        words = np.array([EDGE, *map(self.rows.get, found, repeat(-1)), EDGE], np.int32)
        strangers = 0
        for place in (words < 0).nonzero()[0].tolist():
            words[place] = row = _unknown(found[place - 1])
            strangers += row >= _FIRST_STRANGER
        # Nothing to read, be it signs alone, is as strange as nothing known.
        strangeness = strangers / len(found) if words.max() >= _FIRST_NUMBER else 1.0
        features = _features(raw, len(text), len(found), raw.count(b"\n\n"), strangers)
        return Page(words, features, strangeness)


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
    return _FIRST_STRANGER + crc32(word) % STRANGERS


def _features(raw: bytes, *sizes: int) -> NDArray[np.float32]:
    """Of each class of bytes and of each size: the log of its count, and its share of the bytes read."""
    counts = np.bincount(np.frombuffer(raw.translate(_CLASSES), np.uint8), minlength=_COUNTS)
    counts[CLASSES:] = sizes
    out = np.empty((2, _COUNTS), np.float32)
    np.log1p(counts, out=out[0])
    np.multiply(counts, 1.0 / (len(raw) + 1.0), out=out[1])
    return out.ravel()
