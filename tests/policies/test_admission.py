"""Admission by predicted peak KV memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job
from lengthwise.policies.admission import (
    LENGTH_LEVELS,
    KvDemand,
    PeakAdmission,
    job_levels,
    length_levels,
    peak_kv_tokens,
    predicted_remaining,
)

demands = st.lists(st.builds(KvDemand, st.integers(0, 500), st.integers(1, 60)), min_size=1, max_size=8)


def stepped_peak(running: list[KvDemand], block_size: int) -> int:
    """The peak by playing every decode step; a request frees its memory after its last token."""
    peak = 0
    for step in range(1, max(one.remaining for one in running) + 1):
        alive = [one for one in running if one.remaining >= step]
        peak = max(peak, sum(one.tokens + step + block_size - 1 for one in alive))
    return peak


@given(demands, st.sampled_from([1, 16]))
def test_the_peak_is_what_playing_every_step_finds(running: list[KvDemand], block_size: int) -> None:
    assert peak_kv_tokens(running, block_size) == stepped_peak(running, block_size)


@given(demands, st.integers(1, 3000))
def test_each_step_of_the_running_lowers_the_excess_by_at_most_one_token(running: list[KvDemand], kv: int) -> None:
    limit, (candidate, *others) = PeakAdmission(kv), running
    later = [KvDemand(one.tokens + 1, one.remaining - 1) for one in others if one.remaining > 1]
    if len(later) == len(others):  # nothing has finished
        assert limit.excess(candidate, later) >= limit.excess(candidate, others) - 1


def test_a_request_waits_until_the_predicted_peak_fits() -> None:
    running = [KvDemand(tokens=100, remaining=50)]
    short, long = KvDemand(20, 10), KvDemand(20, 100)
    assert peak_kv_tokens([*running, short]) == 150  # the short one is gone before the peak of the other
    assert peak_kv_tokens([*running, long]) == 220
    assert PeakAdmission(150).admits(short, running)
    assert not PeakAdmission(219).admits(long, running)
    assert PeakAdmission(219).excess(long, running) == 1
    assert PeakAdmission(220).admits(long, running)
    assert PeakAdmission(10).admits(long, [])  # alone it has the whole engine


def test_a_longer_answer_counts_at_the_next_level_of_its_prediction() -> None:
    levels = length_levels(np.log(100.0), 0.5, 8192, 0.9)[0].tolist()
    prediction = LogT(float(np.log(100.0)), 0.5, 8192)
    assert len(levels) == LENGTH_LEVELS
    assert levels[-1] == 8192
    assert levels[:2] == [np.ceil(prediction.quantile(0.9)), np.ceil(prediction.quantile(0.95))]
    assert predicted_remaining(levels, 30) == levels[0] - 30
    assert predicted_remaining(levels, levels[0]) == levels[1] - levels[0]
    assert predicted_remaining(levels, 9000) == 1


def test_a_jobs_demand_is_its_context_and_the_rest_of_its_prediction() -> None:
    job = Job("a", 0.0, 40, prediction=Point(90), generated=30)
    assert PeakAdmission(1000).demand(job) == KvDemand(70, 60)


@pytest.mark.parametrize(("kv", "block", "quantile"), [(0, 1, 0.9), (1, 0, 0.9), (1, 1, 1.0)])
def test_impossible_settings_are_input_errors(kv: int, block: int, quantile: float) -> None:
    with pytest.raises(InputError):
        PeakAdmission(kv, block, quantile)


@given(st.floats(-2, 12), st.floats(0.05, 3), st.integers(1, 9000), st.sampled_from([0.5, 0.85, 0.9]))
def test_the_levels_of_one_job_are_those_of_the_arrays(mu: float, sigma: float, cap: int, quantile: float) -> None:
    job = Job("a", 0.0, prediction=LogT(mu, sigma, cap))
    assert list(job_levels(job, quantile)) == length_levels(job.mu, job.sigma, job.cap, quantile)[0].tolist()
