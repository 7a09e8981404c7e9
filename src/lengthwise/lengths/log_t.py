"""The log-t, every formula once: X = exp(mu + sigma * T), T Student-t with nu degrees of freedom, capped.

From the top: T itself; mean and CVaR of one prediction (`mean_and_cvar`) and of thousands (`TailTable`); survival and
expected rest for compiled hosts (`survival`, `expected_rest`); the remaining length at an age and its Gittins rank from
tables (`remaining_tables`); and T beyond a bound, for estimates from censored lengths (`beyond`).

No function needs Numba. Those whose arguments are Any are also compiled, by `lengthwise.compiled`: Python and compiled
code run the same source, with arrays in place of numbers where their docstring says so. Functions that are compiled
read the constants and tables of this module, or a flat table through `read`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage, special

Array = NDArray[np.float64]

TIE_NU: Final = 3.5
"""Degrees of freedom of the log-t, as TIE (arXiv 2604.00499) fixes them."""

OUTLIVED_BELOW: Final = 1e-9
"""A prediction whose survival is below this is outlived: the answer is longer than the prediction allows for."""


# T itself


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


def log_density(t: ArrayLike, nu: ArrayLike) -> Array:
    """Return the log density of T."""
    t, nu = np.asarray(t, np.float64), np.asarray(nu, np.float64)
    constant = special.gammaln(0.5 * (nu + 1)) - special.gammaln(0.5 * nu) - 0.5 * np.log(np.pi * nu)
    return np.asarray(constant - 0.5 * (nu + 1) * np.log1p(t * t / nu))


@lru_cache(maxsize=64)
def density_constant(nu: float) -> float:
    """Return c such that c * cosh(w)^-nu is the density in w, and c/sqrt(nu) * (1+t^2/nu)^-(nu+1)/2 in t."""
    return math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(math.pi)


# Integrals of exp(sigma * T), by Gauss-Legendre panels: no sampling, no adaptivity.
#
# With t = sqrt(nu) * sinh(w) the density becomes c * cosh(w)^-nu, so that a tail over ten decades of t is a dozen units
# of w, and panels of half a unit make eight nodes each worth ten digits.

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


def _panel_width(nu: float) -> float:
    return min(0.5, 1.0 / math.sqrt(nu))  # cosh(w)^-nu is a bell of width 1/sqrt(nu)


def _reach(log_mass: float, nu: float) -> float:
    """Return the w beyond which about exp(-log_mass) is left: cosh(w)^-nu = exp(-log_mass)."""
    return math.acosh(math.exp(min(log_mass / nu, 300.0)))


def nodes_between(low: float, high: float, sigma: float, nu: float) -> tuple[Array, Array]:
    """Return nodes t in (low, high) and weights that integrate exp(sigma * t) against the density of T.

    The panels are narrow enough for the growth of exp(sigma * t), and start where it begins to matter.
    """
    root = math.sqrt(nu)
    matters = min(high, 0.0) + _MIN_LOG / sigma
    start = max(math.asinh(max(low, matters) / root), -_reach(_LOG_MASS_BELOW, nu))
    stop = math.asinh(high / root)
    if stop <= start:
        return np.empty(0), np.empty(0)
    growth = sigma * math.sqrt(nu + high * high)
    panels = math.ceil((stop - start) * max(1.0 / _panel_width(nu), growth / 6.0))
    edges = np.linspace(start, stop, panels + 1)
    w = (edges[:-1, None] + np.diff(edges)[:, None] * _X01).ravel()
    weights = (np.diff(edges)[:, None] * _W01).ravel() * density_constant(nu) * np.cosh(w) ** -nu
    return root * np.sinh(w), weights


class TailRule(NamedTuple):
    """Fixed panels with an edge at the alpha-quantile: one prediction's mean and CVaR in one pass."""

    nu: float
    alpha: float
    density: float  # of T at 0
    first: float  # edge, in w
    width: float  # of a panel, in w
    t: Array  # nodes, ascending
    weights: Array
    mass_above: Array  # of each edge
    first_tail_node: int


