from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lengthwise.training.encoder.ensemble import Member, scores_of, soft_targets
from lengthwise.training.encoder.pack import HELD_OUT, Pack

P, L, K = 400, 2, 10


def pack(spread: float) -> Pack:
    """Lengths near exp(5) that do not depend on the prompt."""
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
    shifted = outputs(5.0)
    shifted[:200, :, 0] += 2.0
    soft = soft_targets([Member(outputs(5.0), saw), Member(shifted, saw)], pack(0.3))
    assert soft[:200, :, 1].min() > soft[200:, :, 1].max() + 0.5


def test_a_target_leans_to_the_teacher_that_did_not_see_the_prompt() -> None:
    everything, nothing = np.ones(P, bool), np.zeros(P, bool)
    members = [Member(outputs(4.0), everything), Member(outputs(6.0), nothing)]
    for oof, expected in ((0.0, 5.0), (1.0, 6.0)):
        np.testing.assert_allclose(soft_targets(members, pack(0.3), oof=oof)[..., 0], expected, atol=1e-6)


def test_a_head_without_a_spread_is_scored_by_its_order_alone() -> None:
    found = pack(0.3)
    mean = found.lengths.astype(np.float64).mean(axis=2)
    score = np.concatenate([mean, mean[:, :1]], axis=1)[..., None]
    assert scores_of(score / 100, found, kind="rank")["held_out"].keys() == {"tau", "mae"}
    assert scores_of(score / 100, found, kind="rank")["held_out"]["tau"] == 1.0
    logt = outputs(5.0) + np.pad(score, ((0, 0), (0, 0), (0, 3)))
    assert "calibrated" in scores_of(logt, found)["held_out"]
