"""A prediction about what remains, turned back into one about the whole answer."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import OUTLIVED_BELOW, After, BaseDistribution, Histogram, Point
from tests.lengths.distributions import afters, histograms, logts, points

rests = st.one_of(histograms(), logts(), points())
ages = st.integers(0, 3_000)


@given(rests, ages)
def test_at_the_moment_it_was_said_what_remains_is_what_was_said(rest: BaseDistribution, generated: int) -> None:
    left = After(rest, generated).remaining(generated)
    assert left.cap == rest.cap
    for q in (0.05, 0.5, 0.95):
        assert left.quantile(q) == pytest.approx(rest.quantile(q), rel=1e-6, abs=1e-6)
    assert left.mean() == pytest.approx(rest.mean(), rel=1e-6)
    assert left.cvar(0.9) == pytest.approx(rest.cvar(0.9), rel=1e-6)


@given(rests, ages, st.integers(0, 2_000), st.integers(0, 5_000))
def test_later_what_remains_is_conditioned_on_what_has_come_since(
    rest: BaseDistribution, generated: int, since: int, more: int
) -> None:
    assume(since < rest.cap and rest.survival(since) >= OUTLIVED_BELOW)
    if isinstance(rest, Point):  # a sum with a larger number rounds an atom that is next to a whole number onto it
        assume(not 0.0 < abs(rest.mean() - since - more) < 1e-6)
    left = After(rest, generated).remaining(generated + since)
    assert left.cap == rest.cap - since
    assert left.survival(more) == pytest.approx(rest.remaining(since).survival(more), rel=1e-6, abs=1e-9)


@given(rests, ages, ages)
def test_looked_at_from_before_the_rest_only_lies_further_out(
    rest: BaseDistribution, generated: int, before: int
) -> None:
    assume(before <= generated)
    left = After(rest, generated).remaining(before)
    assert left.mean() == pytest.approx(generated - before + rest.mean(), rel=1e-6)
    assert left.survival(generated - before - 1) == 1.0
    assert left.std() == pytest.approx(rest.std(), rel=1e-6, abs=1e-4)


@given(afters(), st.integers(1, 8_000))
def test_cut_within_what_came_it_is_that_length(prediction: After, limit: int) -> None:
    cut = prediction.censored_at(limit)
    if limit <= prediction.generated:
        assert cut == Point(limit, limit)
    else:
        assert isinstance(cut, After)
        assert cut.generated == prediction.generated
        assert cut.rest == prediction.rest.censored_at(limit - prediction.generated)


def test_a_rest_of_nothing_is_a_whole_of_what_came() -> None:
    over = After(Point(0), 40)
    assert over.mean() == pytest.approx(40.0)
    assert over.quantile(0.9) == 40.0
    assert over.survival(39.9) == 1.0
    assert over.survival(40) == 0.0


def test_outlived_it_expects_as_much_again_as_came_in_all() -> None:
    prediction = After(Histogram((0.0, 10.0), (1.0,), cap=1000), 100)
    assert prediction.remaining(150).quantile(0.5) == pytest.approx(150.0)


def test_nothing_comes_before_the_first_token() -> None:
    with pytest.raises(InputError, match="0 or more"):
        After(Point(3), -1)


@given(points(), st.integers(0, 3_000), st.floats(0.01, 0.99))
@example(Point(1.4, cap=16), 15, 0.5)
def test_a_quantile_is_not_exceeded_however_its_sum_is_rounded(rest: Point, generated: int, q: float) -> None:
    whole = After(rest, generated)
    assert whole.survival(whole.quantile(q)) <= 1.0 - q