@lru_cache(maxsize=64)
def tail_rule(nu: float, alpha: float) -> TailRule:
    """Return the panels for one nu and one level; built once."""
    root = math.sqrt(nu)
    at_quantile = math.asinh(isf(1.0 - alpha, nu) / root)
    width = _panel_width(nu)
    below = math.ceil((at_quantile + _reach(_LOG_MASS_BELOW, nu)) / width)
    above = math.ceil((_reach(_LOG_MASS_ABOVE, nu) - at_quantile) / width)
    edges = at_quantile + width * np.arange(-below, above + 1)
    w = (edges[:-1, None] + width * _X01).ravel()
    weights = np.tile(width * _W01, below + above) * density_constant(nu) * np.cosh(w) ** -nu
    return TailRule(
        nu=nu,
        alpha=alpha,
        density=density_constant(nu) / root,
        first=float(edges[0]),
        width=width,
        t=root * np.sinh(w),
        weights=weights,
        mass_above=np.append(np.cumsum(weights.reshape(-1, _NODES).sum(axis=1)[::-1])[::-1], 0.0),
        first_tail_node=below * _NODES,
    )


def integrate_tail(
    mu: Any,
    sigma: Any,
    cap: Any,
    nu: Any,
    alpha: Any,
    density: Any,
    first: Any,
    width: Any,
    t: Any,
    weights: Any,
    mass_above: Any,
    first_tail_node: Any,
) -> Any:
    """Return E[min(X, cap)] and CVaR_alpha[min(X, cap)]; what follows the cap is a `TailRule`.

    Both are an integral of exp(mu + sigma t) up to k = (ln cap - mu)/sigma plus cap * P(T > k).
    """
    root, k = math.sqrt(nu), (math.log(cap) - mu) / sigma
    panel = math.floor((math.asinh(k / root) - first) / width)
    if panel < 0:
        return cap, cap
    end, mass, grown = len(t), 0.0, 0.0  # mass and growth of the panel's part below k
    if panel + 1 < len(mass_above):
        end = panel * _NODES
        low = root * math.sinh(first + panel * width)
        part_width, power = k - low, -0.5 * (nu + 1.0)
        for x, weight in _UNIT_NODES:
            at = low + part_width * x
            part = weight * (1.0 + at * at / nu) ** power
            mass += part
            grown += part * math.exp(sigma * at)
        grown *= part_width * density
        mass = float(mass_above[panel]) - mass * part_width * density
    median, at_cap = math.exp(mu), cap * mass
    negligible = (math.asinh((min(k, 0.0) + _MIN_LOG / sigma) / root) - first) / width
    start = min(max(math.floor(negligible), 0) * _NODES, end)
    cut = min(max(first_tail_node, start), end)
    growth = np.exp(sigma * t[start:end])
    body = float(np.dot(growth[: cut - start], weights[start:cut]))
    tail = float(np.dot(growth[cut - start :], weights[cut:end])) + grown
    mean = median * (body + tail) + at_cap
    if end < first_tail_node:
        return mean, cap
    return mean, (median * tail + at_cap) / (1.0 - alpha)


def mean_and_cvar(mu: float, sigma: float, cap: float, nu: float, alpha: float) -> tuple[float, float] | None:
    """Return both from the fixed panels, or None where exp(sigma t) is too steep for them."""
    if sigma > STEEPEST_SIGMA or not 0.0 < alpha < 1.0:
        return None
    mean, cvar = integrate_tail(mu, sigma, float(cap), *tail_rule(nu, alpha))
    return float(mean), float(cvar)


# Mean and CVaR of thousands of predictions, from one table per (nu, alpha) by cubic splines.
#
# Both, divided by the cap, depend on two numbers only: sigma and k = (ln cap - mu)/sigma. In v = asinh(k) + sigma*k and
# ln sigma their logarithms are smooth at every scale, the bend around the median (width 1 in k) and the one where the
# tail takes over (width 1 in sigma*k) alike, so a cubic spline on a grid of steps 0.1 is good to 1e-4 for nu from 1 to
# 100, and to 1e-5 at 3.5. For the CVaR k counts from the alpha-quantile, where it bends.

_SPLINE_STEP: Final = 0.1
_SPLINE_MARGIN: Final = 12  # grid steps beyond the range, so that the spline's ends do not show
_LOG_SIGMA: Final = (math.log(0.005), math.log(4.0))
_V: Final = (-23.0, 25.0)
_SPLINE_NODES: Final = 64


