from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.workloads import DiscreteLengths


def test_the_variance_maximising_distribution_has_half_the_range_as_std() -> None:
    lengths = DiscreteLengths.parse("1:0.5,300:0.5")
    assert (lengths.mean, lengths.std, lengths.max) == (150.5, 149.5, 300)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1:0.5,300:0.4", "sum to 0.9; they must sum to 1"),
        ("1:-0.5,300:1.5", "probability -0.5 in '1:-0.5'"),
        ("1:nan,300:1", "probability nan"),
        ("1.5:0.5,300:0.5", "'1.5' in '1.5:0.5' is not a whole number"),
        ("0:0.5,300:0.5", "length 0 in '0:0.5' is below 1"),
        ("1:0.5,300", "'300' is not a pair"),
        ("1:half,300:0.5", "'half' in '1:half' is not a number"),
        ("7:0.5,7:0.5", "7 is given twice"),
        ("", "'' is not a pair"),
    ],
)
def test_a_bad_distribution_is_named_with_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        DiscreteLengths.parse(text)
    assert says in str(caught.value)
    assert caught.value.field
    assert caught.value.hint


def test_thirds_that_sum_to_one_up_to_rounding_are_fine() -> None:
    DiscreteLengths.parse("1:0.3333333333,2:0.3333333333,3:0.3333333334")


@given(st.dictionaries(st.integers(1, 500), st.integers(1, 10), min_size=1, max_size=6), st.integers(0, 99))
def test_samples_have_the_mean_and_only_the_given_lengths(weights: dict[int, int], seed: int) -> None:
    total = sum(weights.values())
    text = ",".join(f"{length}:{weight / total!r}" for length, weight in weights.items())
    lengths = DiscreteLengths.parse(text)
    drawn = lengths.sample(2000, np.random.default_rng(seed))
    assert set(drawn.tolist()) <= set(weights)
    assert abs(drawn.mean() - lengths.mean) <= 6 * lengths.std / math.sqrt(2000) + 1e-9
