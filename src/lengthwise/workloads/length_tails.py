"""The heavy-tail theorem (TIE, theorem 3.2) looked at on pooled lengths: survival and Hill estimates.

Pooling is a trap: prompts differ in length and in spread, and a mixture of light tails can look like a heavy one. So
next to the data stand the same pictures of data that never existed: every prompt drawn from its own log-normal fit,
and from its own log-t fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.lengths.tails import Hill, hill, survival

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lengthwise.lengths.families import Family

    Array = NDArray[np.float64]
    Mask = NDArray[np.bool_]

__all__ = ["Tail", "TailLook", "look_at_tails"]

DEEP_SHARE: Final = 0.01
"""The Hill estimate in tables uses this share of the values, the largest ones."""
_LONGEST: Final = 15_000.0  # tokens at which CASTILLO stopped; simulated answers stop there as well


@dataclass(frozen=True, eq=False)
class Tail:
    """One pooled set of values."""

    name: str
    count: int
    x: Array
    survival: Array
    hill: Hill
    alpha: tuple[float, float, float]
    """Hill estimate from the largest 1 % of the values, with its 95 % band."""


@dataclass(frozen=True, eq=False)
class TailLook:
    """Lengths pooled per LLM, and lengths over their prompt's median: the data's and the simulated ones."""

    lengths_by_llm: tuple[Tail, ...]
    over_median: tuple[Tail, ...]
    """The data, then every prompt log-normal, then every prompt log-t."""


def look_at_tails(
    lengths: Array,
    present: Mask,
    llm: NDArray[np.object_],
    params: Mapping[Family, Array],
    rng: np.random.Generator,
) -> TailLook:
    """Pool the present lengths; `params` are the rows' own fits, to simulate from."""
    by_llm = [_tail(name, lengths[llm == name][present[llm == name]]) for name in sorted(set(llm.tolist()))]
    pooled = [_tail("data", _over_median(lengths, present))]
    for family, fitted in params.items():
        drawn = np.maximum(np.rint(family.draw(rng, fitted, lengths.shape[1])), 1.0)
        ended = present & (drawn < _LONGEST)
        pooled.append(_tail(f"every prompt {family.name}", _over_median(drawn, ended)))
    return TailLook(tuple(by_llm), tuple(pooled))


def _over_median(lengths: Array, present: Mask) -> Array:
    kept = present.any(axis=1)
    lengths, present = lengths[kept], present[kept]
    middle = np.nanmedian(np.where(present, lengths, np.nan), axis=1, keepdims=True)
    return np.asarray((lengths / middle)[present], np.float64)


def _tail(name: str, values: Array) -> Tail:
    x, above = survival(values)
    curve = hill(values)
    return Tail(name, len(values), x, above, curve, curve.at(max(int(len(values) * DEEP_SHARE), 10)))
