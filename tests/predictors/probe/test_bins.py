from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import Histogram
from lengthwise.predictors.probe import Bins, Smoothing, log_bins, paper_bins
from lengthwise.predictors.probe.bins import NONE, PAPER


def test_the_papers_bins_and_transition_are_as_written() -> None:
    bins = paper_bins()
    assert len(bins) == 10
    assert bins.edges[-1] == 512
    once = bins.after(1)
    width = 51.2
    assert once[3, 3] == pytest.approx(1 - 1 / width)
    assert once[3, 2] == pytest.approx(1 / width)
    assert once[0, 0] == 1.0
    assert np.count_nonzero(once) == 19


def test_a_length_is_in_the_bin_that_ends_at_or_after_it() -> None:
    bins = Bins((0.0, 4.0, 10.0, 100.0))
    assert bins.of([1, 4, 5, 10, 11, 100, 5000]).tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_bins_that_do_not_rise_are_refused() -> None:
    for edges in ((0.0,), (1.0, 2.0), (0.0, 5.0, 5.0)):
        with pytest.raises(InputError, match="bins"):
            Bins(edges)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(10, 5000))
def test_mass_moves_down_and_none_is_lost(first: int, second: int, cap: int) -> None:
    bins = log_bins(cap)
    moved = bins.after(first) @ bins.after(second)
    assert np.allclose(moved, bins.after(first + second))
    assert np.allclose(moved.sum(axis=1), 1.0)
    assert np.allclose(np.triu(moved, k=1), 0.0)


@given(st.lists(st.floats(0.01, 1.0), min_size=9, max_size=9), st.floats(0.01, 0.99), st.integers(1, 900))
def test_quantiles_are_those_of_the_histogram(mass: list[float], q: float, cap: int) -> None:
    bins = log_bins(600, count=9)
    row = np.array(mass)[: len(bins)] / sum(mass[: len(bins)])
    assert bins.quantile(row[None], q, cap)[0] == pytest.approx(Histogram(bins.edges, row, cap).quantile(q), rel=1e-6)


def test_smoothing_with_trails_weights_is_prior_times_reading() -> None:
    bins = Bins((0.0, 10.0, 20.0))
    before, reading = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    prior = before @ bins.after(3)
    assert np.allclose(PAPER.step(bins, before, 3, reading), prior)
    reading = np.array([0.9, 0.1])
    assert np.allclose(PAPER.step(bins, before, 3, reading), prior * reading / (prior @ reading))
    assert np.allclose(NONE.step(bins, before, 3, reading), reading)


def test_rows_are_smoothed_within_an_answer_only() -> None:
    bins = Bins((0.0, 10.0, 20.0))
    readings = np.array([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5]])
    prior = np.full((3, 2), 0.5)
    # Rows of answer 7 out of order: age 16 comes first.
    smooth = PAPER.rows(bins, readings, prior, np.array([7, 7, 8]), np.array([16, 0, 16]))
    assert np.allclose(smooth[1:], readings[1:])
    assert np.allclose(smooth[0], PAPER.step(bins, readings[1], 16, readings[0]))


def test_the_first_reading_may_be_weighed_with_the_prompts_prediction() -> None:
    prior, reading = np.array([0.9, 0.1]), np.array([0.5, 0.5])
    assert np.allclose(Smoothing(start=1.0).first(prior, reading), prior)
    assert np.allclose(Smoothing(start=0.0).first(prior, reading), reading)
    between = Smoothing(start=0.5).first(prior, reading)[0]
    assert 0.5 < between < 0.9
