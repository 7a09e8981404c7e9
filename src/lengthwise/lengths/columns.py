"""Many log-t predictions as columns: what a scheduler asks of a thousand waiting requests at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import student, tables
from lengthwise.lengths.contract import check_probability
from lengthwise.lengths.distributions import TIE_NU, BaseDistribution, LogT


@dataclass(frozen=True, eq=False)
class LogTColumns:
    """Predictions X_i = min(exp(mu_i + sigma_i * T), cap_i) with one nu; [i] is a LogT.

    Mean and CVaR come from a spline table good to 1e-4 (a single LogT is exact to 1e-10), except outside
    sigma 0.005 to 4 and caps e^20 from the median, where each prediction is integrated by itself.
    """

    mu: NDArray[np.float64]
    sigma: NDArray[np.float64]
    cap: NDArray[np.float64]
    nu: float = TIE_NU

    @classmethod
    def of(cls, mu: ArrayLike, sigma: ArrayLike, cap: ArrayLike, nu: float = TIE_NU) -> LogTColumns:
        """Check and broadcast three columns (a single cap serves all)."""
        mu_, sigma_, cap_ = np.broadcast_arrays(
            np.asarray(mu, np.float64), np.asarray(sigma, np.float64), np.asarray(cap, np.float64)
        )
        bad = ~(np.isfinite(mu_) & np.isfinite(sigma_) & (sigma_ > 0) & (cap_ >= 1))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"mu {mu_.flat[row]}, sigma {sigma_.flat[row]}, cap {cap_.flat[row]}",
                row=row + 1,
                hint="give a finite mu, a sigma above 0 and a cap of at least 1",
            )
        return cls(mu_.ravel(), sigma_.ravel(), cap_.ravel(), nu)

    def __len__(self) -> int:
        return len(self.mu)

    def __getitem__(self, index: int) -> LogT:
        return LogT(float(self.mu[index]), float(self.sigma[index]), int(self.cap[index]), self.nu)

    def mean(self) -> NDArray[np.float64]:
        """Return each prediction's expected length."""
        return self.mean_and_cvar()[0]

    def cvar(self, alpha: float = 0.9) -> NDArray[np.float64]:
        """Return the mean of each prediction's worst 1 - alpha."""
        return self.mean_and_cvar(alpha)[1]

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the length that each prediction stays within with probability q."""
        check_probability(q, "the quantile's level")
        return np.asarray(np.minimum(np.exp(self.mu + self.sigma * student.isf(1.0 - q, self.nu)), self.cap))

    def mean_and_cvar(self, alpha: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return both in one pass over the table."""
        check_probability(alpha, "the CVaR's level")
        if not 0.0 < alpha < 1.0:
            return self._one_by_one(np.arange(len(self)), alpha)
        table = tables.tail_table(self.nu, alpha)
        k = (np.log(self.cap) - self.mu) / self.sigma
        covered = table.covers(self.sigma, k)
        if covered.all():
            mean, cvar = table.over_cap(self.sigma, k)
            return mean * self.cap, cvar * self.cap
        mean, cvar = np.empty(len(self)), np.empty(len(self))
        inside = table.over_cap(self.sigma[covered], k[covered])
        mean[covered], cvar[covered] = inside[0] * self.cap[covered], inside[1] * self.cap[covered]
        mean[~covered], cvar[~covered] = self._one_by_one(np.flatnonzero(~covered), alpha)
        return mean, cvar

    def tie(self, beta: float | NDArray[np.float64], alpha: float = 0.9) -> NDArray[np.float64]:
        """Return TIE's score, mean + beta * CVaR_alpha, of each prediction."""
        mean, cvar = self.mean_and_cvar(alpha)
        return mean + beta * cvar

    def _one_by_one(self, rows: NDArray[np.intp], alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        both = np.array([self[int(row)].mean_and_cvar(alpha) for row in rows]).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def tail_inflated_expectation(prediction: BaseDistribution, beta: float, alpha: float = 0.9) -> float:
    """TIE's score of one prediction: E[X] + beta * CVaR_alpha[X] (arXiv 2604.00499), in tokens."""
    mean, cvar = prediction.mean_and_cvar(alpha)
    return mean + beta * cvar
