"""Many log-t predictions as columns: mean, CVaR and quantiles of thousands of requests at once.

Mean and CVaR come from `log_t.TailTable`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lengthwise.errors import InputError
from lengthwise.lengths import log_t
from lengthwise.lengths.distributions import LogT, check_probability
from lengthwise.lengths.log_t import TIE_NU


@dataclass(frozen=True, eq=False)
class LogTColumns:
    """Predictions X_i = min(exp(mu_i + sigma_i * T), cap_i) with one nu; [i] is a LogT.

    Mean and CVaR come from a spline table good to 1e-4 (a single LogT is exact to 1e-10), except outside
    sigma 0.005 to 4 and caps e^20 from the median, where each prediction is integrated separately.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} predictions)"

    def __getitem__(self, index: int) -> LogT:
        return LogT(float(self.mu[index]), float(self.sigma[index]), int(self.cap[index]), self.nu)

    def mean(self) -> NDArray[np.float64]:
        """Return each prediction's expected length."""
        return self.mean_and_cvar()[0]

    def survival(self, tokens: ArrayLike) -> NDArray[np.float64]:
        """Return P(length > tokens) as (n, k); `tokens` are (k,), the same for all predictions, or (n, k)."""
        length = np.asarray(tokens, np.float64)
        standard = (np.log(np.maximum(length, 1e-9)) - self.mu[:, None]) / self.sigma[:, None]
        above = np.where(length > 0.0, special.stdtr(self.nu, -standard), 1.0)
        return np.where(length < self.cap[:, None], above, 0.0)

    def quantile(self, q: float) -> NDArray[np.float64]:
        """Return the length that each answer does not exceed with probability q."""
        check_probability(q, "the quantile's level")
        return np.asarray(np.minimum(np.exp(self.mu + self.sigma * log_t.isf(1.0 - q, self.nu)), self.cap))

    def mean_and_cvar(self, alpha: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and CVaR in one pass over the table."""
        check_probability(alpha, "the CVaR's level")
        if not 0.0 < alpha < 1.0:
            return self._one_by_one(np.arange(len(self)), alpha)
        table = log_t.tail_table(self.nu, alpha)
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

    def _one_by_one(self, rows: NDArray[np.intp], alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        both = np.array([self[int(row)].mean_and_cvar(alpha) for row in rows]).reshape(-1, 2)
        return both[:, 0], both[:, 1]