@dataclass(frozen=True)
class TailTable:
    """Spline coefficients of ln(mean/cap) and ln(CVaR/cap) over (v, ln sigma)."""

    quantile: float  # of T at alpha
    log_mean: Array
    log_cvar: Array

    def covers(self, sigma: Array, k: Array) -> NDArray[np.bool_]:
        """Return which rows the table covers."""
        low, high = (math.exp(end) for end in _LOG_SIGMA)
        lowest, highest = min(0.0, self.quantile), max(0.0, self.quantile)
        above = _v(sigma, k - highest) > _V[0]
        return (sigma > low) & (sigma < high) & above & (_v(sigma, k - lowest) < _V[1])

    def over_cap(self, sigma: Array, k: Array) -> tuple[Array, Array]:
        """Return mean/cap and CVaR/cap."""
        at_sigma = (np.log(sigma) - _LOG_SIGMA[0]) / _SPLINE_STEP + _SPLINE_MARGIN
        at_mean = (_v(sigma, k) - _V[0]) / _SPLINE_STEP + _SPLINE_MARGIN
        at_cvar = np.maximum(_v(sigma, k - self.quantile) / _SPLINE_STEP, 0.0)
        return _read_spline(self.log_mean, at_mean, at_sigma), _read_spline(self.log_cvar, at_cvar, at_sigma)


def _v(sigma: Array, k: Array) -> Array:
    return np.arcsinh(k) + sigma * k


def _read_spline(coefficients: Array, at_v: Array, at_sigma: Array) -> Array:
    where = np.stack((at_v, at_sigma))
    logs = ndimage.map_coordinates(coefficients, where, order=3, mode="mirror", prefilter=False)
    return np.exp(logs, out=logs)


@lru_cache(maxsize=16)
def tail_table(nu: float, alpha: float) -> TailTable:
    """Build the table for one nu and one level, once."""
    quantile, margin = isf(1.0 - alpha, nu), _SPLINE_STEP * _SPLINE_MARGIN
    steps = round((_LOG_SIGMA[1] - _LOG_SIGMA[0]) / _SPLINE_STEP) + 2 * _SPLINE_MARGIN
    sigma = np.exp(_LOG_SIGMA[0] + _SPLINE_STEP * (np.arange(steps + 1) - _SPLINE_MARGIN))
    v_mean = np.arange(_V[0] - margin, _V[1] + margin, _SPLINE_STEP, dtype=np.float64)
    v_cvar = np.arange(0.0, _V[1] + margin, _SPLINE_STEP, dtype=np.float64)
    log_mean = np.log(_mean_over_cap(*_spline_grid(v_mean, sigma), nu))
    above, sigmas = _spline_grid(v_cvar, sigma)
    log_cvar = np.log(_cvar_over_cap(quantile + above, sigmas, nu, alpha, quantile))
    filtered = [ndimage.spline_filter(a, order=3, mode="mirror") for a in (log_mean, log_cvar)]
    return TailTable(quantile, *filtered)


def _spline_grid(v: Array, sigma: Array) -> tuple[Array, Array]:
    """Return k and sigma on the grid; v is inverted by Newton's method, which its slope makes safe."""
    target = np.repeat(v[:, None], len(sigma), axis=1)
    sigmas = np.broadcast_to(sigma, target.shape)
    # Both terms grow with k, so |k| is at most what either alone would need.
    k = np.copysign(np.minimum(np.sinh(np.abs(target)), np.abs(target) / sigmas), target)
    for _ in range(50):
        k -= (_v(sigmas, k) - target) / (1.0 / np.sqrt(1.0 + k * k) + sigmas)
    return k, sigmas


def _growth_integral(low: Array, k: Array, sigma: Array, nu: float) -> Array:
    """Integral of exp(sigma (t - k)) over the density of T from `low` to k, element by element."""
    x, weights = np.polynomial.legendre.leggauss(_SPLINE_NODES)
    root = math.sqrt(nu)
    start = np.arcsinh(low / root)
    stop = np.minimum(np.arcsinh(k / root), _reach(_LOG_MASS_ABOVE, nu))
    half = np.maximum(stop - start, 0.0) / 2.0
    total = np.zeros_like(k)
    for node, weight in zip(x, weights, strict=True):
        w = (start + stop) / 2.0 + half * node
        total += weight * np.exp(sigma * (root * np.sinh(w) - k)) * np.cosh(w) ** -nu
    return np.asarray(total * half * density_constant(nu))


def _mean_over_cap(k: Array, sigma: Array, nu: float) -> Array:
    low = np.minimum(k, 0.0) + _MIN_LOG / sigma
    low = np.maximum(low, -math.sqrt(nu) * math.sinh(_reach(_LOG_MASS_BELOW, nu)))
    return _growth_integral(np.minimum(low, k), k, sigma, nu) + special.stdtr(nu, -k)


