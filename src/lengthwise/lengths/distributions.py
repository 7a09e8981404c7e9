"""The shared half of every prediction, and the two that any prediction can turn into: LogT and Point.

They live together because `remaining` leads from each to the others: an outlived prediction becomes a LogT,
a used-up one a Point.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import student
from lengthwise.lengths.contract import DEFAULT_CAP, OUTLIVED_BELOW, LengthDistribution, check_cap, check_probability

TIE_NU: Final = 3.5
"""Degrees of freedom of the log-t, as TIE (arXiv 2604.00499) fixes them."""

_MU_RANGE: Final = 50.0  # exp(50) tokens is more than anybody will ever read


class BaseDistribution(ABC):
    """A prediction built on three things that a family gives.

    `survival`; `upper_quantile` (the length outlived with probability p, accurate for tiny p); and
    `nodes_above` (quadrature nodes of the law of min(length, cap) above a threshold, the mass that
    sits on the cap included). A family also has a `cap`.
    """

    cap: Any  # a field in the families, derived in Remaining

    @abstractmethod
    def survival(self, tokens: float) -> float:
        """P(length > tokens)."""

    @abstractmethod
    def censored_at(self, max_tokens: int | None) -> LengthDistribution:
        """The prediction for a request that allows at most `max_tokens`; None changes nothing."""

    @abstractmethod
    def upper_quantile(self, p: float) -> float:
        """The length outlived with probability p, at most the cap."""

    @abstractmethod
    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lengths above `tokens` and weights: sum(w * g(x)) is E[g(min(L, cap)); L > tokens]."""

    def quantile(self, q: float) -> float:
        """The smallest length that is not outlived with probability at least q."""
        check_probability(q, "the quantile's level")
        return self.upper_quantile(1.0 - q)

    def mean(self) -> float:
        """The expected length."""
        return self._expect(lambda lengths: lengths)

    def std(self) -> float:
        """The spread of the prediction about one answer: ignorance and sampling together."""
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
        """Both at once, for families that have them cheaper together."""
        return self.mean(), self.cvar(alpha)

    def remaining(self, generated: int) -> LengthDistribution:
        """What is still to come: P(remaining > n) = S(generated + n) / S(generated).

        Once outlived (S(generated) < 1e-9): the longer it has run, the longer it is expected to; a LogT
        with median max(1, generated) and sigma 1, censored at what is left of the cap. At the cap: Point(0).
        """
        if generated < 0:
            raise InputError(f"generated is {generated}", hint="give the tokens that came so far, 0 or more")
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
    """Certainty: the answer has `tokens` tokens (a hint, or the truth), at most `cap`."""

    tokens: float
    cap: int = DEFAULT_CAP

    def __post_init__(self) -> None:
        check_cap(self.cap)
        if not 0.0 <= self.tokens < math.inf:
            raise InputError(f"a length of {self.tokens} tokens", hint="give a finite length, 0 or more")

    def mean(self) -> float:
        """The length itself, at most the cap."""
        return float(min(self.tokens, self.cap))

    def std(self) -> float:
        """Nothing is left to chance."""
        return 0.0

    def cvar(self, alpha: float) -> float:
        """The length itself, whatever the level."""
        check_probability(alpha, "the CVaR's level")
        return self.mean()

    def survival(self, tokens: float) -> float:
        """1 below the length, 0 from it on."""
        return 1.0 if tokens < self.mean() else 0.0

    def remaining(self, generated: int) -> LengthDistribution:
        """Again a Point, until it is outlived."""
        if 0 < generated < self.mean():
            return Point(self.tokens - generated, self.cap - generated)
        return super().remaining(generated)

    def censored_at(self, max_tokens: int | None) -> Point:
        """The same length with a cap of at most `max_tokens`."""
        return self if max_tokens is None or max_tokens >= self.cap else replace(self, cap=max_tokens)

    def upper_quantile(self, p: float) -> float:
        """The length itself, whatever p."""
        return self.mean()

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The one length, with all the weight."""
        return np.array([self.mean()]), np.array([self.survival(tokens)])


@dataclass(frozen=True)
class LogT(BaseDistribution):
    """A heavy-tailed length: X = exp(mu + sigma * T), T Student-t with nu degrees of freedom, cut at cap.

    The uncensored mean is infinite, so the cap is part of the prediction. exp(mu) is the median.
    """

    mu: float
    sigma: float
    cap: int
    nu: float = TIE_NU

    def __post_init__(self) -> None:
        check_cap(self.cap)
        if not -_MU_RANGE <= self.mu <= _MU_RANGE:
            raise InputError(f"mu is {self.mu}", hint="give the log of the median length, about 0 to 12")
        if not 0.0 < self.sigma < math.inf:
            raise InputError(f"sigma is {self.sigma}", hint="give a spread above 0; for certainty use Point")
        if not 0.0 < self.nu < math.inf:
            raise InputError(f"nu is {self.nu}", hint="give degrees of freedom above 0")

    def survival(self, tokens: float) -> float:
        """P(length > tokens); 0 from the cap on."""
        if tokens >= self.cap:
            return 0.0
        return 1.0 if tokens <= 0.0 else student.sf(self._standard(tokens), self.nu)

    def mean(self) -> float:
        """E[min(X, cap)]."""
        return self.mean_and_cvar()[0]

    def cvar(self, alpha: float) -> float:
        """CVaR_alpha[min(X, cap)]."""
        check_probability(alpha, "the CVaR's level")
        return self.mean_and_cvar(alpha)[1]

    def mean_and_cvar(self, alpha: float = 0.9) -> tuple[float, float]:
        """Both in one pass over fixed quadrature panels."""
        both = student.mean_and_cvar(self.mu, self.sigma, self.cap, self.nu, alpha)
        return both if both is not None else (super().mean(), super().cvar(alpha))

    def censored_at(self, max_tokens: int | None) -> LogT:
        """The same law with a cap of at most `max_tokens`."""
        return self if max_tokens is None or max_tokens >= self.cap else replace(self, cap=max_tokens)

    def _standard(self, tokens: float) -> float:
        return (math.log(tokens) - self.mu) / self.sigma

    def upper_quantile(self, p: float) -> float:
        """The length outlived with probability p, at most the cap."""
        log_length = self.mu + self.sigma * student.isf(p, self.nu)
        return float(self.cap) if log_length >= math.log(self.cap) else math.exp(log_length)

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Gauss-Legendre nodes of X up to the cap, and one on the cap."""
        if tokens >= self.cap:
            return np.empty(0), np.empty(0)
        low = self._standard(tokens) if tokens > 0.0 else -math.inf
        high = self._standard(self.cap)
        t, weights = student.nodes_between(low, high, self.sigma, self.nu)
        at_cap = student.sf(max(low, high), self.nu)
        return np.append(np.exp(self.mu + self.sigma * t), self.cap), np.append(weights, at_cap)


@dataclass(frozen=True)
class Remaining(BaseDistribution):
    """What is left of a prediction after `generated` tokens: a view, so that views compose exactly."""

    whole: BaseDistribution
    generated: int

    @property
    def cap(self) -> int:
        """What is left of the whole prediction's cap."""
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
        """The rest that is outlived with probability p."""
        return max(0.0, self.whole.upper_quantile(p * self._reached) - self.generated)

    def nodes_above(self, tokens: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The whole prediction's nodes beyond `generated`, counted from there."""
        lengths, weights = self.whole.nodes_above(self.generated + tokens)
        return lengths - self.generated, weights / self._reached
