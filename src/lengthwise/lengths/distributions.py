"""Length distributions: the prediction of how many tokens an answer has. Immutable values, pure mathematics.

`LengthDistribution` is the protocol; `LogT`, `Histogram` and `Point` are the families, `Remaining` and `After` the
views that condition one on tokens already generated, and `wide_prior` is the prediction without information.

E[remaining] has one definition, `prediction.remaining(generated).mean()`. `log_t` has faster ways to compute it for a
log-t, and the tests hold them to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import log_t
from lengthwise.lengths.log_t import OUTLIVED_BELOW, TIE_NU

DEFAULT_CAP: Final = 8192
"""Tokens; the cap where neither max_tokens nor the context left is known."""

_MU_RANGE: Final = 50.0  # exp(50) tokens is longer than any answer
_SUM_TOLERANCE = 1e-6  # what float32 softmax outputs miss 1 by
_GAUSS = 0.5 / math.sqrt(3.0)  # two-point Gauss nodes on a bin of width 1: exact to the third moment
_MEDIAN = 350  # tokens; the median of CASTILLO's 675,019 samples below its cap, all 13 LLMs


@runtime_checkable
class LengthDistribution(Protocol):
    """The distribution of the number of tokens of an answer; immutable, censored at `cap`.

    Censored means that the law is that of min(length, cap): the mass beyond the cap sits on it.
    """

    @property
    def cap(self) -> int:
        """The length at which the answer is cut off."""

    def mean(self) -> float:
        """Return the expected length."""

    def std(self) -> float:
        """Return the standard deviation for one answer: uncertainty of the predictor and of sampling together."""

    def quantile(self, q: float) -> float:
        """Return the smallest length that the answer does not exceed with probability at least q."""

    def survival(self, tokens: float) -> float:
        """Return P(length > tokens)."""

    def cvar(self, alpha: float) -> float:
        """Return the mean of the worst 1 - alpha: (1/(1-alpha)) * integral_alpha^1 quantile(u) du."""

    def remaining(self, generated: int) -> LengthDistribution:
        """Return the distribution of the tokens still to come, given `generated` tokens without an end."""

    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """Return the prediction for a request that allows at most `max_tokens`; None changes nothing."""


def check_probability(value: float, name: str) -> None:
    """Raise InputError for a probability outside [0, 1]."""
    try:
        valid = 0.0 <= value <= 1.0
    except TypeError:
        valid = False
    if not valid:
        raise InputError(f"{name} is {value!r}", hint="give a probability between 0 and 1")


def check_cap(cap: int) -> None:
    """Raise InputError for a cap that is not a whole number of at least one token."""
    try:
        valid = cap >= 1 and cap == int(cap)
    except (TypeError, OverflowError):
        valid = False
    if not valid:
        raise InputError(f"the cap is {cap!r}", hint="give a whole number of tokens, at least 1")


class BaseDistribution(ABC):
    """Base class of distributions: mean, std, CVaR and `remaining` from three methods of a family.

    `survival`; `upper_quantile` (the length exceeded with probability p, accurate for tiny p); and
    `nodes_above` (quadrature nodes of the law of min(length, cap) above a threshold, the mass on the cap included).
    A family also has a `cap`.
    """

    cap: Any  # a field in the families, derived in Remaining

    @abstractmethod
    def survival(self, tokens: float) -> float:
        """P(length > tokens)."""

    @abstractmethod
    def upper_quantile(self, p: float) -> float:
        """The length exceeded with probability p, at most the cap."""

    @abstractmethod
    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lengths above `tokens` and weights: sum(w * g(x)) is E[g(min(L, cap)); L > tokens]."""

    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """The same law with a cap of at most `max_tokens`; None changes nothing."""
        changed: Any = self
        return self if max_tokens is None or max_tokens >= self.cap else replace(changed, cap=max_tokens)

    def quantile(self, q: float) -> float:
        """The smallest length that the answer does not exceed with probability at least q."""
        check_probability(q, "the quantile's level")
        return self.upper_quantile(1.0 - q)

    def mean(self) -> float:
        """The expected length."""
        return self._expect(lambda lengths: lengths)

    def std(self) -> float:
        """The standard deviation for one answer."""
        mean = self.mean()
        return math.sqrt(self._expect(lambda lengths: (lengths - mean) ** 2))

    def cvar(self, alpha: float) -> float:
        """The mean of the worst 1 - alpha: (1/(1-alpha)) * integral_alpha^1 quantile(u) du."""
        check_probability(alpha, "the CVaR's level")
        if alpha == 1.0:
            return self.upper_quantile(0.0)
        start = self.quantile(alpha)
        lengths, weights = self.nodes_above(start)
        return start + float(weights @ (lengths - start)) / (1.0 - alpha)

    def mean_and_cvar(self, alpha: float = 0.9) -> tuple[float, float]:
        """Mean and CVaR, which some families compute together."""
        return self.mean(), self.cvar(alpha)

    def remaining(self, generated: int) -> LengthDistribution:
        """The tokens still to come: P(remaining > n) = S(generated + n) / S(generated).

        Once outlived (S(generated) < 1e-9), the expected rest grows with the length so far: a LogT with median
        max(1, generated) and sigma 1, censored at cap - generated. At the cap: Point(0).
        """
        try:
            valid = generated >= 0
        except TypeError:
            valid = False
        if not valid:
            raise InputError(f"generated is {generated!r}", hint="give the tokens generated so far, 0 or more")
        if generated == 0:
            return self
        if generated >= self.cap:
            return Point(0)
        if self.survival(generated) < OUTLIVED_BELOW:
            return LogT(math.log(max(1, generated)), 1.0, self.cap - generated)
        return Remaining(self, generated)

    def _expect(self, value: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
        lengths, weights = self.nodes_above(0.0)
        at_zero = max(0.0, 1.0 - float(weights.sum()))
        return float(weights @ value(lengths)) + at_zero * float(value(np.zeros(1))[0])


@dataclass(frozen=True)
class Point(BaseDistribution):
    """A certain length: `tokens` (a hint, or the true length), at most `cap`."""

    tokens: float
    cap: int = DEFAULT_CAP

    def __post_init__(self) -> None:
        check_cap(self.cap)
        try:
            valid = 0.0 <= self.tokens < math.inf
        except TypeError:
            valid = False
        if not valid:
            raise InputError(f"a length of {self.tokens!r} tokens", hint="give a finite length, 0 or more")

    @classmethod
    def declared(cls, tokens: float, cap: int) -> Point:
        """The length that a client declares, clamped to at least one token and at most the cap."""
        return cls(max(1.0, cls(tokens, cap).mean()), cap)

    def mean(self) -> float:
        """The length itself, at most the cap."""
        return float(min(self.tokens, self.cap))

    def std(self) -> float:
        """0: the length is certain."""
        return 0.0

    def cvar(self, alpha: float) -> float:
        """The length itself, whatever the level."""
        check_probability(alpha, "the CVaR's level")
        return self.mean()

    def survival(self, tokens: float) -> float:
        """1 below the length, 0 from it on."""
        return 1.0 if tokens < self.mean() else 0.0

    def remaining(self, generated: int) -> LengthDistribution:
        """A Point, until it is outlived."""
        if 0 < generated < self.mean():
            return Point(self.tokens - generated, self.cap - generated)
        return super().remaining(generated)

    def upper_quantile(self, p: float) -> float:
        """The length itself, whatever p."""
        return self.mean()

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The one length, with weight 1."""
        return np.array([self.mean()]), np.array([self.survival(tokens)])


@dataclass(frozen=True)
class LogT(BaseDistribution):
    """A heavy-tailed length: X = exp(mu + sigma * T), T Student-t with nu degrees of freedom, censored at cap.

    The uncensored mean is infinite, so the cap is part of the prediction. exp(mu) is the median.
    """

    mu: float
    sigma: float
    cap: int
    nu: float = TIE_NU

    def __post_init__(self) -> None:
        check_cap(self.cap)
        try:
            if not -_MU_RANGE <= self.mu <= _MU_RANGE:
                raise InputError(f"mu is {self.mu}", hint="give the log of the median length, about 0 to 12")
            if not 0.0 < self.sigma < math.inf:
                raise InputError(f"sigma is {self.sigma}", hint="give a spread above 0; for certainty use Point")
            if not 0.0 < self.nu < math.inf:
                raise InputError(f"nu is {self.nu}", hint="give degrees of freedom above 0")
        except TypeError:
            raise InputError(f"mu {self.mu!r}, sigma {self.sigma!r}, nu {self.nu!r}", hint="give numbers") from None

    def __repr__(self) -> str:
        nu = "" if self.nu == TIE_NU else f", nu={self.nu:g}"
        return f"LogT(mu={self.mu:.6g}, sigma={self.sigma:.6g}, cap={self.cap}{nu})"

    def survival(self, tokens: float) -> float:
        """P(length > tokens); 0 from the cap on."""
        if tokens >= self.cap:
            return 0.0
        return 1.0 if tokens <= 0.0 else log_t.sf(self._standard(tokens), self.nu)

    def mean(self) -> float:
        """E[min(X, cap)]."""
        return self.mean_and_cvar()[0]

    def cvar(self, alpha: float) -> float:
        """CVaR_alpha[min(X, cap)]."""
        check_probability(alpha, "the CVaR's level")
        return self.mean_and_cvar(alpha)[1]

    def mean_and_cvar(self, alpha: float = 0.9) -> tuple[float, float]:
        """Mean and CVaR in one pass over fixed quadrature panels."""
        both = log_t.mean_and_cvar(self.mu, self.sigma, self.cap, self.nu, alpha)
        return both if both is not None else (super().mean(), super().cvar(alpha))

    def _standard(self, tokens: float) -> float:
        return (math.log(tokens) - self.mu) / self.sigma

    def upper_quantile(self, p: float) -> float:
        """The length exceeded with probability p, at most the cap."""
        log_length = self.mu + self.sigma * log_t.isf(p, self.nu)
        return float(self.cap) if log_length >= math.log(self.cap) else math.exp(log_length)

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gauss-Legendre nodes of X up to the cap, and one on the cap."""
        if tokens >= self.cap:
            return np.empty(0), np.empty(0)
        low = self._standard(tokens) if tokens > 0.0 else -math.inf
        high = self._standard(self.cap)
        t, weights = log_t.nodes_between(low, high, self.sigma, self.nu)
        at_cap = log_t.sf(max(low, high), self.nu)
        return np.append(np.exp(self.mu + self.sigma * t), self.cap), np.append(weights, at_cap)


@dataclass(frozen=True)
class Remaining(BaseDistribution):
    """The rest of a prediction after `generated` tokens: a view, so that views compose exactly."""

    whole: BaseDistribution
    generated: int

    @property
    def cap(self) -> int:
        """The cap of the whole prediction less the generated tokens."""
        return int(self.whole.cap) - self.generated

    def survival(self, tokens: float) -> float:
        """P(remaining > tokens) = S(generated + tokens) / S(generated)."""
        return 1.0 if tokens < 0 else self.whole.survival(self.generated + tokens) / self._reached

    def remaining(self, generated: int) -> LengthDistribution:
        """The same view, further on: remaining(a).remaining(b) is remaining(a + b)."""
        return self.whole.remaining(self.generated + generated) if generated > 0 else super().remaining(generated)

    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """The same view with at most `max_tokens` still to come."""
        if max_tokens is None:
            return self
        return self.whole.censored_at(self.generated + max_tokens).remaining(self.generated)

    @property
    def _reached(self) -> float:
        return self.whole.survival(self.generated)

    def upper_quantile(self, p: float) -> float:
        """The rest exceeded with probability p."""
        return max(0.0, self.whole.upper_quantile(p * self._reached) - self.generated)

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The whole prediction's nodes beyond `generated`, counted from there."""
        lengths, weights = self.whole.nodes_above(self.generated + tokens)
        return lengths - self.generated, weights / self._reached


@dataclass(frozen=True)
class Histogram(BaseDistribution):
    """Probabilities of bins [edges[i], edges[i+1]), uniform inside a bin; mass beyond the cap sits on it.

    Without a cap, the last edge is the cap. A cap beyond the last edge adds no mass there: an answer longer than the
    last edge has outlived the prediction. The output of a classifier, for example of a probe.
    """

    edges: tuple[float, ...]
    probabilities: tuple[float, ...]
    cap: int

    def __init__(self, edges: Iterable[float], probabilities: Iterable[float], cap: int | None = None) -> None:
        edges_ = tuple(map(float, edges))
        mass = np.fromiter(probabilities, np.float64)
        _check_bins(edges_, mass)
        limit = math.ceil(edges_[-1]) if cap is None else cap
        check_cap(limit)
        object.__setattr__(self, "edges", edges_)
        object.__setattr__(self, "probabilities", tuple(_normalised(mass).tolist()))
        object.__setattr__(self, "cap", int(limit))

    def __repr__(self) -> str:
        bins, low, high = len(self.probabilities), self.edges[0], self.edges[-1]
        return (
            f"Histogram({bins} bins from {low:g} to {high:g} tokens, median={self.quantile(0.5):.6g}, cap={self.cap})"
        )

    def survival(self, tokens: float) -> float:
        """P(length > tokens); 0 from the cap on."""
        if tokens >= self.cap:
            return 0.0
        return float(np.interp(tokens, self._edges, self._edge_survival))

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        return np.array(self.edges)

    @cached_property
    def _edge_survival(self) -> NDArray[np.float64]:
        """P(length > edge), summed from the far end so that small tails are accurate."""
        tail = np.append(np.cumsum(self.probabilities[::-1])[::-1], 0.0)
        return np.asarray(tail / tail[0])

    def upper_quantile(self, p: float) -> float:
        """The length exceeded with probability p, at most the cap; the smaller one across an empty bin."""
        edge = int(np.argmax(self._edge_survival <= p))
        if edge == 0:
            return min(self.edges[0], float(self.cap))
        above, below = self._edge_survival[edge - 1], self._edge_survival[edge]
        start, stop = self.edges[edge - 1], self.edges[edge]
        return min(start + float((above - p) / (above - below)) * (stop - start), float(self.cap))

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two nodes a bin, exact for mean and variance, and one on the cap."""
        low = np.clip(self._edges[:-1], tokens, self.cap)
        high = np.clip(self._edges[1:], tokens, self.cap)
        density = np.array(self.probabilities) / np.diff(self._edges)
        width = np.maximum(high - low, 0.0)
        middle, half_mass = (low + high) / 2.0, density * width / 2.0
        at_cap = float(np.interp(self.cap, self._edges, self._edge_survival)) if tokens < self.cap else 0.0
        lengths = np.concatenate((middle - _GAUSS * width, middle + _GAUSS * width, [float(self.cap)]))
        return lengths, np.concatenate((half_mass, half_mass, [at_cap]))


def _normalised(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return mass that sums to 1; unchanged where it does to the last digits, so that copies are equal."""
    total = float(mass.sum())
    return mass if abs(total - 1.0) < 1e-12 else mass / total


@lru_cache(maxsize=256)
def _rise(edges: tuple[float, ...]) -> bool:
    """Return whether edges are finite and increase from 0 or more; a probe makes many histograms of the same edges."""
    return edges[0] >= 0 and all(map(math.isfinite, edges)) and all(a < b for a, b in pairwise(edges))


def _check_bins(edges: tuple[float, ...], mass: NDArray[np.float64]) -> None:
    if len(mass) == 0 or len(edges) != len(mass) + 1:
        raise InputError(
            f"{len(edges)} edges for {len(mass)} probabilities", hint="give one edge more than probabilities"
        )
    if not _rise(edges):
        raise InputError("the edges do not rise", hint="give finite edges from 0 up, each above the one before")
    if not (np.isfinite(mass).all() and (mass >= 0).all()):
        raise InputError("a probability is negative or not a number", hint="give probabilities from 0 to 1")
    if abs(mass.sum() - 1.0) > _SUM_TOLERANCE:
        raise InputError(f"the probabilities sum to {mass.sum():.6g}", hint="they must sum to 1")


@dataclass(frozen=True)
class After(BaseDistribution):
    """The whole answer, given `generated` tokens and a prediction `rest` of the tokens after them.

    The inverse of `remaining`: a probe predicts what is still to come, and a job has a prediction of the whole answer.
    From `generated` on, `remaining` conditions `rest`.
    """

    rest: BaseDistribution
    generated: int

    def __post_init__(self) -> None:
        if self.generated < 0:
            raise InputError(f"generated is {self.generated}", hint="give the tokens generated so far, 0 or more")

    @property
    def cap(self) -> int:
        """The generated tokens and the cap of the rest."""
        return self.generated + int(self.rest.cap)

    def survival(self, tokens: float) -> float:
        """P(length > tokens): 1 below `generated`, then that of the rest."""
        return 1.0 if tokens < self.generated else self.rest.survival(self._into_rest(tokens))

    def _into_rest(self, tokens: float) -> float:
        """The largest rest whose sum with `generated` rounds to at most `tokens`.

        A plain difference may round to below an atom of the rest that lies exactly at `tokens`: 16.4 - 15 < 1.4.
        """
        rest = tokens - self.generated
        return rest + 0.5 * math.ulp(tokens) if rest > 0.0 else rest

    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """The rest censored at the limit less `generated`; a limit below `generated` is the length."""
        if max_tokens is None or max_tokens >= self.cap:
            return self
        if max_tokens <= self.generated:
            return Point(max_tokens, max_tokens)
        rest = self.rest.censored_at(max_tokens - self.generated)
        return After(rest, self.generated) if isinstance(rest, BaseDistribution) else rest

    def upper_quantile(self, p: float) -> float:
        """The generated tokens and the rest exceeded with probability p."""
        return self.generated + self.rest.upper_quantile(p)

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The nodes of the rest, shifted by `generated`; and one on `generated`, for a rest that may be 0."""
        lengths, weights = self.rest.nodes_above(max(0.0, tokens - self.generated))
        lengths = lengths + self.generated
        if tokens >= self.generated:
            return lengths, weights
        at_zero = max(0.0, 1.0 - float(weights.sum()))
        return np.append(lengths, float(self.generated)), np.append(weights, at_zero)


@lru_cache(maxsize=256)
def wide_prior(cap: int = DEFAULT_CAP) -> LogT:
    """Return the prediction without information: the median answer of 13 LLMs with a wide spread."""
    return LogT(math.log(_MEDIAN), 1.0, cap)
