"""Bins of remaining length, smoothing of successive readings, and the input features of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogT

Floats = NDArray[np.float64]

PAPER_END: Final = 512
PAPER_BINS: Final = 10


@dataclass(frozen=True)
class Bins:
    """Bin i holds the remaining lengths in (edges[i], edges[i+1]]; longer ones count to the last bin."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.edges)
        if len(self.edges) < 2 or self.edges[0] != 0 or not (steps >= 1).all():
            raise InputError(
                "the edges are not increasing from 0", hint="give edges from 0 up, each at least a token above the last"
            )

    def __len__(self) -> int:
        return len(self.edges) - 1

    def of(self, remaining: ArrayLike) -> NDArray[np.intp]:
        """Return the bin of each remaining length."""
        place = np.searchsorted(self.edges, np.asarray(remaining, np.float64), side="left") - 1
        return np.clip(place, 0, len(self) - 1)

    def after(self, tokens: int) -> Floats:
        """Return T^tokens: the distribution of each bin's mass (row) after `tokens` more tokens.

        TRAIL (arXiv 2410.01035): with each token a bin of width w moves 1/w of its mass to the bin below; the lowest
        keeps all.
        """
        return _after(self.edges, tokens)

    def between(self, survival: Floats) -> Floats:
        """Return rows of mass from P(remaining > edge) at every edge; the rest goes to the last bin."""
        mass = np.maximum(survival[:, :-1] - survival[:, 1:], 1e-12)
        mass[:, -1] += survival[:, -1]
        return np.asarray(mass / mass.sum(axis=1, keepdims=True))

    def quantile(self, probabilities: Floats, q: float, cap: ArrayLike) -> Floats:
        """Return each row's quantile, interpolated inside a bin, at most `cap`."""
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
    """Return TRAIL's bins: ten equal ones on 0 to 512."""
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


_LEAST: Final = 1e-9  # every bin keeps some mass


@dataclass(frozen=True)
class Smoothing:
    """q_t ~ (q_s T^(t-s))^carry * p_t^trust; the first one q_0 ~ b^start * p_0^(1 - start), b the prompt's prediction.

    carry = trust = 1, start = 0 is TRAIL's (arXiv 2410.01035), which assumes independent readings. Those of one
    answer are not: values below 1 discount old and repeated evidence. carry = 0, trust = 1 is no smoothing.
    """

    carry: float = 1.0
    trust: float = 1.0
    start: float = 0.0

    def first(self, prior: Floats, reading: Floats) -> Floats:
        """Return the prediction after the first reading; `prior` is the prompt's prediction in bins."""
        mass = np.maximum(prior, _LEAST) ** self.start * np.maximum(reading, _LEAST) ** (1.0 - self.start)
        return np.asarray(mass / mass.sum())

    def step(self, bins: Bins, before: Floats, tokens: int, reading: Floats) -> Floats:
        """Return the prediction after a reading that is `tokens` after the previous one."""
        prior = np.maximum(before @ bins.after(tokens), _LEAST)
        mass = prior**self.carry * np.maximum(reading, _LEAST) ** self.trust
        return np.asarray(mass / mass.sum())

    def rows(
        self, bins: Bins, readings: Floats, prior: Floats, answer: NDArray[np.int64], generated: NDArray[np.int64]
    ) -> Floats:
        """Smooth the readings of many answers, each in order of its tokens; `prior` as of `first`, for each row."""
        smooth = np.empty_like(readings)
        order = np.lexsort((generated, answer))
        last = -1
        for row in order.tolist():
            if last < 0 or answer[last] != answer[row]:
                smooth[row] = self.first(prior[row], readings[row])
            else:
                tokens = int(generated[row] - generated[last])
                smooth[row] = self.step(bins, smooth[last], tokens, readings[row])
            last = row
        return smooth


NONE: Final = Smoothing(carry=0.0, trust=1.0)
PAPER: Final = Smoothing()


PROMPT: Final = "prompt"
ENTROPY: Final = "entropy"
_QUARTILES_APART: Final = 1.45
"""Distance of the quartiles of a log-t with nu 3.5, in sigmas."""


def features(
    inputs: Sequence[str], generated: ArrayLike, *, mu: ArrayLike, sigma: ArrayLike, left: ArrayLike, entropy: ArrayLike
) -> NDArray[np.float32]:
    """Return the columns that `inputs` name, roughly centred; the generated tokens are always included.

    `left` is the median remaining length by the prompt's prediction after `generated` tokens.
    """
    age = np.asarray(generated, np.float64)
    columns = [np.log1p(age) / 3.0 - 1.0, age / 512.0 - 0.5]
    if PROMPT in inputs:
        log_left = np.log(np.maximum(np.asarray(left, np.float64), 1.0))
        columns += [np.asarray(mu, np.float64) - 5.0, np.asarray(sigma, np.float64), log_left - 5.0]
    if ENTROPY in inputs:
        columns.append(np.asarray(entropy, np.float64) - 1.0)
    return np.stack(columns, axis=1).astype(np.float32)


def left_by_age(generated: ArrayLike, mu: Floats, sigma: Floats, nu: float, cap: int, q: float = 0.5) -> Floats:
    """Return quantiles of LogT(mu, sigma, cap, nu).remaining(generated), for many at once."""
    age = np.asarray(generated, np.float64)
    reached = _survival(age, mu, sigma, nu)
    length = np.exp(np.minimum(mu - sigma * special.stdtrit(nu, (1.0 - q) * reached), 50.0))
    return np.asarray(np.maximum(np.minimum(length, cap) - age, 0.0))


def mass_by_age(bins: Bins, generated: ArrayLike, mu: Floats, sigma: Floats, nu: float) -> Floats:
    """Return the mass of log-t predictions in each bin of remaining length, given the generated tokens."""
    reach = np.asarray(generated, np.float64)[:, None] + np.asarray(bins.edges)
    return bins.between(_survival(reach, mu[:, None], sigma[:, None], nu))


def mass_of(bins: Bins, prediction: LengthDistribution) -> Floats:
    """Return the mass of a prediction of remaining length in each bin."""
    return np.asarray(bins.between(np.array([[prediction.survival(edge) for edge in bins.edges]]))[0])


def of_prediction(prediction: LengthDistribution) -> tuple[float, float]:
    """Return mu and sigma of a prediction; from its quartiles if it is not a log-t."""
    if isinstance(prediction, LogT):
        return prediction.mu, prediction.sigma
    low, middle, high = (float(np.log(max(1.0, prediction.quantile(q)))) for q in (0.25, 0.5, 0.75))
    return middle, max(0.01, (high - low) / _QUARTILES_APART)


def _survival(tokens: Floats, mu: Floats, sigma: Floats, nu: float) -> Floats:
    """P(length > tokens) of log-t's."""
    standard = (np.log(np.maximum(tokens, 1e-9)) - mu) / sigma
    return np.where(tokens > 0.0, special.stdtr(nu, -standard), 1.0)
