"""Maximum likelihood against scipy's, under rounding, censoring and on degenerate rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, stats

from experiments.length_families.families import FAMILIES, GAMMA, GEV, LOGT_FREE, WEIBULL
from lengthwise.errors import InputError
from lengthwise.lengths.families import LOGNORMAL, LOGT, Family
from lengthwise.lengths.fit import fit_logt, fit_rows

FINE = 0.01  # tokens: for lengths of hundreds this is a continuous quantity
TRUTHS: dict[Family, list[float]] = {
    LOGT_FREE: [5.8, 0.3, 3.0],
    LOGT: [5.8, 0.3, 3.5],
    LOGNORMAL: [5.8, 0.3, 1.0],
    WEIBULL: [5.8, 0.3, 1.0],
    GAMMA: [5.8, 1.0, 8.0],
    GEV: [300.0, 90.0, 0.2],
}
ALL = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def draw(family: Family, rows: int, samples: int, seed: int = 0) -> NDArray[np.float64]:
    params = np.tile(TRUTHS[family], (rows, 1))
    return np.maximum(family.draw(np.random.default_rng(seed), params, samples), 1.0)


def loglik(
    family: Family, params: NDArray[np.float64], lengths: NDArray[np.float64], width: float = 1.0
) -> NDArray[np.float64]:
    """Log probability of each row's samples at the given parameters."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(family.cell_probability(lengths, params, width)).sum(axis=1))


def by_scipy(family: Family, x: NDArray[np.float64]) -> list[float]:
    """Location, scale, shape of the same maximum, found by scipy.stats."""
    if family is LOGNORMAL:
        sigma, _, median = stats.lognorm.fit(x, floc=0)
        return [np.log(median), sigma, 1.0]
    if family is WEIBULL:
        k, _, scale = stats.weibull_min.fit(x, floc=0)
        return [np.log(scale), 1 / k, 1.0]
    if family is GAMMA:
        k, _, scale = stats.gamma.fit(x, floc=0)
        return [np.log(k * scale), 1.0, k]
    if family is GEV:
        c, mu, sigma = stats.genextreme.fit(x, -0.1, loc=250, scale=80)
        return [mu, sigma, -c]
    if family is LOGT:
        _, mu, sigma = stats.t.fit(np.log(x), fdf=3.5)
        return [mu, sigma, 3.5]
    nu, mu, sigma = stats.t.fit(np.log(x))
    return [mu, sigma, nu]


@ALL
def test_the_maximum_is_that_of_scipy(family: Family) -> None:
    x = draw(family, 1, 400)
    fits = fit_rows(family, x, width=FINE)
    theirs = np.array([by_scipy(family, x[0])])
    assert fits.converged[0]
    np.testing.assert_allclose(fits.params, theirs, rtol=2e-3)
    assert fits.loglik[0] >= loglik(family, theirs, x, width=FINE)[0] - 1e-6
    density = family.logpdf(x, fits.params).sum()
    assert fits.loglik[0] - 400 * np.log(FINE) == pytest.approx(density, abs=1e-4)


@ALL
@pytest.mark.parametrize("samples", [5, 10])
def test_no_row_of_few_samples_is_less_likely_at_its_optimum_than_at_the_truth(family: Family, samples: int) -> None:
    x = np.rint(draw(family, 500, samples))
    fits = fit_rows(family, x)
    truth = loglik(family, np.tile(TRUTHS[family], (500, 1)), x)
    assert np.all(fits.loglik >= truth - 1e-6)
    assert fits.converged.mean() > 0.99
    np.testing.assert_allclose(fits.loglik, loglik(family, fits.params, x), atol=1e-8)


@ALL
def test_an_optimiser_started_at_the_truth_finds_no_better_fit(family: Family) -> None:
    x = np.rint(draw(family, 6, 12, seed=3))
    fits = fit_rows(family, x)
    for row, best in zip(x, fits.loglik, strict=True):

        def loss(theta: NDArray[np.float64], row: NDArray[np.float64] = row) -> float:
            params = np.array([[theta[0], np.exp(theta[1]), theta[2] if family is GEV else np.exp(theta[2])]])
            fixed = np.array(TRUTHS[family])
            params = np.where(family.free, params, fixed)
            low, high = family.shape_bounds
            inside = family is LOGNORMAL or low <= params[0, 2] <= high
            return float(-loglik(family, params, row[None, :])[0]) if inside else np.inf

        start = np.array(TRUTHS[family])
        start = np.array([start[0], np.log(start[1]), start[2] if family is GEV else np.log(start[2])])
        with np.errstate(over="ignore", invalid="ignore"):
            found = optimize.minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9})
        assert best >= -found.fun - 1e-3


