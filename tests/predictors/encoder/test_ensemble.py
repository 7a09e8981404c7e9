from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lengthwise.predictors.encoder.calibration import Calibration, calibrate
from lengthwise.predictors.encoder.ensemble import Member, soft_targets
from lengthwise.predictors.encoder.metrics import kendall_tau
from lengthwise.predictors.encoder.pack import HELD_OUT, Pack

if TYPE_CHECKING:
    from numpy.typing import NDArray

P, L, K = 400, 2, 10


def pack(spread: float) -> Pack:
    """Lengths about exp(5), with a spread; of prompts that say nothing."""
    rng = np.random.default_rng(0)
    lengths = np.exp(5 + spread * rng.standard_t(3.5, (P, L, K))).clip(1, 10_000).astype(np.int16)
    empty = np.zeros(P, np.int8)
    return Pack(
        tokens=np.zeros(P, np.uint16), offsets=np.arange(P + 1), sizes=np.ones(P, np.int32), lengths=lengths,
        censored=np.zeros(lengths.shape, bool), fitted=np.zeros((P, L, 2), np.float16), corpus=empty,
        part=np.full(P, HELD_OUT, np.int8), fold=empty, features=np.zeros((L + 1, 3), np.float32),
        llms=("a", "b"), corpora=("c",), pad_id=0, mask_id=1,
    )  # fmt: skip


def outputs(mu: float, log_sigma: float = -1.0) -> NDArray[np.float32]:
    return np.tile(np.array([mu, log_sigma, mu, 3.0], np.float32), (P, L + 1, 1))


def test_a_target_is_wider_where_teachers_disagree() -> None:
    saw = np.zeros(P, bool)
    apart = outputs(5.0)
    apart[:200, :, 0] += 2.0
    soft = soft_targets([Member(outputs(5.0), saw), Member(apart, saw)], pack(0.3))
    assert soft[:200, :, 1].min() > soft[200:, :, 1].max() + 0.5


def test_a_target_leans_to_the_teacher_that_did_not_see_the_prompt() -> None:
    everything, nothing = np.ones(P, bool), np.zeros(P, bool)
    members = [Member(outputs(4.0), everything), Member(outputs(6.0), nothing)]
    for oof, expected in ((0.0, 5.0), (1.0, 6.0)):
        np.testing.assert_allclose(soft_targets(members, pack(0.3), oof=oof)[..., 0], expected, atol=1e-6)


def test_calibration_mends_place_and_spread() -> None:
    data = pack(0.4)
    fixed = calibrate(outputs(4.5, -3.0), "logt", data, np.arange(P))
    mu, sigma = fixed.apply(outputs(4.5, -3.0)[:, 0], np.zeros(P, np.int64), "logt")
    assert fixed.nu in (3.0, 3.5, 4.0)
    assert abs(mu[0] - 5.0) < 0.03
    assert abs(sigma[0] - 0.4) < 0.04


def test_an_llm_with_few_held_out_prompts_takes_what_all_say() -> None:
    data = pack(0.4)
    lengths = data.lengths.copy()
    lengths[10:, 1] = 0
    lengths[:10, 1] = 3000
    fixed = calibrate(outputs(5.0), "logt", replace(data, lengths=lengths), np.arange(P))
    assert abs(fixed.shift[1]) < 0.1


def test_calibration_survives_its_file() -> None:
    fixed = Calibration(np.array([0.1, 0.2]), np.array([1.0, 2.0]), 5.0, np.array([[0.0, 1.0], [4.0, 5.0]]))
    again = Calibration.of_json(fixed.to_json())
    assert again.shift.tolist() == fixed.shift.tolist()
    assert again.nu == 5.0
    assert again.knots is not None
    assert again.knots.tolist() == [[0.0, 1.0], [4.0, 5.0]]


def test_tau_counts_ties_as_tau_b_does() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, 50).astype(float), rng.integers(0, 9, 50).astype(float)
    assert abs(kendall_tau(x, y) - stats.kendalltau(x, y).statistic) < 1e-12
