"""Calibration: the work of a job is what finished jobs of its predicted length took."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lengthwise.lengths import wide_prior
from lengthwise.policies.calibration import (
    BINS,
    MAX_UNIT,
    UNPREDICTED,
    LengthCalibration,
    calibrated_work,
    calibrated_works,
    length_bin,
    ratio,
    record_length,
)
from lengthwise.policies.job import JobColumns

CAP = 4096.0
LENGTHS = st.lists(st.tuples(st.integers(1, 4096), st.integers(1, 4096)), min_size=1, max_size=60)


def place_of(median: float) -> int:
    return length_bin(np.log(median), 0.0, median)


def calibrated(pairs: list[tuple[float, int]]) -> LengthCalibration:
    """Return what is known after jobs of these predicted and true lengths."""
    found = LengthCalibration()
    for median, tokens in pairs:
        record_length(found, median, place_of(median), tokens)
    return found


def work_of(calibration: LengthCalibration, median: float) -> float:
    return calibrated_work(calibration, median, place_of(median), CAP)


def log_normal(n: int, seed: int = 0) -> NDArray[np.int64]:
    return np.exp(np.random.default_rng(seed).normal(5.0, 1.0, n)).clip(1, 4096).astype(np.int64)


def test_without_finished_jobs_the_work_is_the_median() -> None:
    assert [work_of(LengthCalibration(), median) for median in (1.0, 37.5, 4000.0)] == [1.0, 37.5, 4000.0]


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=60), st.integers(1, 4096))
def test_exact_predictions_stay_as_they_are(lengths: list[int], median: int) -> None:
    assert work_of(calibrated([(length, length) for length in lengths]), median) == pytest.approx(median)


@given(LENGTHS, st.integers(1, 4096))
def test_the_work_is_positive_and_at_most_the_cap(pairs: list[tuple[int, int]], median: int) -> None:
    assert 0.0 < work_of(calibrated([(float(a), b) for a, b in pairs]), median) <= CAP


def test_predictions_that_say_nothing_are_worth_the_mean() -> None:
    true = log_normal(3000)
    found = calibrated(list(zip(log_normal(3000, seed=1).tolist(), true.tolist(), strict=True)))
    assert [work_of(found, median) for median in (40.0, 150.0, 600.0)] == pytest.approx([true.mean()] * 3, rel=0.25)


def test_inverted_predictions_are_turned_round() -> None:
    true = log_normal(300)
    found = calibrated([(20_000 / length, length) for length in true.tolist()])
    works = [work_of(found, median) for median in (40.0, 150.0, 600.0)]
    assert works == sorted(works, reverse=True)


def test_a_few_finished_jobs_show_the_slope_for_lengths_that_no_job_had() -> None:
    found = calibrated([(median, 200) for median in (20.0, 50.0, 120.0, 900.0) * 8])
    assert work_of(found, 2500.0) < 1200.0
    assert work_of(found, 5.0) > 20.0


def test_a_length_that_is_always_wrong_is_corrected_on_its_own() -> None:
    lengths = log_normal(2000).tolist()
    found = calibrated([(1.0 if number % 5 == 0 else length, length) for number, length in enumerate(lengths)])
    assert work_of(found, 1.0) == pytest.approx(np.mean(lengths[::5]), rel=0.2)
    assert work_of(found, 150.0) == pytest.approx(150.0, rel=0.25)


def test_jobs_without_a_prediction_change_no_other_ratio() -> None:
    found, prior = LengthCalibration(), wide_prior()
    median = float(np.exp(prior.mu))
    assert length_bin(prior.mu, prior.sigma, median) == UNPREDICTED
    for _ in range(100):
        record_length(found, median, UNPREDICTED, 30)
    assert work_of(found, 80.0) == 80.0
    assert calibrated_work(found, median, UNPREDICTED, CAP) < 0.5 * median


@given(LENGTHS)
def test_ratios_do_not_depend_on_when_totals_are_divided_by_the_unit(pairs: list[tuple[int, int]]) -> None:
    whole, divided = LengthCalibration(), LengthCalibration()
    for number, (median, tokens) in enumerate(pairs):
        for each in (whole, divided):
            record_length(each, median, place_of(median), tokens)
        if number == len(pairs) // 2:  # as if there had been many jobs before
            scale = MAX_UNIT / divided.unit
            for name in ("unit", "count", "sum_x", "sum_y", "sum_xx", "sum_xy"):
                setattr(divided, name, getattr(divided, name) * scale)
            for totals in (divided.jobs, divided.predicted, divided.true):
                totals[:] = [value * scale for value in totals]
    for place in range(BINS + 1):
        assert ratio(divided, place) == pytest.approx(ratio(whole, place), rel=1e-6)


@given(LENGTHS)
def test_many_jobs_at_once_have_the_work_of_each(pairs: list[tuple[int, int]]) -> None:
    found = calibrated([(float(a), b) for a, b in pairs])
    medians = np.array([median for median, _ in pairs], float)
    works, bins = calibrated_works(found, JobColumns.filled(arrival=0.0, expected=medians, cap=CAP))
    assert works == pytest.approx([work_of(found, float(np.exp(np.log(median)))) for median in medians], rel=0.2)
    assert UNPREDICTED not in bins