@ALL
def test_the_truth_is_recovered_when_half_of_the_samples_are_censored(family: Family) -> None:
    x = draw(family, 1, 20_000)
    cap = np.median(x)
    censored = x > cap
    fits = fit_rows(family, np.minimum(x, cap), censored=censored, width=FINE)
    truth = np.array(TRUTHS[family])
    np.testing.assert_allclose(fits.params[0, :2], truth[:2], rtol=0.06)
    if family is GAMMA:
        assert fits.params[0, 2] == pytest.approx(truth[2], rel=0.06)


def test_censored_samples_count_with_their_survival() -> None:
    x = np.array([[100.0, 150.0, 200.0]])
    censored = np.array([[False, False, True]])
    fits = fit_rows(LOGT, x, censored=censored)
    mu, sigma, nu = fits.params[0]
    student = stats.t(nu, loc=mu, scale=sigma)
    cells = [np.log(student.cdf(np.log(n + 0.5)) - student.cdf(np.log(n - 0.5))) for n in (100, 150)]
    by_hand = sum(cells) + student.logsf(np.log(200))
    assert fits.loglik[0] == pytest.approx(by_hand, rel=1e-9)


def test_absent_samples_do_not_count() -> None:
    x = np.array([[90.0, 110.0, 130.0, 9999.0], [90.0, 9999.0, 110.0, 130.0]])
    present = x < 9999
    some = fit_rows(LOGT, x, present)
    alone = fit_rows(LOGT, np.array([[90.0, 110.0, 130.0]]))
    np.testing.assert_allclose(some.params, np.repeat(alone.params, 2, axis=0), rtol=1e-9)


@ALL
def test_constant_rows_are_degenerate_and_finite(family: Family) -> None:
    x = np.array([[57.0] * 10, [1.0] * 10, [50.0, 60.0, *[55.0] * 8]])
    fits = fit_rows(family, x)
    assert fits.degenerate.tolist() == [True, True, False]
    assert np.all(np.isfinite(fits.params))
    assert np.all(np.isfinite(fits.loglik))


@ALL
def test_ties_cannot_make_a_likelihood_exceed_one(family: Family) -> None:
    nearly = np.array([[57.0] * 9 + [58.0], [57.0] * 9 + [5000.0]])
    assert np.all(fit_rows(family, nearly).loglik <= 0)


def test_a_row_without_samples_is_degenerate() -> None:
    fits = fit_rows(LOGNORMAL, np.ones((1, 3)), present=np.zeros((1, 3), bool))
    assert fits.degenerate.all()
    assert len(fit_rows(LOGNORMAL, np.ones((0, 3))).loglik) == 0


def test_progress_counts_every_row_once() -> None:
    seen: list[int] = []
    fit_rows(LOGNORMAL, np.rint(draw(LOGNORMAL, 5000, 4)), progress=seen.append)
    assert sum(seen) == 5000
    assert len(seen) > 1


def test_fit_logt_returns_a_prediction() -> None:
    x = np.rint(draw(LOGT, 1, 3000)[0])
    prediction = fit_logt(x, cap=4096)
    assert (prediction.mu, prediction.sigma) == pytest.approx((5.8, 0.3), rel=0.05)
    assert (prediction.nu, prediction.cap) == (3.5, 4096)
    free = fit_logt(x, nu=None)
    assert free.nu == pytest.approx(3.5, rel=0.3)


def test_fit_logt_corrects_for_censoring() -> None:
    x = np.rint(draw(LOGT, 1, 3000)[0])
    cut = x > 350
    uncorrected = fit_logt(np.minimum(x, 350))
    corrected = fit_logt(np.minimum(x, 350), censored=cut)
    assert abs(corrected.mu - 5.8) < 0.03 < abs(uncorrected.mu - 5.8)


@pytest.mark.parametrize("samples", [[], [0.0, 5.0], [-3.0], [float("nan")], [[1.0, 2.0]]])
def test_fit_logt_refuses_invalid_lengths(samples: list[float]) -> None:
    with pytest.raises(InputError, match="positive numbers"):
        fit_logt(samples)


def test_tables_of_different_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="same shape"):
        fit_rows(LOGT, np.ones((2, 3)), present=np.ones((2, 2), bool))