def _cvar_over_cap(k: Array, sigma: Array, nu: float, alpha: float, quantile: float) -> Array:
    tail = _growth_integral(np.full_like(k, quantile), k, sigma, nu) + special.stdtr(nu, -k)
    return tail / (1.0 - alpha)


# Survival and expected rest at nu 3.5, on numbers: for hosts that update one prediction per event.

_CURVE_REACH: Final = 7.0  # asinh t of the curve's ends
_CURVE_STEP: Final = 0.02
_CURVE: Final = special.stdtr(TIE_NU, -np.sinh(np.arange(-_CURVE_REACH, _CURVE_REACH, _CURVE_STEP)))
_CURVE_END: Final = len(_CURVE) - 1.001
_NODES_16, _WEIGHTS_16 = np.polynomial.legendre.leggauss(16)


def survival(t: Any) -> Any:
    """Return P(T > t), from a table at equal steps of asinh t; t may be an array."""
    at = np.minimum(np.maximum((np.arcsinh(t) + _CURVE_REACH) / _CURVE_STEP, 0.0), _CURVE_END)
    cell = np.int64(at)
    return _CURVE[cell] + (at - cell) * (_CURVE[cell + 1] - _CURVE[cell])


def integrate_survival(mu: Any, sigma: Any, start: Any, end: Any) -> Any:
    """Return the integral of the survival over lengths from e^start to e^end, by Gauss-Legendre in the logarithm."""
    total = 0.0
    if end > start:
        for number in range(len(_NODES_16)):
            x = 0.5 * ((end - start) * _NODES_16[number] + end + start)
            total += _WEIGHTS_16[number] * survival((x - mu) / sigma) * math.exp(x)
    return total * 0.5 * (end - start)


def expected_rest(mu: Any, sigma: Any, cap: Any, age: Any) -> Any:
    """Return E[min(X, cap) - age | X > age], the integral of the survival from `age` to `cap`; within 0.5 %.

    Sigma 0 stands for a certain length that is outlived at `age`.
    """
    if age >= cap:
        return 0.0
    reached = survival((math.log(age) - mu) / sigma) if sigma > 0.0 else 0.0
    if reached < OUTLIVED_BELOW:  # the contract of `remaining`: a log-t with median `age` and sigma 1
        start, end, mu, sigma, reached = -8.0, math.log(cap - age), math.log(age), 1.0, 1.0
    else:
        start, end = math.log(age), math.log(cap)
    middle = min(max(mu, start), end)  # the survival is steepest there: one panel on each side
    total = integrate_survival(mu, sigma, start, middle) + integrate_survival(mu, sigma, middle, end)
    return total / reached


# The remaining length at an age and its Gittins rank, for whole queues: within 3 % of the definition, at nu 3.5.
#
# With x = exp(mu + sigma t), the survival S(t) is one curve for all predictions. Between the nodes of a grid in asinh t
# it is taken as a power of x, so that its integral over any interval has a closed form; sums over whole cells are
# tabulated for a grid of sigmas, and a prediction uses the nearest sigma, at most 0.6 % off. Lengths, integrals and
# ranks are in medians, exp(mu).
#
# The tables are one flat array: by node t, survival and fall (-d ln S / dt in the cell after it); by sigma its value
# and the rank at age 0; by sigma and node the integral of S up to the node, its stretch (what a cell adds to it,
# without the growth) and ln of the rank without a cap.

_GRID_STEP: Final = 0.05  # of asinh t
_GRID_REACH: Final = math.asinh(600.0)  # beyond, S is 1 or a prediction counts as outlived
_MIN_LOG_SIGMA: Final = math.log(0.02)
_SIGMAS: Final = 448
_SIGMA_STEP: Final = (math.log(4.0) - _MIN_LOG_SIGMA) / (_SIGMAS - 1)
_GRID: Final = np.sinh(np.arange(-_GRID_REACH, _GRID_REACH, _GRID_STEP))
_GRID_NODES: Final = len(_GRID)
_LAST_NODE: Final = _GRID_NODES - 1.001
_MIN_T: Final = float(_GRID[0])
_MAX_T: Final = math.sinh(_LAST_NODE * _GRID_STEP - _GRID_REACH)
_T_OF, _SURVIVAL_OF, _FALL_OF = 0, _GRID_NODES, 2 * _GRID_NODES
_SIGMA_OF, _FRESH_OF = 3 * _GRID_NODES, 3 * _GRID_NODES + _SIGMAS
_INTEGRAL_OF: Final = 3 * _GRID_NODES + 2 * _SIGMAS
_STRETCH_OF: Final = _INTEGRAL_OF + _SIGMAS * _GRID_NODES
_LOG_RANK_OF: Final = _STRETCH_OF + _SIGMAS * _GRID_NODES
_TABLE_SIZE: Final = _LOG_RANK_OF + _SIGMAS * _GRID_NODES
_MIN_ENDED: Final = 0.1  # of the answers: what an interval of the Gittins rank must end at least
_MAX_LOG: Final = 200.0  # of sigma t: e^800 overflows

