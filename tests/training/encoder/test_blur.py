"""Classes whose neighbours are aimed at a little too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from lengthwise.training.encoder.config import parse_config  # noqa: E402
from lengthwise.training.encoder.losses import _blurring, label_loss  # noqa: E402

EDGES = torch.tensor([0.0, 10.0, 20.0, 30.0, 40.0, 15_000.0])


def loss(logits: Any, mean: float, blur: float) -> float:
    lengths = torch.full((1, 1, 1), mean)
    targets: Any = SimpleNamespace(log_lengths=lengths.log(), mean=lengths[..., 0], present=lengths > 0)
    config = parse_config({"head": {"kind": "bins", "blur": blur}})
    return float(label_loss(logits.reshape(1, 1, -1), targets, config, EDGES))


@settings(max_examples=30, deadline=None)
@given(bins=st.integers(2, 40), spread=st.floats(0.2, 5.0))
def test_what_is_aimed_at_sums_to_one_and_is_most_at_the_right_bin(bins: int, spread: float) -> None:
    aims = _blurring(bins, spread)
    torch.testing.assert_close(aims.sum(0), torch.ones(bins))
    assert (aims.argmax(0) == torch.arange(bins)).all()


@settings(max_examples=30, deadline=None)
@given(logits=st.lists(st.floats(-3, 3), min_size=5, max_size=5), mean=st.floats(1, 100))
def test_a_narrow_blur_is_the_plain_cross_entropy(logits: list[float], mean: float) -> None:
    said = torch.tensor(logits)
    assert loss(said, mean, 0.05) == pytest.approx(loss(said, mean, 0.0), abs=1e-4)


def test_a_near_miss_costs_less_than_a_far_one() -> None:
    near, far = (torch.tensor(row) for row in ([0.0, 5.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 5.0, 0.0]))
    assert loss(near, 5.0, 0.7) < loss(far, 5.0, 0.7)
    assert loss(near, 5.0, 0.0) == pytest.approx(loss(far, 5.0, 0.0))
