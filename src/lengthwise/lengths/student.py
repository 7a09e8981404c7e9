"""Integrals of exp(sigma * T) for a Student-t T, by Gauss-Legendre panels: no sampling, no adaptivity.

With t = sqrt(nu) * sinh(w) the density becomes c * cosh(w)^-nu, so that a tail over ten decades of t is
a dozen units of w, and panels of half a unit make eight nodes each worth ten digits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

_NODES: Final = 8
_LOG_MASS_BELOW: Final = 23.0  # the panels leave out e^-23 of the mass on the left
_LOG_MASS_ABOVE: Final = 35.0  # and e^-35 on the right, where exp(sigma t) may have grown by e^12
STEEPEST_SIGMA: Final = 4.0
"""Above, exp(sigma t) outgrows the fixed panels."""
_MIN_LOG: Final = -45.0  # e-folds under the cap beyond which nothing is left to add

_X, _W = (a.astype(np.float64) for a in np.polynomial.legendre.leggauss(_NODES))
_X01: Final = (_X + 1.0) / 2.0
_W01: Final = _W / 2.0
_UNIT_NODES: Final = tuple(zip(_X01.tolist(), _W01.tolist(), strict=True))


def sf(t: float, nu: float) -> float:
    """P(T > t), accurate in the far tail."""
    return float(special.stdtr(nu, -t))


def isf(p: float, nu: float) -> float:
    """Invert `sf`: the t that is exceeded with probability p."""
    if p <= 0.0:
        return math.inf
    if p >= 1.0:
        return -math.inf
    return -float(special.stdtrit(nu, p))


@lru_cache(maxsize=64)
def density_constant(nu: float) -> float:
    """Return c such that c * cosh(w)^-nu is the density in w, and c/sqrt(nu) * (1+t^2/nu)^-(nu+1)/2 in t."""
    return math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(math.pi)


def _panel_width(nu: float) -> float:
    return min(0.5, 1.0 / math.sqrt(nu))  # cosh(w)^-nu is a bell of width 1/sqrt(nu)


def _reach(log_mass: float, nu: float) -> float:
    """Return the w beyond which about exp(-log_mass) is left: cosh(w)^-nu = exp(-log_mass)."""
    return math.acosh(math.exp(min(log_mass / nu, 300.0)))


def reach_below(nu: float) -> float:
    """Return how far left of 0, in w, the mass matters."""
    return _reach(_LOG_MASS_BELOW, nu)


def reach_above(nu: float) -> float:
    """Return how far right of 0, in w, the mass matters."""
    return _reach(_LOG_MASS_ABOVE, nu)


def nodes_between(low: float, high: float, sigma: float, nu: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return nodes t in (low, high) and weights that integrate exp(sigma * t) against the density of T.

    The panels are narrow enough for the growth of exp(sigma * t), and start where it begins to matter.
    """
    root = math.sqrt(nu)
    matters = min(high, 0.0) + _MIN_LOG / sigma
    start = max(math.asinh(max(low, matters) / root), -reach_below(nu))
    stop = math.asinh(high / root)
    if stop <= start:
        return np.empty(0), np.empty(0)
    growth = sigma * math.sqrt(nu + high * high)
    panels = math.ceil((stop - start) * max(1.0 / _panel_width(nu), growth / 6.0))
    edges = np.linspace(start, stop, panels + 1)
    w = (edges[:-1, None] + np.diff(edges)[:, None] * _X01).ravel()
    weights = (np.diff(edges)[:, None] * _W01).ravel() * density_constant(nu) * np.cosh(w) ** -nu
    return root * np.sinh(w), weights


@dataclass(frozen=True)
class TailRule:
    """Fixed panels with an edge at the alpha-quantile: one prediction's mean and CVaR in one pass."""

    nu: float
    alpha: float
    edges: list[float]  # in t, ascending
    t: NDArray[np.float64]
    weights: NDArray[np.float64]
    first_tail_node: int

    def mean_and_cvar(self, mu: float, sigma: float, cap: float) -> tuple[float, float]:
        """E[min(X, cap)] and CVaR_alpha[min(X, cap)] of X = exp(mu + sigma * T).

        Both are an integral of exp(mu + sigma t) up to k = (ln cap - mu)/sigma plus cap * P(T > k).
        """
        k = (math.log(cap) - mu) / sigma
        beyond = float(special.stdtr(self.nu, -k))
        panel = bisect_right(self.edges, k) - 1
        if panel < 0:
            return cap * 1.0, cap * 1.0
        whole, cut = panel * _NODES, self.first_tail_node
        grown = np.exp(sigma * self.t[:whole])
        last = self._part_of_panel(self.edges[panel], k, sigma) if panel + 1 < len(self.edges) else 0.0
        median = math.exp(mu)
        if whole < cut:
            body = float(np.dot(grown, self.weights[:whole])) + last
            return median * body + cap * beyond, cap * 1.0
        body = float(np.dot(grown[:cut], self.weights[:cut]))
        tail = median * (float(np.dot(grown[cut:], self.weights[cut:whole])) + last) + cap * beyond
        return median * body + tail, tail / (1.0 - self.alpha)

    def _part_of_panel(self, low: float, high: float, sigma: float) -> float:
        width, power = high - low, -(self.nu + 1.0) / 2.0
        total = 0.0
        for x, weight in _UNIT_NODES:
            t = low + width * x
            total += weight * math.exp(sigma * t) * (1.0 + t * t / self.nu) ** power
        return total * width * density_constant(self.nu) / math.sqrt(self.nu)


@lru_cache(maxsize=64)
def tail_rule(nu: float, alpha: float) -> TailRule:
    """Return the panels for one nu and one level; built once."""
    root = math.sqrt(nu)
    at_quantile = math.asinh(isf(1.0 - alpha, nu) / root)
    width = _panel_width(nu)
    below = math.ceil((at_quantile + reach_below(nu)) / width)
    above = math.ceil((reach_above(nu) - at_quantile) / width)
    edges = at_quantile + width * np.arange(-below, above + 1)
    w = (edges[:-1, None] + width * _X01).ravel()
    weights = np.tile(width * _W01, below + above) * density_constant(nu) * np.cosh(w) ** -nu
    return TailRule(
        nu=nu,
        alpha=alpha,
        edges=(root * np.sinh(edges)).tolist(),
        t=root * np.sinh(w),
        weights=weights,
        first_tail_node=below * _NODES,
    )


def mean_and_cvar(mu: float, sigma: float, cap: float, nu: float, alpha: float) -> tuple[float, float] | None:
    """Return both from the fixed panels, or None where exp(sigma t) is too steep for them."""
    if sigma > STEEPEST_SIGMA or not 0.0 < alpha < 1.0:
        return None
    return tail_rule(nu, alpha).mean_and_cvar(mu, sigma, cap)
