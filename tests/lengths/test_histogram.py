from __future__ import annotations

import pytest
from hypothesis import given

from lengthwise.errors import InputError
from lengthwise.lengths import Histogram, LogT
from tests.lengths.distributions import histograms


def test_mean_and_std_of_two_even_bins() -> None:
    prediction = Histogram([0, 100, 300], [0.5, 0.5])
    assert prediction.mean() == pytest.approx(0.5 * 50 + 0.5 * 200)
    second = 0.5 * 100**2 / 3 + 0.5 * (300**3 - 100**3) / (3 * 200)
    assert prediction.std() == pytest.approx((second - prediction.mean() ** 2) ** 0.5)


def test_cvar_is_the_mean_of_the_top_bin_at_its_own_level() -> None:
    assert Histogram([0, 100, 300], [0.9, 0.1]).cvar(0.9) == pytest.approx(200)


def test_mass_beyond_the_cap_sits_on_it() -> None:
    prediction = Histogram([0, 100, 300], [0.5, 0.5], cap=200)
    assert prediction.mean() == pytest.approx(0.5 * 50 + 0.25 * 150 + 0.25 * 200)
    assert prediction.quantile(0.9) == 200
    assert prediction.survival(199.99) == pytest.approx(0.25, abs=1e-3)


def test_an_empty_bin_is_jumped_over() -> None:
    prediction = Histogram([0, 100, 200, 300], [0.5, 0.0, 0.5])
    assert prediction.quantile(0.5) == 100
    assert prediction.survival(150) == 0.5


def test_running_past_the_last_edge_outlives_the_prediction() -> None:
    rest = Histogram([0, 100], [1.0], cap=1000).remaining(150)
    assert isinstance(rest, LogT)
    assert rest.cap == 850
    assert rest.quantile(0.5) == pytest.approx(150)


def test_float32_rounding_is_taken_as_one() -> None:
    assert sum(Histogram([0, 1, 2, 3], [0.3333333, 0.3333333, 0.3333333]).probabilities) == pytest.approx(1.0)


@given(histograms())
def test_a_histogram_is_rebuilt_from_its_fields(prediction: Histogram) -> None:
    assert Histogram(prediction.edges, prediction.probabilities, prediction.cap) == prediction


@pytest.mark.parametrize(
    ("edges", "mass", "says"),
    [
        ([0, 1], [0.5, 0.5], "2 edges for 2 probabilities"),
        ([0, 1], [], "one edge more"),
        ([0, 5, 3], [0.5, 0.5], "do not rise"),
        ([-1, 5], [1.0], "from 0 up"),
        ([0, 5, 9], [1.5, -0.5], "negative"),
        ([0, 5, 9], [0.5, 0.4], "sum to 0.9"),
    ],
)
def test_what_is_not_a_distribution_is_refused(edges: list[float], mass: list[float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Histogram(edges, mass)
