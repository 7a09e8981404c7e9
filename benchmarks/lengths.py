"""Accuracy and speed of length distributions: `python -m benchmarks.lengths`.

Accuracy against adaptive quadrature over mu in [0, 9.5], sigma in [0.01, 2.5], cap in [16, 131072], the
corners of that box included. Speed in CPU time (process_time), the fastest of several rounds.
"""

from __future__ import annotations

import itertools
import math
import platform

import numpy as np
from scipy import integrate, optimize, special

from benchmarks import cpu_microseconds
from lengthwise.lengths import TIE_NU, LogT, LogTColumns

MU, SIGMA, CAP = (0.0, 9.5), (0.01, 2.5), (16, 131_072)


def density(t: float) -> float:
    """Student's t with nu = 3.5."""
    constant = math.gamma((TIE_NU + 1) / 2) / math.gamma(TIE_NU / 2) / math.sqrt(math.pi * TIE_NU)
    return float(constant * (1 + t * t / TIE_NU) ** (-(TIE_NU + 1) / 2))


def t_at_risk(level: float) -> float:
    """Return the quantile of T by root-finding on its adaptively integrated density."""
    return float(
        optimize.brentq(lambda t: integrate.quad(density, t, math.inf, epsrel=1e-12)[0] - 1 + level, 0, 50, xtol=1e-14)
    )


def adaptive(prediction: LogT, low: float) -> float:
    """E[min(X, cap); T > low] by SciPy's adaptive quadrature in u = asinh(t), unit by unit."""
    k = (math.log(prediction.cap) - prediction.mu) / prediction.sigma

    def grown(u: float) -> float:
        t = math.sinh(u)
        return math.exp(prediction.mu + prediction.sigma * t) * density(t) * math.cosh(u)

    start, stop = math.asinh(low), math.asinh(k)
    pieces = np.unique(np.clip(np.append(np.arange(-30.0, 12.0), [start, stop]), start, stop))
    inner = sum(integrate.quad(grown, a, b, epsabs=1e-14, epsrel=1e-12)[0] for a, b in itertools.pairwise(pieces))
    return float(inner + prediction.cap * special.stdtr(TIE_NU, -max(k, low)))


def box(draws: int, rng: np.random.Generator) -> LogTColumns:
    """Corners of the box and random predictions inside it, log-uniform in sigma and cap."""
    corners = np.array(list(itertools.product(MU, SIGMA, CAP)))
    sigma = np.exp(rng.uniform(math.log(SIGMA[0]), math.log(SIGMA[1]), draws))
    cap = np.floor(np.exp(rng.uniform(math.log(CAP[0]), math.log(CAP[1]), draws)))
    inside = np.column_stack((rng.uniform(*MU, draws), sigma, cap))
    return LogTColumns.of(*np.vstack((corners, inside)).T)


def accuracy(draws: int = 1_000) -> dict[str, float]:
    """Return the largest relative errors of single predictions and of columns."""
    many = box(draws, np.random.default_rng(1))
    at_risk = t_at_risk(0.9)
    exact = np.empty((len(many), 3))
    single = np.empty((len(many), 3))
    for i in range(len(many)):
        prediction = many[i]
        risk = min(prediction.cap, math.exp(prediction.mu + prediction.sigma * at_risk))
        tail = adaptive(prediction, at_risk) / 0.1 if risk < prediction.cap else prediction.cap
        exact[i] = adaptive(prediction, math.sinh(-30.0)), tail, risk
        single[i] = *prediction.mean_and_cvar(0.9), prediction.quantile(0.9)
    columns = np.column_stack((*many.mean_and_cvar(0.9), many.quantile(0.9)))
    worst = {
        "one": np.abs(single / exact - 1).max(axis=0),
        "columns": np.abs(columns / exact - 1).max(axis=0),
    }
    return {
        f"{kind} {name}": float(error)
        for kind, errors in worst.items()
        for name, error in zip(("mean", "cvar", "quantile"), errors, strict=True)
    }


def speed(count: int = 1_000_000) -> dict[str, float]:
    """CPU time of one prediction's mean and CVaR, and predictions per CPU second as columns."""
    columns = box(2_000, np.random.default_rng(2))
    predictions = [columns[i] for i in range(len(columns))]
    one = cpu_microseconds(lambda: [prediction.mean_and_cvar(0.9) for prediction in predictions]) / len(predictions)
    many = box(count, np.random.default_rng(3))
    both = cpu_microseconds(lambda: many.mean_and_cvar(0.9))
    return {
        "one prediction, mean and cvar (us)": one,
        "columns, mean and cvar (predictions/s)": 1e6 * len(many) / both,
    }


def main() -> None:
    machine = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"
    errors, times = accuracy(), speed()
    print(f"Length distributions (log-t, nu {TIE_NU}; {machine})")
    for name, error in errors.items():
        print(f"  {name + ', largest relative error':<44} {error:.1e}")
    for name, value in times.items():
        print(f"  {name:<44} {value:,.1f}")


if __name__ == "__main__":
    main()
