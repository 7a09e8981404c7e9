"""Any discrete distribution of output lengths, written as "1:0.5,300:0.5"."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError

_SHAPE = 'write length:probability pairs such as "1:0.5,300:0.5"'
_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class DiscreteLengths:
    """Lengths in tokens and their probabilities. Half 1 and half the limit has the most variance there is."""

    lengths: tuple[int, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "length:probability" pairs with commas between; anything else is an InputError."""
        pairs = [_pair(piece) for piece in text.split(",")]
        total = math.fsum(probability for _, probability in pairs)
        if abs(total - 1) > _SUM_TOLERANCE:
            raise InputError(
                f"the probabilities sum to {total:.12g}",
                source=text,
                field="probability",
                hint="they must sum to 1",
            )
        lengths = [length for length, _ in pairs]
        twice = {length for length in lengths if lengths.count(length) > 1}
        if twice:
            raise InputError(f"{min(twice)} is there twice", source=text, field="length", hint="name it once")
        return cls(tuple(lengths), tuple(probability for _, probability in pairs))

    @property
    def mean(self) -> float:
        """Expected tokens."""
        return float(np.dot(self.lengths, self.probabilities))

    @property
    def std(self) -> float:
        """Standard deviation in tokens."""
        return math.sqrt(float(np.dot((np.array(self.lengths) - self.mean) ** 2, self.probabilities)))

    @property
    def max(self) -> int:
        """The largest length: what a client would set as max_tokens."""
        return max(self.lengths)

    def sample(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """n independent lengths."""
        shares = np.array(self.probabilities)
        drawn = rng.choice(np.array(self.lengths, np.int64), size=n, p=shares / shares.sum())
        return cast("NDArray[np.int64]", drawn)


def _pair(piece: str) -> tuple[int, float]:
    length_text, colon, probability_text = piece.partition(":")
    if not colon:
        raise InputError(f"'{piece}' is not a pair", field="lengths", hint=_SHAPE)
    try:
        length = int(length_text)
    except ValueError:
        raise InputError(
            f"'{length_text.strip()}' in '{piece}' is not a whole number", field="length", hint=_SHAPE
        ) from None
    try:
        probability = float(probability_text)
    except ValueError:
        raise InputError(
            f"'{probability_text.strip()}' in '{piece}' is not a number", field="probability", hint=_SHAPE
        ) from None
    if length < 1:
        raise InputError(f"length {length} in '{piece}' is below 1", field="length", hint=_SHAPE)
    if not 0 <= probability <= 1:
        raise InputError(f"probability {probability:g} in '{piece}' is not in 0 to 1", field="probability", hint=_SHAPE)
    return length, probability