SIGMA_ONE: Final = round(-_MIN_LOG_SIGMA / _SIGMA_STEP)
"""The index of the tabulated sigma nearest to 1, that of an outlived prediction."""


def read(tables: Any, place: Any) -> Any:
    """Return an entry of the tables, or those of an array of places; compiled hosts replace it by their own access."""
    return tables[place]


def sigma_index(sigma: Any) -> Any:
    """Return the index of the nearest tabulated sigma; also for an array."""
    at = (np.log(np.maximum(sigma, 1e-9)) - _MIN_LOG_SIGMA) / _SIGMA_STEP
    return np.int64(np.minimum(np.maximum(at + 0.5, 0.0), _SIGMAS - 1.0))


def place_of(t: Any) -> Any:
    """Return the node before t and the fraction of the cell after it, as one number; also for an array."""
    return np.minimum(np.maximum((np.arcsinh(t) + _GRID_REACH) / _GRID_STEP, 0.0), _LAST_NODE)


def standard_age(tables: Any, length: Any, mu: Any, sigma: Any) -> Any:
    """Return t at a length in tokens, for the tabulated sigma of an index; also for arrays."""
    return (np.log(length) - mu) / read(tables, _SIGMA_OF + sigma)


def share_reached(tables: Any, t: Any, at: Any) -> Any:
    """Return P(T > t) for t at a place; also for arrays."""
    cell = np.int64(at)
    beyond_node = np.minimum(np.maximum(t, _MIN_T), _MAX_T) - read(tables, _T_OF + cell)
    return read(tables, _SURVIVAL_OF + cell) * np.exp(-read(tables, _FALL_OF + cell) * beyond_node)


def integral_to(tables: Any, t: Any, at: Any, sigma: Any) -> Any:
    """Return the integral of S over lengths from 0 to that of t, for t at a place; also for arrays."""
    cell = np.int64(at)
    beyond_node = np.minimum(np.maximum(t, _MIN_T), _MAX_T) - read(tables, _T_OF + cell)
    growth = (read(tables, _SIGMA_OF + sigma) - read(tables, _FALL_OF + cell)) * beyond_node
    node = sigma * _GRID_NODES + cell
    return read(tables, _INTEGRAL_OF + node) + read(tables, _STRETCH_OF + node) * np.expm1(growth)


def uncapped_rank(tables: Any, at: Any, sigma: Any) -> Any:
    """Return the Gittins rank without a cap at the age of a place; also for arrays."""
    cell = np.int64(at)
    low = read(tables, _LOG_RANK_OF + sigma * _GRID_NODES + cell)
    high = read(tables, _LOG_RANK_OF + sigma * _GRID_NODES + cell + 1)
    return np.exp(low + (at - cell) * (high - low))


def fresh_rank(tables: Any, sigma: Any) -> Any:
    """Return the Gittins rank without a cap at age 0; also for arrays."""
    return read(tables, _FRESH_OF + sigma)


def outlived_rest(tables: Any, age: Any, cap: Any, ranks: Any) -> Any:
    """Return the expected rest in tokens, or the rank, of an outlived prediction; also for arrays.

    It is a log-t with median `age` and sigma 1, capped at cap - age.
    """
    t = np.log(np.maximum(cap - age, 1.0) / age)
    mean = integral_to(tables, t, place_of(t), SIGMA_ONE)
    if ranks:
        mean = np.minimum(mean, fresh_rank(tables, SIGMA_ONE))
    return age * mean


