"""What kind of prompt a text is, in a dozen numbers that any text has: a question, a page of code, a long letter.

An LLM may differ from all others on one kind only, and what others answer does not tell. Knows nothing of words: a
hundred lengths could not teach what they mean.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

NAMES: Final = (
    "characters", "words", "lines", "characters per word", "digits", "signs of code", "capitals", "beyond ASCII",
    "question mark", "backquote", "words of code", "ends asking",
)  # fmt: skip
"""What the numbers are; part of a model file's format."""

_READ: Final = 10_000  # characters of the beginning and of the end each that are looked at
_DIGITS, _CAPITALS = string.digits.encode(), string.ascii_uppercase.encode()
_SIGNS: Final = b"(){}[]<>=_;"
_BEYOND: Final = bytes(range(128, 256))
_CODE: Final = (b"def ", b"import ", b"class ", b"return", b"function", b"```")


def kinds(texts: Sequence[str]) -> NDArray[np.float64]:
    """(texts, len(NAMES))"""
    return np.array([_kind(text) for text in texts], np.float64).reshape(-1, len(NAMES))


def _kind(text: str) -> tuple[float, ...]:
    seen = text if len(text) <= 2 * _READ else f"{text[:_READ]}\n{text[-_READ:]}"
    raw = seen.encode("utf-8", "replace")
    words, size = len(raw.split()), len(raw) + 1
    return (
        math.log1p(len(text)),
        math.log1p(words),
        math.log1p(raw.count(b"\n")),
        math.log(size / (words + 1)),
        *((size - 1 - len(raw.translate(None, some))) / size for some in (_DIGITS, _SIGNS, _CAPITALS, _BEYOND)),
        float(b"?" in raw),
        float(b"`" in raw),
        float(any(word in raw for word in _CODE)),
        float(raw.rstrip().endswith(b"?")),
    )
