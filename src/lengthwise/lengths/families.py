"""Families of an answer's length, written as location, scale and shape.

In a family, g(X) = location + scale * Z: g is the logarithm or the identity, Z a standard kernel. What is not free
is a constant of the family, so that one optimiser (`lengthwise.lengths.fit`) serves them all:

| family     | g   | Z         | location, scale, shape                   |
|------------|-----|-----------|------------------------------------------|
| log-t      | log | Student t | mu, sigma, nu (3.5, or free in 0.5..200) |
| log-normal | log | normal    | mu, sigma, none                          |

The bounds on nu are part of the family: with ten samples the likelihood often rises all the way to nu = inf. Rival
families are in `experiments/length_families`.

Everywhere `params` has shape (n, 3), `x` has shape (n, k): row i of x belongs to row i of params. The kernels know
nothing of data, rounding, censoring, location or scale: `z` has shape (n, k), `shape` (n, 1), and a kernel without a
shape ignores it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lengthwise.lengths.log_t import TIE_NU, log_density

Array = NDArray[np.float64]

_SMALLEST_LENGTH: Final = 1e-9  # where a logarithm is needed of the lower edge of the cell around length 0
NARROW: Final = 0.2
"""Three-point Gauss-Legendre on a cell narrower than this (in units of the kernel's spread) is good to 1e-8, and five
times faster than the difference of two incomplete beta or gamma functions."""
_LOG_DENSITY_AT_0: Final = -0.5 * float(np.log(2 * np.pi))
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


class Kernel(ABC):
    """A standard distribution; `median` and `std` (of a typical shape) only serve to find a start for the fit."""

    median: float
    std: float

    @abstractmethod
    def logpdf(self, z: Array, shape: Array) -> Array:
        """Log density."""

    @abstractmethod
    def score(self, z: Array, shape: Array) -> Array:
        """Derivative of the log density in z."""

    @abstractmethod
    def logsf(self, z: Array, shape: Array) -> Array:
        """Log P(Z > z), accurate far in the tail."""

    @abstractmethod
    def interval(self, low: Array, high: Array, shape: Array) -> Array:
        """P(low < Z <= high), accurate in both tails."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, shape: Array, size: tuple[int, int]) -> Array:
        """Random values."""


def narrow_interval(kernel: Kernel, low: Array, high: Array, shape: Array) -> Array:
    """P(low < Z <= high) of narrow cells, by three-point Gauss-Legendre."""
    half, middle = 0.5 * (high - low), 0.5 * (high + low)
    total = np.zeros_like(middle)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        total += weight * np.exp(kernel.logpdf(middle + node * half, shape))
    return total * half


class _Normal(Kernel):
    """Z ~ N(0, 1); the shape is ignored."""

    median = 0.0
    std = 1.0

    def logpdf(self, z: Array, shape: Array) -> Array:
        return _LOG_DENSITY_AT_0 - 0.5 * z * z

    def score(self, z: Array, shape: Array) -> Array:
        return -z

    def logsf(self, z: Array, shape: Array) -> Array:
        return special.log_ndtr(-z)

    def interval(self, low: Array, high: Array, shape: Array) -> Array:
        # The difference is taken in the lower tail, where nothing cancels.
        flip = low + high > 0
        return special.ndtr(np.where(flip, -low, high)) - special.ndtr(np.where(flip, -high, low))

    def draw(self, rng: np.random.Generator, shape: Array, size: tuple[int, int]) -> Array:
        return rng.standard_normal(size)


class _Student(Kernel):
    """Z ~ Student t with shape = nu degrees of freedom."""

    median = 0.0
    std = 1.5

    def logpdf(self, z: Array, shape: Array) -> Array:
        return log_density(z, shape)

    def score(self, z: Array, shape: Array) -> Array:
        return -z * (shape + 1) / (shape + z * z)

    def logsf(self, z: Array, shape: Array) -> Array:
        # The tail is a power, so it does not underflow at any length.
        return np.asarray(np.log(special.stdtr(shape, -z)))

    def interval(self, low: Array, high: Array, shape: Array) -> Array:
        flip = low + high > 0
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        probability = narrow_interval(self, low, high, shape)
        wide = high - low >= NARROW
        if wide.any():
            nu = np.broadcast_to(shape, low.shape)[wide]
            probability[wide] = special.stdtr(nu, high[wide]) - special.stdtr(nu, low[wide])
        return probability

    def draw(self, rng: np.random.Generator, shape: Array, size: tuple[int, int]) -> Array:
        return rng.standard_t(np.broadcast_to(shape, size))


@dataclass(frozen=True, eq=False)
class Family:
    """A family of distributions of a length: see the module's table."""

    name: str
    kernel: Kernel
    on_log: bool
    scale_is_free: bool
    shape_is_free: bool
    shape: float
    """The constant, or where the search starts."""
    shape_bounds: tuple[float, float] = (0.0, np.inf)
    shape_on_log: bool = True
    """Whether the optimiser moves log(shape) or the shape itself."""

    @property
    def free(self) -> tuple[bool, bool, bool]:
        """Which of location, scale, shape are estimated."""
        return (True, self.scale_is_free, self.shape_is_free)

    def transform(self, x: Array) -> Array:
        """g(x)."""
        return np.log(np.maximum(x, _SMALLEST_LENGTH)) if self.on_log else x

    def standardize(self, x: Array, params: Array) -> Array:
        """z = (g(x) - location) / scale."""
        return (self.transform(x) - params[:, 0:1]) / params[:, 1:2]

    def logpdf(self, x: Array, params: Array) -> Array:
        """Log density of X in tokens."""
        inner = self.kernel.logpdf(self.standardize(x, params), params[:, 2:3]) - np.log(params[:, 1:2])
        return np.asarray(inner - np.log(x) if self.on_log else inner)

    def logsf(self, x: Array, params: Array) -> Array:
        """Log P(X > x)."""
        return self.kernel.logsf(self.standardize(x, params), params[:, 2:3])

    def cdf(self, x: Array, params: Array) -> Array:
        """P(X <= x), accurate to 1e-16."""
        return np.asarray(-np.expm1(self.logsf(x, params)))

    def cell_probability(self, x: Array, params: Array, width: float = 1.0) -> Array:
        """P(x - width/2 < X <= x + width/2): the probability of a count of x tokens."""
        low, high = (self.standardize(x + side, params) for side in (-width / 2, width / 2))
        return self.kernel.interval(low, high, params[:, 2:3])

    def draw(self, rng: np.random.Generator, params: Array, count: int) -> Array:
        """`count` random lengths for each row of `params`, not rounded."""
        z = self.kernel.draw(rng, params[:, 2:3], (len(params), count))
        y = params[:, 0:1] + params[:, 1:2] * z
        return np.exp(np.minimum(y, 700.0)) if self.on_log else y


def logt_family(nu: float | None) -> Family:
    """The log-t family with this many degrees of freedom, or with them free (None)."""
    if nu is None:
        return Family("log-t, nu free", _Student(), True, True, True, 5.0, (0.5, 200.0))
    return Family(f"log-t, nu={nu:g}", _Student(), True, True, False, nu)


LOGT: Final = logt_family(TIE_NU)
"""nu as TIE fixes it."""
LOGNORMAL: Final = Family("log-normal", _Normal(), True, True, False, 1.0)
