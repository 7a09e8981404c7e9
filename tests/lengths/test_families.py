"""Families against scipy.stats, and kernels against their own derivatives."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from experiments.length_families.families import FAMILIES, GAMMA, GEV, WEIBULL
from lengthwise.lengths.families import LOGNORMAL, LOGT, Family, logt_family

X = np.array([[3.0, 40.0, 333.0, 2500.0, 14_000.0]])
CASES: list[tuple[Family, list[float], object]] = [
    (LOGNORMAL, [5.8, 0.5, 1.0], stats.lognorm(0.5, scale=np.exp(5.8))),
    (WEIBULL, [5.8, 0.5, 1.0], stats.weibull_min(2.0, scale=np.exp(5.8))),
    (GAMMA, [5.8, 1.0, 2.5], stats.gamma(2.5, scale=np.exp(5.8) / 2.5)),
    (GEV, [300.0, 100.0, 0.3], stats.genextreme(-0.3, loc=300, scale=100)),
    (GEV, [300.0, 100.0, 0.0], stats.gumbel_r(loc=300, scale=100)),
    (GEV, [20_000.0, 9000.0, -0.3], stats.genextreme(0.3, loc=20_000, scale=9000)),
]


@pytest.mark.parametrize(("family", "params", "scipy"), CASES)
def test_a_family_has_the_density_cdf_and_survival_of_its_scipy_namesake(
    family: Family, params: list[float], scipy: stats.rv_continuous
) -> None:
    at = np.array([params])
    np.testing.assert_allclose(family.cdf(X, at), scipy.cdf(X), rtol=1e-9, atol=1e-15)
    logpdf = np.broadcast_to(scipy.logpdf(X), X.shape)
    seen = np.isfinite(logpdf) & (logpdf > -600)
    np.testing.assert_allclose(family.logpdf(X, at)[seen], logpdf[seen], rtol=1e-9)
    logsf = scipy.logsf(X)
    seen = np.isfinite(logsf) & (logsf > -600)
    np.testing.assert_allclose(family.logsf(X, at)[seen], logsf[seen], rtol=1e-9, atol=1e-12)


def test_log_t_is_student_on_the_logarithm() -> None:
    at = np.array([[5.8, 0.3, 3.5]])
    student = stats.t(3.5, loc=5.8, scale=0.3)
    np.testing.assert_allclose(LOGT.cdf(X, at), student.cdf(np.log(X)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(LOGT.logpdf(X, at), student.logpdf(np.log(X)) - np.log(X), rtol=1e-12)


def test_the_tail_of_a_gamma_does_not_underflow() -> None:
    far = np.array([[50.0, 2000.0, 20_000.0]])
    logsf = GAMMA.logsf(far, np.array([[np.log(10.0), 1.0, 4.0]]))[0]
    expected = [stats.gamma(4, scale=2.5).logsf(50.0)]
    expected += [3 * np.log(x / 2.5) - x / 2.5 - np.log(6.0) for x in (2000.0, 20_000.0)]
    np.testing.assert_allclose(logsf, expected, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("shape", [0.6, 1.7])
def test_scores_are_derivatives_and_intervals_are_integrals(family: Family, shape: float) -> None:
    kernel = family.kernel
    z = np.linspace(-0.5, 2.5, 7)[None, :]
    nu = np.array([[shape]])
    h = 1e-6
    slope = (kernel.logpdf(z + h, nu) - kernel.logpdf(z - h, nu)) / (2 * h)
    np.testing.assert_allclose(kernel.score(z, nu), slope, rtol=1e-5, atol=1e-6)

    def density(t: float) -> float:
        return float(np.exp(kernel.logpdf(np.array([[t]]), nu))[0, 0])

    for low, high in ((-0.4, -0.39), (0.1, 0.25), (-0.3, 2.0), (1.5, 1.501)):
        area = integrate.quad(density, low, high, epsabs=0, epsrel=1e-10)[0]
        found = kernel.interval(np.array([[low]]), np.array([[high]]), nu)[0, 0]
        assert found == pytest.approx(area, rel=1e-7)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_probabilities_of_all_counts_sum_to_one(family: Family) -> None:
    params = np.array([[40.0, 8.0, 0.1]]) if family is GEV else np.array([[3.5, 0.3, 4.0]])
    if family is GAMMA:
        params[0, 1] = 1.0
    counts: NDArray[np.float64] = np.arange(1, 20_000, dtype=np.float64)[None, :]
    shorter, longer = family.cdf(np.array([[0.5]]), params), np.exp(family.logsf(np.array([[19_999.5]]), params))
    total = family.cell_probability(counts, params).sum() + shorter[0, 0] + longer[0, 0]
    assert total == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_draws_follow_the_family(family: Family) -> None:
    params = np.array([[40.0, 8.0, 0.1]]) if family is GEV else np.array([[3.5, 0.3, 4.0]])
    if family is GAMMA:
        params[0, 1] = 1.0
    drawn = family.draw(np.random.default_rng(1), params, 4000)
    assert stats.kstest(family.cdf(drawn, params)[0], "uniform").pvalue > 0.01


def test_a_log_t_with_many_degrees_of_freedom_is_a_log_normal() -> None:
    at = np.array([[5.8, 0.3, 1e7]])
    np.testing.assert_allclose(logt_family(1e7).cdf(X, at), LOGNORMAL.cdf(X, at), atol=1e-7)
