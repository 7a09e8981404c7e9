"""Laws that hold for every belief, whatever its family."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import OUTLIVED_BELOW, Histogram, LengthDistribution, LogT, Point
from tests.lengths.beliefs import beliefs

shares = st.floats(0.001, 0.999)


@given(beliefs())
def test_every_family_keeps_the_contract(belief: LengthDistribution) -> None:
    assert isinstance(belief, LengthDistribution)
    assert isinstance(belief.remaining(1), LengthDistribution)


@given(beliefs(), st.floats(0, 20_000), st.floats(0, 20_000))
def test_survival_falls_from_at_most_one_to_zero_at_the_cap(belief: LengthDistribution, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert 1.0 >= belief.survival(low) >= belief.survival(high) >= 0.0
    assert belief.survival(belief.cap) == 0.0


@given(beliefs(), shares)
def test_quantile_inverts_survival(belief: LengthDistribution, q: float) -> None:
    length = belief.quantile(q)
    assert 0.0 <= length <= belief.cap
    assert belief.survival(length) <= 1.0 - q + 1e-9
    just_below = length * (1.0 - 1e-9) - 1e-9
    if just_below > 0:
        assert belief.survival(just_below) >= 1.0 - q - 1e-6


@given(beliefs(), shares, shares)
def test_quantiles_rise(belief: LengthDistribution, p: float, q: float) -> None:
    low, high = sorted((p, q))
    assert belief.quantile(low) <= belief.quantile(high) * (1 + 1e-12)


@given(beliefs(), shares)
def test_cvar_lies_between_the_quantile_or_mean_and_the_cap(belief: LengthDistribution, alpha: float) -> None:
    cvar = belief.cvar(alpha)
    slack = 1e-8 * belief.cap
    assert cvar >= belief.quantile(alpha) - slack
    assert cvar >= belief.mean() - slack
    assert cvar <= belief.cap + slack


@given(beliefs())
def test_cvar_at_zero_is_the_mean_and_at_one_the_longest(belief: LengthDistribution) -> None:
    assert belief.cvar(0.0) == pytest.approx(belief.mean(), rel=1e-7)
    assert belief.cvar(1.0) == pytest.approx(belief.quantile(1.0))


@given(beliefs())
def test_mean_is_the_area_under_the_survival(belief: LengthDistribution) -> None:
    # Bounded below and above by step sums over the belief's own quantiles: a law, not another quadrature.
    levels = [i / 400 for i in range(401)]
    lengths = [belief.quantile(q) for q in levels]
    lower = sum(lengths[:-1]) / 400
    upper = sum(lengths[1:]) / 400
    assert lower - 1e-6 <= belief.mean() <= upper + 1e-6


@given(beliefs(), st.integers(1, 20_000), st.integers(0, 20_000))
def test_remaining_is_the_conditional_law(belief: LengthDistribution, generated: int, more: int) -> None:
    assume(generated < belief.cap and belief.survival(generated) >= OUTLIVED_BELOW)
    rest = belief.remaining(generated)
    assert rest.cap == belief.cap - generated
    expected = belief.survival(generated + more) / belief.survival(generated)
    assert rest.survival(more) == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(beliefs(), st.integers(0, 5_000), st.integers(0, 5_000))
def test_remaining_composes(belief: LengthDistribution, a: int, b: int) -> None:
    assume(a + b < belief.cap and belief.survival(a + b) >= OUTLIVED_BELOW)
    assert belief.remaining(a).remaining(b) == belief.remaining(a + b)


@given(beliefs(), st.integers(1, 20_000))
def test_remaining_keeps_the_total_expectation(belief: LengthDistribution, generated: int) -> None:
    # E[L] = E[L; L <= g] + S(g) (g + E[rest]), so the rest is never below (E[L] - g) / S(g).
    assume(generated < belief.cap and belief.survival(generated) >= 1e-6)
    rest = belief.remaining(generated)
    reached = belief.survival(generated)
    assert reached * rest.mean() >= belief.mean() - generated - 1e-6 * belief.cap
    assert 0.0 <= rest.mean() <= rest.cap * (1 + 1e-9)


@given(beliefs(), st.integers(1, 200_000))
def test_an_outlived_belief_expects_as_much_again(belief: LengthDistribution, generated: int) -> None:
    assume(generated >= belief.cap or belief.survival(generated) < OUTLIVED_BELOW)
    rest = belief.remaining(generated)
    if generated >= belief.cap:
        assert rest == Point(0)
    else:
        assert rest == LogT(math.log(generated), 1.0, belief.cap - generated)


@given(beliefs(), st.integers(1, 20_000))
def test_censoring_moves_the_mass_beyond_onto_the_new_cap(belief: LengthDistribution, limit: int) -> None:
    cut = belief.censored_at(limit)
    assert cut.cap == min(belief.cap, limit)
    assert cut.mean() <= belief.mean() * (1 + 1e-9)
    below = 0.7 * cut.cap
    assert cut.survival(below) == belief.survival(below)
    assert belief.censored_at(None) is belief


@given(beliefs(), st.integers(1, 5_000), st.integers(1, 5_000))
def test_censoring_what_remains_is_what_remains_of_the_censored(
    belief: LengthDistribution, generated: int, limit: int
) -> None:
    assume(generated < belief.cap and belief.survival(generated) >= 1e-6)
    rest = belief.remaining(generated).censored_at(limit)
    assert rest.cap == min(belief.cap - generated, limit)
    assert rest.mean() <= rest.cap * (1 + 1e-9)


@given(beliefs())
def test_std_is_zero_for_certainty_and_at_most_half_the_range(belief: LengthDistribution) -> None:
    assert 0.0 <= belief.std() <= belief.cap / 2 * (1 + 1e-6)
    if isinstance(belief, Point):
        assert belief.std() == 0.0


@given(beliefs())
def test_beliefs_are_values(belief: LengthDistribution) -> None:
    assert hash(belief) == hash(belief)
    with pytest.raises(AttributeError):
        belief.cap = 3  # type: ignore[misc]


@pytest.mark.parametrize("belief", [LogT(5, 1, 100), Point(5), Histogram([0, 10], [1])])
def test_nonsense_is_refused_with_what_would_be_right(belief: LengthDistribution) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        belief.quantile(1.5)
    with pytest.raises(InputError, match="between 0 and 1"):
        belief.cvar(-0.1)
    with pytest.raises(InputError, match="0 or more"):
        belief.remaining(-1)
