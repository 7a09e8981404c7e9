"""The formulas of the log-t: against exact values, and compiled ones against those that Python runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from lengthwise.compiled import compiled, inlined_copies
from lengthwise.lengths import TIE_NU, LogT, log_t

*_, _expected_rest = inlined_copies(log_t.survival, log_t.integrate_survival, log_t.expected_rest)
(_survival,) = inlined_copies(log_t.survival)
(_read_beyond,) = inlined_copies(log_t.read_beyond)


@compiled
def compiled_rest(mu: float, sigma: float, cap: float, age: float) -> float:
    return float(_expected_rest(mu, sigma, cap, age))


@compiled
def compiled_beyond(bound: float) -> tuple[float, float, float]:
    weight, mean, spread = _read_beyond(bound)
    return weight, mean, spread


@given(st.floats(-40, 40), st.floats(1, 50))
def test_the_log_density_is_students(t: float, nu: float) -> None:
    assert float(log_t.log_density(t, nu)) == pytest.approx(stats.t.logpdf(t, nu), rel=1e-9)


@given(st.floats(-500, 500))
def test_the_table_of_the_survival_is_that_of_the_distribution_for_a_number_and_for_an_array(t: float) -> None:
    assert log_t.survival(t) == pytest.approx(log_t.sf(t, TIE_NU), rel=1e-3)
    assert log_t.survival(np.array([t, 0.0]))[0] == log_t.survival(t)


@given(st.floats(2, 8), st.floats(0.1, 2.0), st.integers(1, 8000), st.integers(16, 8192))
def test_the_expected_rest_is_that_of_the_distribution(mu: float, sigma: float, age: int, cap: int) -> None:
    rest = log_t.expected_rest(mu, sigma, float(cap), float(age))
    if age >= cap:
        assert rest == 0
    else:
        prediction = LogT(mu, sigma, cap)
        assume(prediction.survival(age) > 1e-7)  # close to OUTLIVED_BELOW, rounding decides which case applies
        assert rest == pytest.approx(prediction.remaining(age).mean(), rel=0.005, abs=0.1)


@given(st.floats(2, 8), st.floats(0.1, 2.0), st.integers(1, 8000), st.integers(16, 8192))
def test_the_compiled_expected_rest_is_what_python_computes(mu: float, sigma: float, age: int, cap: int) -> None:
    plain = log_t.expected_rest(mu, sigma, float(cap), float(age))
    assert compiled_rest(mu, sigma, float(cap), float(age)) == pytest.approx(plain, rel=1e-12)


@settings(max_examples=30)
@given(st.floats(-30, 30))
def test_moments_beyond_a_bound_match_numerical_integration(bound: float) -> None:
    survival = float(special.stdtr(TIE_NU, -bound))

    def moment(power: int) -> float:
        def integrand(t: float) -> float:
            return float(log_t.outlier_weight(t) * math.pow(t, power) * np.exp(log_t.log_density(t, TIE_NU)))

        parts = [(bound, 0.0), (0.0, math.inf)] if bound < 0 else [(bound, math.inf)]
        return (
            sum(float(integrate.quad(integrand, *part, limit=200, epsabs=0.0, epsrel=1e-10)[0]) for part in parts)
            / survival
        )

    weight, mean, spread = log_t.beyond(bound)
    assert float(weight) == pytest.approx(moment(0), rel=1e-5)
    assert float(mean * weight) == pytest.approx(moment(1), rel=1e-5, abs=1e-8)
    assert float(spread) == pytest.approx(moment(2) - moment(1) ** 2 / moment(0), rel=1e-3, abs=1e-6)


@given(st.floats(-12, 40))
def test_the_table_of_moments_beyond_a_bound_is_exact_to_three_digits(bound: float) -> None:
    read = log_t.read_beyond(bound)
    assert read == pytest.approx([float(value) for value in log_t.beyond(bound)], rel=1e-3, abs=1e-3)
    assert compiled_beyond(bound) == pytest.approx(read, rel=1e-12)