@lru_cache(maxsize=1)
def remaining_tables() -> Array:
    """Build the tables (once, a tenth of a second)."""
    tables = np.empty(_TABLE_SIZE)
    sigma = np.exp(_MIN_LOG_SIGMA + _SIGMA_STEP * np.arange(_SIGMAS))
    reached = special.stdtr(TIE_NU, -_GRID)
    fall = np.append(-np.diff(np.log(reached)) / np.diff(_GRID), 0.0)
    length = np.exp(np.clip(sigma[:, None] * _GRID, -_MAX_LOG, _MAX_LOG))
    growth = sigma[:, None] - fall
    stretch = reached * length * sigma[:, None] / np.where(np.abs(growth) < 1e-9, 1e-9, growth)
    cells = stretch[:, :-1] * np.expm1(growth[:, :-1] * np.diff(_GRID))
    integral = np.cumsum(np.column_stack((length[:, 0], cells)), axis=1)
    tables[:_FRESH_OF] = np.concatenate((_GRID, reached, fall, sigma))
    tables[_INTEGRAL_OF:_STRETCH_OF] = integral.ravel()
    tables[_STRETCH_OF:_LOG_RANK_OF] = stretch.ravel()
    log_ranks = np.log(_uncapped_ranks(tables, reached, fall, integral))
    tables[_LOG_RANK_OF:] = log_ranks.ravel()
    tables[_FRESH_OF:_INTEGRAL_OF] = np.exp(log_ranks[:, 0])
    return tables


def _uncapped_ranks(tables: Array, reached: Array, fall: Array, integral: Array) -> Array:
    """Return, from each node, the least ratio of the integral to the share that ends, over all later ends allowed."""
    left = (1.0 - _MIN_ENDED) * reached
    ends = np.searchsorted(-reached, -left)  # the first node by which one answer in ten has ended
    usable = int(np.searchsorted(ends, _GRID_NODES))
    cell = ends[:usable] - 1
    first = _GRID[cell] + np.log(reached[cell] / left[:usable]) / fall[cell]
    at, rows = place_of(first), np.arange(_SIGMAS)
    ranks = np.empty_like(integral)
    for node in range(usable):
        start = integral[:, node]
        nearest = (integral_to(tables, first[node], at[node], rows) - start) / (_MIN_ENDED * reached[node])
        slopes = (integral[:, ends[node] :] - start[:, None]) / (reached[node] - reached[ends[node] :])
        ranks[:, node] = np.maximum(np.minimum(nearest, slopes.min(axis=1)), 1e-9)
    ranks[:, usable:] = ranks[:, usable - 1, None]
    return ranks


# T as a scale mixture of normals, at nu 3.5: the E-step of an estimate of location and scale.


def outlier_weight(t: Any) -> Any:
    """Return w = (nu+1)/(nu+t^2), the weight of an observation at t."""
    return (TIE_NU + 1.0) / (TIE_NU + t * t)


def beyond(bound: ArrayLike) -> tuple[Array, Array, Array]:
    """E[w], E[wT]/E[w] and E[wT^2] - E[wT]^2/E[w] given T > bound, for w = (nu+1)/(nu+T^2).

    w f is a t density with nu + 2 degrees of freedom, and wT f is -f', so that all three are closed.
    """
    nu, t = TIE_NU, np.asarray(bound, np.float64)
    reached = special.stdtr(nu, -t)
    density = density_constant(nu) / math.sqrt(nu) * (1 + t * t / nu) ** (-(nu + 1) / 2)
    weight = np.asarray(special.stdtr(nu + 2, -t * math.sqrt((nu + 2) / nu)) / reached, np.float64)
    first = density / reached
    return weight, first / weight, np.maximum(0.0, 1.0 + t * first - first**2 / weight)


_MIN_BOUND: Final = -12.0
_MAX_BOUND: Final = 40.0
_BOUND_STEP: Final = 0.05
_BEYOND: Final = np.stack(beyond(np.arange(_MIN_BOUND, _MAX_BOUND + 2 * _BOUND_STEP, _BOUND_STEP)))


def read_beyond(bound: Any) -> Any:
    """Return `beyond` from a table, for one bound."""
    position = (min(max(bound, _MIN_BOUND), _MAX_BOUND) - _MIN_BOUND) / _BOUND_STEP
    cell = int(position)
    share = position - cell
    weight = (1.0 - share) * _BEYOND[0, cell] + share * _BEYOND[0, cell + 1]
    mean = max(bound, (1.0 - share) * _BEYOND[1, cell] + share * _BEYOND[1, cell + 1])
    return weight, mean, (1.0 - share) * _BEYOND[2, cell] + share * _BEYOND[2, cell + 1]
