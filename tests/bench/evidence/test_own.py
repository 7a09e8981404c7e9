from __future__ import annotations

import numpy as np
import pytest

from lengthwise.bench.evidence.own import noise_ceiling, request_seed
from lengthwise.workloads import LengthSamples


def samples(lengths: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> LengthSamples:
    n = len(lengths)
    columns = {
        "corpus": ["c"] * n,
        "prompt_id": [str(row) for row in range(n)],
        "llm": ["m"] * n,
        "input_tokens": [5] * n,
        "lengths": lengths.tolist(),
    }
    return LengthSamples.from_table(columns, origin="test")


def test_answers_without_noise_have_no_ceiling_below_one_and_pure_noise_has_none() -> None:
    rng = np.random.default_rng(0)
    typical = np.round(np.exp(rng.normal(4, 1, 400))).astype(np.int64) + 1
    assert noise_ceiling(samples(np.stack([typical, typical], axis=1)))["tau_at_best"] == pytest.approx(1.0)
    chance = np.round(np.exp(rng.normal(4, 1, (400, 2)))).astype(np.int64) + 1
    assert noise_ceiling(samples(chance))["tau_at_best"] < 0.3


def test_the_ceiling_is_what_a_predictor_of_the_typical_length_reaches() -> None:
    from scipy import stats

    rng = np.random.default_rng(1)
    typical = rng.normal(5, 0.6, 4000)
    answers = np.round(np.exp(typical[:, None] + rng.normal(0, 0.5, (4000, 2)))).astype(np.int64) + 1
    reached = stats.kendalltau(typical, answers[:, 0]).statistic
    assert noise_ceiling(samples(answers))["tau_at_best"] == pytest.approx(reached, abs=0.02)


def test_seeds_are_the_same_again_and_differ_by_request_and_repeat() -> None:
    assert request_seed(0, 1) == request_seed(0, 1)
    assert len({request_seed(seed, row) for seed in range(3) for row in range(100)}) == 300
