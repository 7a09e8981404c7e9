"""Bins of a classifier, levels of sources and weights of prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lengthwise.predictors import scores
from lengthwise.training.encoder.config import HeadConfig
from lengthwise.training.encoder.pack import TEST, TRAIN, Pack, bin_edges
from lengthwise.training.encoder.trainer import prompt_weights


def pack(lengths: np.ndarray[Any, Any], part: list[int]) -> Pack:
    """Only what edges are taken from."""
    return cast("Pack", SimpleNamespace(lengths=lengths, part=np.array(part)))


def test_mu_serves_edges_are_the_percentiles_that_evaluation_cuts_at() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 3000, (400, 1, 5)).astype(np.int16)
    lengths[300:] = 30_000  # test prompts, which no edge may know
    edges = bin_edges(HeadConfig(kind="bins", bins="mu_serve"), pack(lengths, [TRAIN] * 300 + [TEST] * 100))
    assert edges is not None
    assert edges[1:-1] == pytest.approx(scores.mu_serve(lengths[:300].mean(axis=-1)))
    assert len(edges) == 6


def test_bins_of_equal_mass_hold_as_much_each() -> None:
    lengths = np.arange(1, 1001, dtype=np.int16).reshape(1000, 1, 1)
    edges = bin_edges(HeadConfig(kind="bins", bins="equal_mass", bin_count=20), pack(lengths, [TRAIN] * 1000))
    assert edges is not None
    assert np.histogram(lengths, edges)[0].tolist() == [50] * 20


def diverse_pack(lengths: np.ndarray[Any, Any]) -> Pack:
    """Prompts of one corpus of CASTILLO and of two other sources, a third each."""
    prompts, llms, _ = lengths.shape
    return Pack(
        tokens=np.zeros(prompts, np.uint16),
        offsets=np.arange(prompts + 1),
        sizes=np.ones(prompts, np.int32),
        lengths=lengths.astype(np.int16),
        censored=np.zeros(lengths.shape, np.bool_),
        fitted=np.full((prompts, llms, 2), np.nan, np.float16),
        corpus=np.repeat(np.arange(3, dtype=np.int8), prompts // 3),
        part=np.full(prompts, TRAIN, np.int8),
        fold=np.zeros(prompts, np.int8),
        features=np.zeros((llms + 1, 1), np.float32),
        llms=tuple(f"llm-{number}" for number in range(llms)),
        corpora=("Apps", "chat", "writing"),
        pad_id=0,
        mask_id=1,
    )


def test_levelled_sources_keep_their_order_and_lose_their_level() -> None:
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.normal(5.0, 0.5, (60, 2, 4)))
    lengths[20:40] *= 3.0
    lengths[40:, 1] = 0.0
    given = diverse_pack(lengths)
    levelled = given.levelled(1.0)
    assert (levelled.lengths[:20] == given.lengths[:20]).all(), "CASTILLO's level is that of its LLMs"
    assert (levelled.lengths[40:, 1] == 0).all()
    logs = np.log(levelled.lengths.astype(float), where=levelled.lengths > 0, out=np.zeros(lengths.shape))
    assert logs[20:40].mean((0, 2)) == pytest.approx(logs[40:, 0].mean(), abs=0.01)
    ratio = levelled.lengths[20:40] / given.lengths[20:40]
    assert ratio == pytest.approx(np.broadcast_to(ratio.mean((0, 2), keepdims=True), ratio.shape), rel=0.05)
    assert (given.levelled(0.0).lengths == given.lengths).all()


def test_half_of_the_weight_is_castillos() -> None:
    weights = prompt_weights(diverse_pack(np.full((60, 1, 1), 100.0)), "half_castillo")
    assert weights[:20].sum() == pytest.approx(weights[20:].sum())
    assert weights.mean() == pytest.approx(1.0)
