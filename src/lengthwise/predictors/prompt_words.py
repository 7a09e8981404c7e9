"""A prompt as words: the part that is read, and how it is split.

Reading works on bytes: translating and splitting bytes costs a third of a regular expression. Words are runs of ASCII
letters, digits and bytes of other scripts; a few punctuation marks count as words.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

HEAD_CHARACTERS: Final = 4_000
"""Characters read from the beginning; the middle of a longer prompt is skipped, so that time is bounded."""

TAIL_CHARACTERS: Final = 1_000
"""Characters read from the end, where the instruction often is."""

MAX_WORDS: Final = 1_200
"""Maximum number of words looked up: enough for the characters read, except for noise."""

_TAIL_WORDS: Final = 240

SIGNS: Final = (b"\n", b"?", b":", b".", b"!")
MARKS: Final = {sign: b" \x01%d " % number for number, sign in enumerate(SIGNS)}
"""The word that a sign is replaced by, with the spaces around it."""

_KEEP: Final = bytes(code if code >= 128 or code == 1 or chr(code).isalnum() else 32 for code in range(256)).lower()


def excerpt(text: str) -> str:
    """Return the part of a prompt that is read: all of it, or its head and its tail."""
    if len(text) > HEAD_CHARACTERS + TAIL_CHARACTERS:
        return f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"
    return text


def as_bytes(text: str) -> bytes:
    """Return the bytes of an excerpt; a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").replace(b"\x01", b" ")


def split(raw: bytes) -> list[bytes]:
    """Split into lower-case words and marks of signs."""
    for sign, mark in MARKS.items():
        raw = raw.replace(sign, mark)
    found = raw.translate(_KEEP).split()
    return found if len(found) <= MAX_WORDS else [*found[: MAX_WORDS - _TAIL_WORDS], *found[-_TAIL_WORDS:]]


_LEFT: Final = np.uint32(2_654_435_761)
_RIGHT: Final = np.uint32(1_640_531_527)


def words_and_pairs(words: NDArray[np.int32], size: int = 0, pair_bits: int = 32) -> NDArray[np.int32]:
    """Return the distinct words of a prompt, given as numbers, and pairs of neighbours, in order.

    A pair is hashed with its order, by the upper bits of a product, to numbers from `size` on. np.unique takes twice
    the time.
    """
    own = words.view(np.uint32)
    if not len(own):
        return words
    found = np.empty(2 * len(own) - 1, np.uint32)
    found[: len(own)] = own
    pairs = found[len(own) :]
    np.multiply(own[:-1], _LEFT, out=pairs)
    pairs += own[1:] * _RIGHT
    pairs >>= np.uint32(32 - pair_bits)
    pairs += np.uint32(size)
    found.sort()
    first = np.empty(len(found), bool)
    first[0] = True
    np.not_equal(found[1:], found[:-1], out=first[1:])
    kept: NDArray[np.int32] = found[first].view(np.int32)
    return kept
