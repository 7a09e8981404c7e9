"""A prediction in bins: what a classifier says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths.contract import check_cap
from lengthwise.lengths.distributions import BaseDistribution

_SUM_TOLERANCE = 1e-6  # what float32 softmax outputs miss 1 by
_GAUSS = 0.5 / math.sqrt(3.0)  # two-point Gauss nodes on a bin of width 1: exact to the third moment


@dataclass(frozen=True)
class Histogram(BaseDistribution):
    """Probabilities over bins [edges[i], edges[i+1]), even inside a bin; mass beyond the cap sits on it.

    Without a cap the last edge is it. A cap beyond the last edge adds no mass there: who runs past the
    last edge has outlived the prediction.
    """

    edges: tuple[float, ...]
    probabilities: tuple[float, ...]
    cap: int

    def __init__(self, edges: Iterable[float], probabilities: Iterable[float], cap: int | None = None) -> None:
        edges_ = np.fromiter(edges, np.float64)
        mass = np.fromiter(probabilities, np.float64)
        _check(edges_, mass)
        limit = math.ceil(edges_[-1]) if cap is None else cap
        check_cap(limit)
        object.__setattr__(self, "edges", tuple(edges_.tolist()))
        object.__setattr__(self, "probabilities", tuple(_normalised(mass).tolist()))
        object.__setattr__(self, "cap", int(limit))

    def survival(self, tokens: float) -> float:
        """P(length > tokens); 0 from the cap on."""
        if tokens >= self.cap:
            return 0.0
        return float(np.interp(tokens, self._edges, self._outlived))

    def censored_at(self, max_tokens: int | None) -> Histogram:
        """The same bins with a cap of at most `max_tokens`."""
        return self if max_tokens is None or max_tokens >= self.cap else replace(self, cap=max_tokens)

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        return np.array(self.edges)

    @cached_property
    def _outlived(self) -> NDArray[np.float64]:
        """P(length > edge), summed from the far end so that small tails keep their digits."""
        tail = np.append(np.cumsum(self.probabilities[::-1])[::-1], 0.0)
        return np.asarray(tail / tail[0])

    def upper_quantile(self, p: float) -> float:
        """The length outlived with probability p, at most the cap; the smaller one across an empty bin."""
        edge = int(np.argmax(self._outlived <= p))
        if edge == 0:
            return min(self.edges[0], float(self.cap))
        above, below = self._outlived[edge - 1], self._outlived[edge]
        start, stop = self.edges[edge - 1], self.edges[edge]
        return min(start + float((above - p) / (above - below)) * (stop - start), float(self.cap))

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two nodes a bin, exact for mean and variance, and one on the cap."""
        low = np.clip(self._edges[:-1], tokens, self.cap)
        high = np.clip(self._edges[1:], tokens, self.cap)
        density = np.array(self.probabilities) / np.diff(self._edges)
        width = np.maximum(high - low, 0.0)
        middle, half_mass = (low + high) / 2.0, density * width / 2.0
        at_cap = float(np.interp(self.cap, self._edges, self._outlived)) if tokens < self.cap else 0.0
        lengths = np.concatenate((middle - _GAUSS * width, middle + _GAUSS * width, [float(self.cap)]))
        return lengths, np.concatenate((half_mass, half_mass, [at_cap]))


def _normalised(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mass that sums to 1; left alone where it does to the last digits, so that copies are equal."""
    total = float(mass.sum())
    return mass if abs(total - 1.0) < 1e-12 else mass / total


def _check(edges: NDArray[np.float64], mass: NDArray[np.float64]) -> None:
    if len(mass) == 0 or len(edges) != len(mass) + 1:
        raise InputError(
            f"{len(edges)} edges for {len(mass)} probabilities", hint="give one edge more than probabilities"
        )
    if not (edges[0] >= 0 and np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise InputError("the edges do not rise", hint="give finite edges from 0 up, each above the one before")
    if not (np.isfinite(mass).all() and (mass >= 0).all()):
        raise InputError("a probability is negative or not a number", hint="give probabilities from 0 to 1")
    if abs(mass.sum() - 1.0) > _SUM_TOLERANCE:
        raise InputError(f"the probabilities sum to {mass.sum():.6g}", hint="they must sum to 1")
