"""The rival families of an answer's length, all written as location, scale and shape.

A family says g(X) = location + scale * Z: g is the logarithm or the identity, Z a standard kernel. What is not free
is a constant of the family, so that one optimiser (`lengthwise.lengths.fit`) serves them all:

| family     | g        | Z                         | location, scale, shape                   |
|------------|----------|---------------------------|------------------------------------------|
| log-t      | log      | Student t                 | mu, sigma, nu (3.5, or free in 0.5..200) |
| log-normal | log      | normal                    | mu, sigma, none                          |
| Weibull    | log      | log of an exponential     | log lambda, 1/k, none                    |
| gamma      | log      | log of a mean-one gamma   | log mean, 1 (constant), k                |
| GEV        | identity | generalized extreme value | mu, sigma, xi in -0.5..2                 |

The bounds on nu and xi are part of the family: with ten samples the likelihood often rises all the way to nu = inf,
and that of the GEV is unbounded for xi < -1 (and not regular below -0.5).

Everywhere `params` has shape (n, 3), `x` has shape (n, k): row i of x belongs to row i of params.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.lengths.distributions import TIE_NU
from lengthwise.lengths.kernels import ExtremeValue, Kernel, LogExponential, LogGamma, Normal, Student

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

__all__ = ["FAMILIES", "GAMMA", "GEV", "LOGNORMAL", "LOGT", "LOGT_FREE", "WEIBULL", "Family", "logt_family"]

_SMALLEST_LENGTH: Final = 1e-9  # where a logarithm is needed of the lower edge of the cell around length 0


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
        """P(X <= x)."""
        return self.kernel.cdf(self.standardize(x, params), params[:, 2:3])

    def cell_probability(self, x: Array, params: Array, width: float = 1.0) -> Array:
        """P(x - width/2 < X <= x + width/2): the probability of a count of x tokens."""
        low = self.standardize(x - width / 2, params)
        high = self.standardize(x + width / 2, params)
        return self.kernel.interval(low, high, params[:, 2:3])

    def draw(self, rng: np.random.Generator, params: Array, count: int) -> Array:
        """`count` random lengths for each row of `params`, not rounded."""
        z = self.kernel.draw(rng, params[:, 2:3], (len(params), count))
        y = params[:, 0:1] + params[:, 1:2] * z
        return np.exp(np.minimum(y, 700.0)) if self.on_log else y


def logt_family(nu: float | None) -> Family:
    """The log-t family with this many degrees of freedom, or with them free (None)."""
    if nu is None:
        return Family("log-t, nu free", Student(), True, True, True, 5.0, (0.5, 200.0))
    return Family(f"log-t, nu={nu:g}", Student(), True, True, False, nu)


LOGT: Final = logt_family(TIE_NU)
"""nu as TIE fixes it."""
LOGT_FREE: Final = logt_family(None)
LOGNORMAL: Final = Family("log-normal", Normal(), True, True, False, 1.0)
WEIBULL: Final = Family("Weibull", LogExponential(), True, True, False, 1.0)
GAMMA: Final = Family("gamma", LogGamma(), True, False, True, 10.0, (0.01, 1e9))
GEV: Final = Family("GEV", ExtremeValue(), False, True, True, 0.05, (-0.5, 2.0), shape_on_log=False)

FAMILIES: Final = (LOGT_FREE, LOGT, LOGNORMAL, WEIBULL, GAMMA, GEV)
