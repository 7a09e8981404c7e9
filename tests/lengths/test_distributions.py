"""Laws of every length distribution, and properties of each family."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from lengthwise.errors import InputError
from lengthwise.lengths import (
    OUTLIVED_BELOW,
    TIE_NU,
    After,
    BaseDistribution,
    Histogram,
    LengthDistribution,
    LogT,
    Point,
)
from tests.lengths.strategies import afters, histograms, logts, points, predictions

shares = st.floats(0.001, 0.999)


@given(predictions())
def test_every_family_keeps_the_contract(prediction: LengthDistribution) -> None:
    assert isinstance(prediction, LengthDistribution)
    assert isinstance(prediction.remaining(1), LengthDistribution)


@given(predictions(), st.floats(0, 20_000), st.floats(0, 20_000))
def test_survival_falls_from_at_most_one_to_zero_at_the_cap(prediction: LengthDistribution, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 1.0 >= prediction.survival(low) >= prediction.survival(high) >= 0.0
    assert prediction.survival(prediction.cap) == 0.0


@given(predictions(), shares)
def test_quantile_inverts_survival(prediction: LengthDistribution, q: float) -> None:
    length = prediction.quantile(q)
    assert 0.0 <= length <= prediction.cap
    assert prediction.survival(length) <= 1.0 - q + 1e-9
    just_below = length * (1.0 - 1e-9) - 1e-9
    if just_below > 0:
        assert prediction.survival(just_below) >= 1.0 - q - 1e-6


@given(predictions(), shares, shares)
def test_quantiles_are_monotone(prediction: LengthDistribution, p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert prediction.quantile(low) <= prediction.quantile(high) * (1 + 1e-12)


@given(predictions(), shares)
def test_cvar_lies_between_the_quantile_or_mean_and_the_cap(prediction: LengthDistribution, alpha: float) -> None:
    cvar = prediction.cvar(alpha)
    slack = 1e-8 * prediction.cap
    assert cvar >= prediction.quantile(alpha) - slack
    assert cvar >= prediction.mean() - slack
    assert cvar <= prediction.cap + slack


@given(predictions())
def test_cvar_at_zero_is_the_mean_and_at_one_the_longest(prediction: LengthDistribution) -> None:
    assert prediction.cvar(0.0) == pytest.approx(prediction.mean(), rel=1e-7)
    assert prediction.cvar(1.0) == pytest.approx(prediction.quantile(1.0))


@given(predictions())
def test_mean_is_the_area_under_the_survival(prediction: LengthDistribution) -> None:
    # Bounded below and above by step sums over the prediction's own quantiles: a law, not another quadrature.
    levels = [i / 400 for i in range(401)]
    lengths = [prediction.quantile(q) for q in levels]
    lower = sum(lengths[:-1]) / 400
    upper = sum(lengths[1:]) / 400
    assert lower - 1e-6 <= prediction.mean() <= upper + 1e-6


@given(predictions(), st.integers(1, 20_000), st.integers(0, 20_000))
def test_remaining_is_the_conditional_law(prediction: LengthDistribution, generated: int, more: int) -> None:
    assume(generated < prediction.cap and prediction.survival(generated) >= OUTLIVED_BELOW)
    rest = prediction.remaining(generated)
    assert rest.cap == prediction.cap - generated
    expected = prediction.survival(generated + more) / prediction.survival(generated)
    assert rest.survival(more) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(predictions(), st.integers(0, 5_000), st.integers(0, 5_000))
def test_remaining_composes(prediction: LengthDistribution, a: int, b: int) -> None:
    assume(a + b < prediction.cap and prediction.survival(a + b) >= OUTLIVED_BELOW)
    assert prediction.remaining(a).remaining(b) == prediction.remaining(a + b)


@given(predictions(), st.integers(1, 20_000))
def test_remaining_keeps_the_total_expectation(prediction: LengthDistribution, generated: int) -> None:
    # E[L] = E[L; L <= g] + S(g) (g + E[rest]), so the rest is never below (E[L] - g) / S(g).
    assume(generated < prediction.cap and prediction.survival(generated) >= 1e-6)
    rest = prediction.remaining(generated)
    reached = prediction.survival(generated)
    assert reached * rest.mean() >= prediction.mean() - generated - 1e-6 * prediction.cap
    assert 0.0 <= rest.mean() <= rest.cap * (1 + 1e-9)


@given(predictions(), st.integers(1, 200_000))
def test_an_outlived_prediction_expects_as_much_again(prediction: LengthDistribution, generated: int) -> None:
    assume(generated >= prediction.cap or prediction.survival(generated) < OUTLIVED_BELOW)
    rest = prediction.remaining(generated)
    if generated >= prediction.cap:
        assert rest == Point(0)
    else:
        assert rest == LogT(math.log(generated), 1.0, prediction.cap - generated)


@given(predictions(), st.integers(1, 20_000))
def test_censoring_moves_the_mass_beyond_onto_the_new_cap(prediction: LengthDistribution, limit: int) -> None:
    cut = prediction.censored_at(limit)
    assert cut.cap == min(prediction.cap, limit)
    assert cut.mean() <= prediction.mean() * (1 + 1e-9)
    below = 0.7 * cut.cap
    assert cut.survival(below) == prediction.survival(below)
    assert prediction.censored_at(None) is prediction


@given(predictions(), st.integers(1, 5_000), st.integers(1, 5_000))
def test_a_censored_remaining_length_has_the_smaller_cap(
    prediction: LengthDistribution, generated: int, limit: int
) -> None:
    assume(generated < prediction.cap and prediction.survival(generated) >= 1e-6)
    rest = prediction.remaining(generated).censored_at(limit)
    assert rest.cap == min(prediction.cap - generated, limit)
    assert rest.mean() <= rest.cap * (1 + 1e-9)


@given(predictions())
def test_std_is_zero_for_certainty_and_at_most_half_the_range(prediction: LengthDistribution) -> None:
    assert 0.0 <= prediction.std() <= prediction.cap / 2 * (1 + 1e-6)
    if isinstance(prediction, Point):
        assert prediction.std() == 0.0


@given(predictions())
def test_predictions_are_values(prediction: LengthDistribution) -> None:
    assert hash(prediction) == hash(prediction)
    with pytest.raises(AttributeError):
        prediction.cap = 3  # type: ignore[misc]


@pytest.mark.parametrize("prediction", [LogT(5, 1, 100), Point(5), Histogram([0, 10], [1])])
def test_invalid_arguments_are_refused_with_the_valid_range(prediction: LengthDistribution) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        prediction.quantile(1.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        prediction.cvar(-0.1)
    with pytest.raises(InputError, match="0 or more"):
        prediction.remaining(-1)


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


@settings(max_examples=60)
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


@settings(max_examples=20)
@given(logts())
def test_std_matches_adaptive_quadrature(prediction: LogT) -> None:
    second = adaptive(prediction, 0.0, power=2)
    mean = adaptive(prediction, 0.0)
    assume(second - mean**2 > 1e-6 * second)  # else the reference loses its digits to cancellation
    assert prediction.std() == pytest.approx(math.sqrt(second - mean**2), rel=1e-4)


@settings(max_examples=20)
@given(logts(), st.floats(0.2, 3.0))
def test_the_mean_remaining_length_matches_adaptive_quadrature(prediction: LogT, times_median: float) -> None:
    generated = int(times_median * math.exp(prediction.mu))
    assume(0 < generated < prediction.cap and prediction.survival(generated) >= 1e-6)
    rest = prediction.remaining(generated)
    reached = prediction.survival(generated)
    exact = adaptive(prediction, float(generated)) / reached - generated
    assert rest.mean() == pytest.approx(exact, rel=1e-5, abs=1e-6 * generated)


@settings(max_examples=30)
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


def test_a_heavy_tail_raises_the_mean_above_the_median() -> None:
    certain, heavy = LogT(math.log(300), 0.1, 8192), LogT(math.log(300), 1.5, 8192)
    assert heavy.mean() > 2 * certain.mean()
    assert heavy.cvar(0.9) > 5 * certain.cvar(0.9)


def test_the_expected_remaining_length_grows_with_age() -> None:
    prediction = LogT(math.log(300), 0.8, 100_000)
    expected = [prediction.remaining(g).mean() for g in (600, 1_200, 2_400, 4_800)]
    assert expected == sorted(expected)


@pytest.mark.parametrize(
    ("mu", "sigma", "cap", "nu", "message"),
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
def test_impossible_parameters_are_refused(mu: float, sigma: float, cap: int, nu: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LogT(mu, sigma, cap, nu)


def test_mean_and_std_of_two_even_bins() -> None:
    prediction = Histogram([0, 100, 300], [0.5, 0.5])
    assert prediction.mean() == pytest.approx(0.5 * 50 + 0.5 * 200)
    second = 0.5 * 100**2 / 3 + 0.5 * (300**3 - 100**3) / (3 * 200)
    assert prediction.std() == pytest.approx((second - prediction.mean() ** 2) ** 0.5)


def test_cvar_is_the_mean_of_the_top_bin_at_its_own_level() -> None:
    assert Histogram([0, 100, 300], [0.9, 0.1]).cvar(0.9) == pytest.approx(200)


def test_mass_beyond_the_cap_is_at_the_cap() -> None:
    prediction = Histogram([0, 100, 300], [0.5, 0.5], cap=200)
    assert prediction.mean() == pytest.approx(0.5 * 50 + 0.25 * 150 + 0.25 * 200)
    assert prediction.quantile(0.9) == 200
    assert prediction.survival(199.99) == pytest.approx(0.25, abs=1e-3)


def test_an_empty_bin_contains_no_quantile() -> None:
    prediction = Histogram([0, 100, 200, 300], [0.5, 0.0, 0.5])
    assert prediction.quantile(0.5) == 100
    assert prediction.survival(150) == 0.5


def test_running_past_the_last_edge_outlives_the_prediction() -> None:
    rest = Histogram([0, 100], [1.0], cap=1000).remaining(150)
    assert isinstance(rest, LogT)
    assert rest.cap == 850
    assert rest.quantile(0.5) == pytest.approx(150)


def test_probabilities_that_sum_to_one_within_float32_are_normalised() -> None:
    assert sum(Histogram([0, 1, 2, 3], [0.3333333, 0.3333333, 0.3333333]).probabilities) == pytest.approx(1.0)


@given(histograms())
def test_a_histogram_is_rebuilt_from_its_fields(prediction: Histogram) -> None:
    assert Histogram(prediction.edges, prediction.probabilities, prediction.cap) == prediction


@pytest.mark.parametrize(
    ("edges", "mass", "message"),
    [
        ([0, 1], [0.5, 0.5], "2 edges for 2 probabilities"),
        ([0, 1], [], "one edge more"),
        ([0, 5, 3], [0.5, 0.5], "do not rise"),
        ([-1, 5], [1.0], "from 0 up"),
        ([0, 5, 9], [1.5, -0.5], "negative"),
        ([0, 5, 9], [0.5, 0.4], "sum to 0.9"),
    ],
)
def test_invalid_bins_or_probabilities_are_refused(edges: list[float], mass: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Histogram(edges, mass)


rests = st.one_of(histograms(), logts(), points())
ages = st.integers(0, 3_000)


@given(rests, ages)
def test_at_its_own_age_the_remaining_length_is_the_rest(rest: BaseDistribution, generated: int) -> None:
    remaining = After(rest, generated).remaining(generated)
    assert remaining.cap == rest.cap
    for q in (0.05, 0.5, 0.95):
        assert remaining.quantile(q) == pytest.approx(rest.quantile(q), rel=1e-6, abs=1e-6)
    assert remaining.mean() == pytest.approx(rest.mean(), rel=1e-6)
    assert remaining.cvar(0.9) == pytest.approx(rest.cvar(0.9), rel=1e-6)


@given(rests, ages, st.integers(0, 2_000), st.integers(0, 5_000))
def test_at_a_later_age_the_remaining_length_is_conditioned_on_progress(
    rest: BaseDistribution, generated: int, since: int, more: int
) -> None:
    assume(since < rest.cap and rest.survival(since) >= OUTLIVED_BELOW)
    if isinstance(rest, Point):  # a sum with a larger number rounds an atom that is next to a whole number onto it
        assume(not 0.0 < abs(rest.mean() - since - more) < 1e-6)
    remaining = After(rest, generated).remaining(generated + since)
    assert remaining.cap == rest.cap - since
    assert remaining.survival(more) == pytest.approx(rest.remaining(since).survival(more), rel=1e-6, abs=1e-9)


@given(rests, ages, ages)
def test_at_an_earlier_age_the_rest_is_shifted(rest: BaseDistribution, generated: int, before: int) -> None:
    assume(before <= generated)
    remaining = After(rest, generated).remaining(before)
    assert remaining.mean() == pytest.approx(generated - before + rest.mean(), rel=1e-6)
    assert remaining.survival(generated - before - 1) == 1.0
    assert remaining.std() == pytest.approx(rest.std(), rel=1e-6, abs=1e-4)


@given(afters(), st.integers(1, 8_000))
def test_a_limit_below_the_generated_tokens_is_the_length(prediction: After, limit: int) -> None:
    cut = prediction.censored_at(limit)
    if limit <= prediction.generated:
        assert cut == Point(limit, limit)
    else:
        assert isinstance(cut, After)
        assert cut.generated == prediction.generated
        assert cut.rest == prediction.rest.censored_at(limit - prediction.generated)


def test_a_rest_of_zero_gives_the_generated_tokens() -> None:
    over = After(Point(0), 40)
    assert over.mean() == pytest.approx(40.0)
    assert over.quantile(0.9) == 40.0
    assert over.survival(39.9) == 1.0
    assert over.survival(40) == 0.0


def test_an_outlived_known_prefix_expects_as_much_again() -> None:
    prediction = After(Histogram((0.0, 10.0), (1.0,), cap=1000), 100)
    assert prediction.remaining(150).quantile(0.5) == pytest.approx(150.0)


def test_a_negative_age_is_refused() -> None:
    with pytest.raises(InputError, match="0 or more"):
        After(Point(3), -1)


@given(points(), st.integers(0, 3_000), st.floats(0.01, 0.99))
@example(Point(1.4, cap=16), 15, 0.5)
def test_a_quantile_is_not_exceeded_in_spite_of_rounding(rest: Point, generated: int, q: float) -> None:
    whole = After(rest, generated)
    assert whole.survival(whole.quantile(q)) <= 1.0 - q
