"""Paired bootstrap over requests and repeats: between which values a comparison lies.

A draw takes repeats with replacement, and within each of them blocks of consecutive requests: neighbours in a queue
wait together, so single requests would be too sure of themselves. Every policy has the same draw. `repeats=False` keeps
the repeats as they are and draws requests only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.simulator.paired import LEVEL, Ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Repeats = Sequence[Floats]

_BLOCKS: Final = 50
_DRAWS: Final = 1000


def ratio(ours: Repeats, base: Repeats, q: float | None = None, *, seed: int = 0, repeats: bool = True) -> Ratio:
    """Ours over the baseline's, of means or of `q` quantiles: one array per repeat, request by request."""
    return _interval([ours, base], q, lambda mine, other: mine / other, seed, repeats)


def captured(base: Repeats, ours: Repeats, best: Repeats, *, seed: int = 0) -> Ratio:
    """The share of the true-length gain, (base - ours) / (base - best), of means; none where that gain is not sure."""
    if _interval([base, best], None, lambda f, o: f - o, seed, True).low <= 0:
        return Ratio.none()
    return _interval([base, ours, best], None, lambda f, p, o: (f - p) / (f - o), seed, True)


def _interval(several: Sequence[Repeats], q: float | None, of: Callable[..., float], seed: int, repeats: bool) -> Ratio:
    if not several[0] or any(len(each) != len(several[0]) for each in several):
        return Ratio.none()
    figures = [_Figure(each, q) for each in several]
    blocks = figures[0].blocks
    if any(figure.blocks != blocks for figure in figures):
        raise ValueError("paired repeats have the same requests")
    rng = np.random.default_rng([seed, 1 + len(blocks)])
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = [of(*(figure.drawn(weight) for figure in figures)) for weight in _weights(blocks, repeats, rng)]
        value = of(*(figure.value for figure in figures))
    low, high = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Ratio(float(value), float(low), float(high))


def _weights(blocks: Sequence[int], repeats: bool, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """How often each block of each repeat is counted, draw by draw."""
    n = len(blocks)
    draws = []
    for _ in range(_DRAWS):
        times = rng.multinomial(n, np.full(n, 1 / n)) if repeats else np.ones(n, np.int64)
        parts = [
            rng.multinomial(many * size, np.full(size, 1 / size)) for many, size in zip(times, blocks, strict=True)
        ]
        draws.append(np.concatenate(parts))
    return draws


class _Figure:
    """A mean or a quantile over the requests of all repeats, and the same of a draw."""

    def __init__(self, repeats: Repeats, q: float | None) -> None:
        self._q = q
        self.blocks = [min(len(each), _BLOCKS) for each in repeats]
        first = np.concatenate([[0], np.cumsum(self.blocks)])
        block = np.concatenate(
            [
                first[place] + np.arange(len(each)) * size // len(each)
                for place, (each, size) in enumerate(zip(repeats, self.blocks, strict=True))
            ]
        ).astype(np.intp)
        values = np.concatenate(list(repeats))
        self.value = float(values.mean() if q is None else np.quantile(values, q))
        self._sums = np.bincount(block, values, minlength=int(first[-1]))
        self._sizes = np.bincount(block, minlength=int(first[-1]))
        order = np.argsort(values, kind="stable")
        self._sorted, self._block = values[order], block[order]

    def drawn(self, weight: NDArray[np.int64]) -> float:
        if self._q is None:
            return float(weight @ self._sums / (weight @ self._sizes))
        reached = np.cumsum(weight[self._block])
        return float(self._sorted[np.searchsorted(reached, self._q * reached[-1])])
