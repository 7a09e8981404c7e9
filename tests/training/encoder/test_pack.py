"""Bins of a classifier, levels of sources and weights of prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lengthwise.predictors import scores
from lengthwise.training.encoder.config import HeadConfig
from lengthwise.training.encoder.pack import TEST, TRAIN, Pack, bin_edges


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
