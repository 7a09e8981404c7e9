"""Bins of remaining length, and how a prediction in them moves while tokens come."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

PAPER_END: Final = 512
PAPER_BINS: Final = 10


@dataclass(frozen=True)
class Bins:
    """Bin i holds the remaining lengths in (edges[i], edges[i+1]]; whatever is longer counts to the last."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.edges)
        if len(self.edges) < 2 or self.edges[0] != 0 or not (steps >= 1).all():
            raise InputError("the edges are no bins", hint="give edges from 0 up, each at least a token above the last")

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, remaining: ArrayLike) -> NDArray[np.intp]:
        """Return the bin of each remaining length."""
        place = np.searchsorted(self.edges, np.asarray(remaining, np.float64), side="left") - 1
        return np.clip(place, 0, len(self) - 1)

    def after(self, tokens: int) -> Floats:
        """Return T^tokens: where the mass of each bin (row) is so many tokens later.

        TRAIL (arXiv 2410.01035): each token a bin of width w loses 1/w to the one below; the lowest keeps all.
        """
        return _after(self.edges, tokens)

    def between(self, outlived: Floats) -> Floats:
        """Return rows of mass from P(remaining > edge) at every edge; what lies beyond goes to the last bin."""
        mass = np.maximum(outlived[:, :-1] - outlived[:, 1:], 1e-12)
        mass[:, -1] += outlived[:, -1]
        return np.asarray(mass / mass.sum(axis=1, keepdims=True))

    def quantile(self, probabilities: Floats, q: float, cap: ArrayLike) -> Floats:
        """Return each row's quantile, even inside a bin, at most `cap`."""
        sums = np.cumsum(probabilities, axis=1)
        sums /= sums[:, -1:]
        place = np.minimum((sums < q).sum(axis=1), len(self) - 1)
        rows = np.arange(len(sums))
        below = np.where(place > 0, sums[rows, place - 1], 0.0)
        inside = (q - below) / np.maximum(sums[rows, place] - below, 1e-12)
        edges = np.array(self.edges)
        found = edges[place] + np.clip(inside, 0.0, 1.0) * (edges[place + 1] - edges[place])
        return np.asarray(np.minimum(found, cap))


def paper_bins() -> Bins:
    """Return TRAIL's: ten equal ones on 0 to 512."""
    return Bins(tuple(np.linspace(0.0, PAPER_END, PAPER_BINS + 1).tolist()))


def log_bins(cap: int, count: int = 24, first: int = 4) -> Bins:
    """Return bins whose widths grow with the length, from `first` tokens to the cap."""
    if cap <= first:
        raise InputError(f"a cap of {cap} tokens", hint=f"give more than {first}")
    inner = np.unique(np.round(np.geomspace(first, cap, count)))
    return Bins((0.0, *inner.tolist()))


@lru_cache(maxsize=256)
def _after(edges: tuple[float, ...], tokens: int) -> Floats:
    widths = np.diff(edges)
    once = np.diag(1.0 - 1.0 / widths) + np.diag(1.0 / widths[1:], k=-1)
    once[0, 0] = 1.0
    return np.asarray(np.linalg.matrix_power(once, tokens))
