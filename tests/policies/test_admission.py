"""Admission by predicted peak KV memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.lengths import LogT, Point
from lengthwise.policies import Job
from lengthwise.policies.admission import (
    PREDICTED_LENGTHS,
    JointAdmission,
    KvDemand,
    joint_kv_tokens,
    peak_kv_tokens,
    predicted_lengths,
    predicted_remaining,
)

demands = st.lists(st.builds(KvDemand, st.integers(0, 500), st.integers(1, 60)), min_size=1, max_size=8)


def stepped_peak(running: list[KvDemand], block_size: int) -> int:
    """The peak by simulating every decode step; a request frees its memory after its last token."""
    peak = 0
    for step in range(1, max(one.remaining for one in running) + 1):
        alive = [one for one in running if one.remaining >= step]
        peak = max(peak, sum(one.tokens + step + block_size - 1 for one in alive))
    return peak


@given(demands, st.sampled_from([1, 16]))
def test_the_peak_is_that_of_simulating_every_step(running: list[KvDemand], block_size: int) -> None:
    assert peak_kv_tokens(running, block_size) == stepped_peak(running, block_size)


@given(demands)
def test_each_step_of_the_running_lowers_the_peak_by_at_most_one_token(running: list[KvDemand]) -> None:
    candidate, *others = running
    later = [KvDemand(one.tokens + 1, one.remaining - 1) for one in others if one.remaining > 1]
    if len(later) == len(others):  # nothing has finished
        assert peak_kv_tokens([candidate, *later]) >= peak_kv_tokens(running) - 1


def test_a_short_request_finishes_before_the_peak_of_a_long_one() -> None:
    running = [KvDemand(tokens=100, remaining=50)]
    assert peak_kv_tokens([*running, KvDemand(20, 10)]) == 150
    assert peak_kv_tokens([*running, KvDemand(20, 100)]) == 220


def test_a_longer_answer_counts_at_the_next_level_of_its_prediction() -> None:
    levels = predicted_lengths(np.log(100.0), 0.5, 8192, 0.9)[0].tolist()
    prediction = LogT(float(np.log(100.0)), 0.5, 8192)
    assert len(levels) == PREDICTED_LENGTHS
    assert levels[-1] == 8192
    assert levels[:2] == [np.ceil(prediction.quantile(0.9)), np.ceil(prediction.quantile(0.95))]
    assert predicted_remaining(levels, 30) == levels[0] - 30
    assert predicted_remaining(levels, levels[0]) == levels[1] - levels[0]
    assert predicted_remaining(levels, 9000) == 1


Prediction = tuple[float, float, int, int]
"""mu, sigma, tokens held and generated."""
prediction = st.tuples(st.floats(1.0, 7.0), st.floats(0.0, 1.5), st.integers(1, 900), st.integers(0, 3000))
predictions = st.lists(prediction, min_size=1, max_size=8)


def joint(requests: list[Prediction], sigmas: float, cap: int = 4000) -> float:
    mu, sigma, held, generated = zip(*requests, strict=True)
    return joint_kv_tokens(mu, sigma, [cap] * len(mu), held, generated, sigmas)


@given(predictions, st.floats(0.0, 4.0), st.floats(0.0, 2.0))
def test_the_joint_memory_grows_with_requests_quantile_and_held_tokens(
    requests: list[Prediction], sigmas: float, more: float
) -> None:
    least = joint(requests, sigmas)
    assert least <= joint(requests, sigmas + more)
    assert least <= joint([*requests, requests[0]], sigmas)
    assert least <= joint([(mu, sigma, held + 10, done) for mu, sigma, held, done in requests], sigmas)


@given(predictions)
def test_the_joint_memory_never_exceeds_that_of_all_at_their_caps(
    requests: list[Prediction],
) -> None:
    grown = sum(held + max(0, 4000 - generated) for _, _, held, generated in requests)
    assert joint(requests, 0.0) <= grown


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=8))
def test_with_known_lengths_the_joint_memory_is_close_to_the_peak(known: list[tuple[int, int]]) -> None:
    requests = [(float(np.log(length)), 0.0, held, 0) for held, length in known]
    peak = peak_kv_tokens([KvDemand(held, length) for held, length in known])
    assert 0.8 * peak - 2 * len(known) <= joint(requests, 3.0) <= peak + len(known)


def test_many_wide_predictions_take_less_together_than_each_at_a_high_quantile() -> None:
    jobs = [Job(str(n), 0.0, prompt_tokens=100, prediction=LogT(5.5, 0.8, cap=4000)) for n in range(40)]
    together = joint([(job.mu, job.sigma, 100, 0) for job in jobs], 2.576)
    length = int(predicted_lengths(5.5, 0.8, 4000, 0.9)[0, 0])
    assert together < 0.7 * peak_kv_tokens([KvDemand(100, length)] * len(jobs))


def test_a_request_waits_until_the_joint_memory_fits() -> None:
    known = [Job(str(n), 0.0, prompt_tokens=50, prediction=Point(100.0, cap=4000)) for n in range(3)]
    rule = JointAdmission(400, quantile=0.995)
    assert rule.admits(known[0], [], [])
    assert rule.admits(known[0], known[1:2], [90])
    assert rule.admits(known[0], known[1:], [99, 99]), "they end before it grows"
    assert not rule.admits(known[0], known[1:], [0, 0])


def test_an_answer_that_has_outlived_its_prediction_still_needs_memory() -> None:
    short = Job("a", 0.0, prompt_tokens=10, prediction=LogT(2.0, 0.3, cap=4000))
    held = 1000.0
    assert joint([(short.mu, short.sigma, int(held), 990)], 2.0) > held + 200
