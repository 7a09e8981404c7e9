"""LogT against adaptive quadrature, and by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, LogT
from tests.lengths.distributions import logts


def adaptive(prediction: LogT, low: float, power: int = 1) -> float:
    """E[min(X, cap)^power; X > low] by adaptive quadrature over u = asinh(t), piece by piece."""
    nu = prediction.nu
    constant = math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(math.pi * nu)
    start = -60.0 if low <= 0 else math.asinh((math.log(low) - prediction.mu) / prediction.sigma)
    k = (math.log(prediction.cap) - prediction.mu) / prediction.sigma
    stop = math.asinh(k)

    def grown(u: float) -> float:
        t = math.sinh(u)
        density = float(constant * (1 + t * t / nu) ** (-(nu + 1) / 2))
        return math.exp(power * (prediction.mu + prediction.sigma * t)) * density * math.cosh(u)

    pieces = np.unique(np.clip(np.append(np.arange(-60.0, 12.0, 1.0), [start, stop]), start, stop))
    inner = sum(
        integrate.quad(grown, a, b, epsabs=1e-13, epsrel=1e-11, limit=200)[0] for a, b in itertools.pairwise(pieces)
    )
    return inner + float(prediction.cap) ** power * float(special.stdtr(nu, -max(k, math.sinh(start))))


@settings(max_examples=60, deadline=None)
@given(logts())
@example(LogT(0.0, 0.01, 131_072))
@example(LogT(9.5, 0.01, 16))
@example(LogT(0.0, 2.5, 131_072))
@example(LogT(9.5, 2.5, 16))
def test_mean_cvar_and_quantile_match_adaptive_quadrature(prediction: LogT) -> None:
    mean, cvar = prediction.mean_and_cvar(0.9)
    assert mean == pytest.approx(adaptive(prediction, 0.0), rel=1e-6)
    value_at_risk = prediction.quantile(0.9)
    exact = min(prediction.cap, math.exp(prediction.mu + prediction.sigma * float(stats.t(TIE_NU).ppf(0.9))))
    assert value_at_risk == pytest.approx(exact, rel=1e-6)
    if value_at_risk < prediction.cap:
        assert cvar == pytest.approx(adaptive(prediction, value_at_risk) / 0.1, rel=1e-6)
    else:
        assert cvar == prediction.cap


@settings(max_examples=20, deadline=None)
@given(logts())
def test_std_matches_adaptive_quadrature(prediction: LogT) -> None:
    second = adaptive(prediction, 0.0, power=2)
    mean = adaptive(prediction, 0.0)
    if second - mean**2 > 1e-6 * second:  # else the reference has cancelled its own digits away
        assert prediction.std() == pytest.approx(math.sqrt(second - mean**2), rel=1e-4)


@settings(max_examples=20, deadline=None)
@given(logts(), st.floats(0.2, 3.0))
def test_mean_of_what_remains_matches_adaptive_quadrature(prediction: LogT, times_median: float) -> None:
    generated = int(times_median * math.exp(prediction.mu))
    if not 0 < generated < prediction.cap or prediction.survival(generated) < 1e-6:
        return
    rest = prediction.remaining(generated)
    reached = prediction.survival(generated)
    exact = adaptive(prediction, float(generated)) / reached - generated
    assert rest.mean() == pytest.approx(exact, rel=1e-5, abs=1e-6 * generated)


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0, 9.5),
    st.floats(0.01, 20.0),
    st.integers(16, 131_072),
    st.sampled_from([0.7, 1.0, 2.0, 8.0, 30.0, 200.0]),
)
def test_any_nu_and_any_sigma_match_adaptive_quadrature(mu: float, sigma: float, cap: int, nu: float) -> None:
    prediction = LogT(mu, sigma, cap, nu)
    assert prediction.mean() == pytest.approx(adaptive(prediction, 0.0), rel=1e-6)


def test_the_median_is_exp_mu() -> None:
    assert LogT(math.log(300), 0.8, 8192).quantile(0.5) == pytest.approx(300)


def test_a_heavy_tail_costs_more_than_its_median_says() -> None:
    certain, heavy = LogT(math.log(300), 0.1, 8192), LogT(math.log(300), 1.5, 8192)
    assert heavy.mean() > 2 * certain.mean()
    assert heavy.cvar(0.9) > 5 * certain.cvar(0.9)


def test_the_longer_it_has_run_the_longer_it_is_expected_to() -> None:
    prediction = LogT(math.log(300), 0.8, 100_000)
    expected = [prediction.remaining(g).mean() for g in (600, 1_200, 2_400, 4_800)]
    assert expected == sorted(expected)


@pytest.mark.parametrize(
    ("mu", "sigma", "cap", "nu", "says"),
    [
        (math.nan, 1, 100, 3.5, "mu is nan"),
        (900, 1, 100, 3.5, "log of the median"),
        (5, 0, 100, 3.5, "use Point"),
        (5, -1, 100, 3.5, "sigma is -1"),
        (5, 1, 0, 3.5, "the cap is 0"),
        (5, 1, 10.5, 3.5, "whole number"),
        (5, 1, 100, 0, "nu is 0"),
    ],
)
def test_impossible_parameters_are_refused(mu: float, sigma: float, cap: int, nu: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        LogT(mu, sigma, cap, nu)
