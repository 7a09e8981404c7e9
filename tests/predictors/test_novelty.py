"""Novelty is 0 near the training prompts, 1 far from them, and knows no scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.predictors.novelty import Novelty

CENTRES = np.eye(2, 3, dtype=np.float32)
NOVELTY = Novelty(CENTRES, low=0.1, high=0.5, spread=1.0)


@pytest.mark.parametrize(
    ("vector", "expected"),
    [([2.0, 0.0, 0.0], 0.0), ([0.1, 9.0, 0.0], 0.0), ([0.0, 0.0, 1.0], 1.0), ([0.0, 0.0, 0.0], 1.0)],
    ids=["a centre", "near one", "orthogonal to all", "no direction"],
)
def test_novelty_is_0_near_a_centre_and_1_far_from_all(vector: list[float], expected: float) -> None:
    assert NOVELTY.of(np.array(vector, np.float32)) == expected


def test_novelty_is_linear_between_low_and_high() -> None:
    cosine = 0.7  # distance 0.3, half way
    vector = np.array([cosine, 0.0, np.sqrt(1.0 - cosine**2)], np.float32)
    assert NOVELTY.of(vector) == pytest.approx(0.5, abs=1e-5)


@given(st.lists(st.floats(-4.0, 4.0, width=32), min_size=3, max_size=3), st.floats(0.5, 8.0, width=32))
def test_novelty_is_a_share_and_does_not_depend_on_the_vector_s_size(vector: list[float], scale: float) -> None:
    v = np.array(vector, np.float32)
    if np.abs(v).max() < 1e-3:
        return
    found = NOVELTY.of(v)
    assert 0.0 <= found <= 1.0
    assert NOVELTY.of(v * np.float32(scale)) == pytest.approx(found, abs=1e-4)


def test_novelty_is_written_as_arrays_and_read_back() -> None:
    read = Novelty.of_arrays(NOVELTY.arrays())
    np.testing.assert_array_equal(read.centres, CENTRES)
    assert (read.low, read.high, read.spread) == (0.1, 0.5, 1.0)


@pytest.mark.parametrize("ramp", [[0.5, 0.1, 1.0], [0.1, 0.5, -1.0], [0.1, 0.5], [np.nan, 0.5, 1.0]])
def test_damaged_arrays_are_refused(ramp: list[float]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (unpacking has its own message)
        Novelty.of_arrays({**NOVELTY.arrays(), "ramp": np.array(ramp)})
