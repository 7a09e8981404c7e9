from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments.heads import Rank
from lengthwise.training.encoder.ensemble import Member, scores_of, soft_targets
from lengthwise.training.encoder.pack import HELD_OUT, TRAIN, Pack
from lengthwise.training.encoder.trainer import fitted_variance

P, L, K = 400, 2, 10


def pack(spread: float) -> Pack:
    """Return a pack with lengths near exp(5) that do not depend on the prompt."""
    rng = np.random.default_rng(0)
    lengths = np.exp(5 + spread * rng.standard_t(3.5, (P, L, K))).clip(1, 10_000).astype(np.int16)
    empty = np.zeros(P, np.int8)
    return Pack(
        tokens=np.zeros(P, np.uint16), offsets=np.arange(P + 1), sizes=np.ones(P, np.int32), lengths=lengths,
        censored=np.zeros(lengths.shape, bool), fitted=np.zeros((P, L, 2), np.float16), corpus=empty,
        part=np.full(P, HELD_OUT, np.int8), fold=empty, features=np.zeros((L + 1, 3), np.float32),
        stated=np.zeros((P, 16), np.float32),
        llms=("a", "b"), corpora=("c",), pad_id=0, mask_id=1,
    )  # fmt: skip


def outputs(mu: float, log_sigma: float = -1.0) -> NDArray[np.float32]:
    return np.tile(np.array([mu, log_sigma, mu, 3.0], np.float32), (P, L + 1, 1))


def test_a_target_is_wider_where_teachers_disagree() -> None:
    saw = np.zeros(P, bool)
    shifted = outputs(5.0)
    shifted[:200, :, 0] += 2.0
    soft = soft_targets([Member(outputs(5.0), saw), Member(shifted, saw)], pack(0.3))
    assert soft[:200, :, 1].min() > soft[200:, :, 1].max() + 0.5


def test_a_target_weights_the_teacher_that_was_not_trained_on_the_prompt() -> None:
    everything, nothing = np.ones(P, bool), np.zeros(P, bool)
    members = [Member(outputs(4.0), everything), Member(outputs(6.0), nothing)]
    for oof, expected in ((0.0, 5.0), (1.0, 6.0)):
        np.testing.assert_allclose(soft_targets(members, pack(0.3), oof=oof)[..., 0], expected, atol=1e-6)


def test_a_head_without_a_spread_has_no_calibration_scores() -> None:
    found = pack(0.3)
    mean = found.lengths.astype(np.float64).mean(axis=2)
    score = np.concatenate([mean, mean[:, :1]], axis=1)[..., None]
    ranked = scores_of(score / 100, found, Rank())["held_out"]
    assert ranked.keys() == {"tau", "mae"}
    assert ranked["tau"] == 1.0
    logt = outputs(0.0)
    logt[..., 0] = np.log(score[..., 0])
    assert "calibrated" in scores_of(logt, found)["held_out"]


def test_fits_are_scaled_by_their_variance_over_the_training_pairs() -> None:
    fits = np.random.default_rng(1).uniform((4, 0.1), (7, 0.9), (P, L, 2)).astype(np.float16)
    fits[:9] = np.nan
    made = replace(pack(0.3), fitted=fits, part=np.full(P, TRAIN, np.int8))
    mu, sigma = fitted_variance(made)
    assert mu == fits[9:, :, 0].astype(float).var()
    assert sigma == np.log1p(fits[9:, :, 1].astype(float)).var()
    assert fitted_variance(pack(0.3)) == (1.0, 1.0)
