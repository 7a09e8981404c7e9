"""Laws that hold for every prediction, whatever its family."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import OUTLIVED_BELOW, Histogram, LengthDistribution, LogT, Point
from tests.lengths.distributions import predictions

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
def test_quantiles_rise(prediction: LengthDistribution, p: float, q: float) -> None:
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
def test_censoring_what_remains_is_what_remains_of_the_censored(
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
def test_nonsense_is_refused_with_what_would_be_right(prediction: LengthDistribution) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        prediction.quantile(1.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        prediction.cvar(-0.1)
    with pytest.raises(InputError, match="0 or more"):
        prediction.remaining(-1)
