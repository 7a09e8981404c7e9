"""Bins of a classifier."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from lengthwise.training.encoder.config import HeadConfig
from lengthwise.training.encoder.pack import TEST, TRAIN, Pack, bin_edges


def pack(lengths: np.ndarray[Any, Any], part: list[int]) -> Pack:
    """Return the part of a pack that `bin_edges` reads."""
    return cast("Pack", SimpleNamespace(lengths=lengths, part=np.array(part)))


def test_bins_hold_equally_many_training_prompts_and_ignore_the_others() -> None:
    lengths = np.arange(1, 1101, dtype=np.int16).reshape(1100, 1, 1)
    edges = bin_edges(HeadConfig(kind="bins", bin_count=20), pack(lengths, [TRAIN] * 1000 + [TEST] * 100))
    assert edges is not None
    assert np.histogram(lengths[:1000], edges)[0].tolist() == [50] * 20
