"""Scores of classes of length against hand computations."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import class_scores


@given(st.lists(st.integers(1, 5_000), min_size=3, max_size=40, unique=True))
def test_a_perfect_prediction_scores_perfectly(lengths: list[int]) -> None:
    edges = class_scores.equal_mass(lengths, 3)
    true = class_scores.classes(lengths, edges)
    found = class_scores.classification(true, true, np.eye(len(edges) + 1)[true])
    assert dataclasses.astuple(found) == pytest.approx([1.0] * 6)


def test_class_scores_by_hand() -> None:
    true, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 0])
    found = class_scores.classification(true, predicted)
    assert (found.accuracy, found.recall) == pytest.approx((4 / 6, 4 / 6))
    assert found.precision == pytest.approx((3 * 2 / 3 + 2 * 2 / 3 + 0) / 6)
    assert found.f1 == pytest.approx((3 * 2 / 3 + 2 * 4 / 5 + 0) / 6)
    # Gorodkin: (c s - sum p t) / sqrt((s^2 - sum p^2)(s^2 - sum t^2)), s 6, c 4, p (3, 3, 0), t (3, 2, 1).
    assert found.mcc == pytest.approx((4 * 6 - 15) / math.sqrt((36 - 18) * (36 - 14)))
    assert math.isnan(found.auroc)


def test_a_constant_class_has_no_correlation() -> None:
    found = class_scores.classification(np.array([0, 0, 0, 1]), np.zeros(4, np.intp))
    assert found.accuracy == 0.75
    assert found.mcc == 0.0


def test_auroc_by_hand_with_a_tie() -> None:
    # Positives 0.9 and 0.4, negatives 0.4 and 0.1: three of four pairs are ordered and one is tied.
    positive = np.array([0.9, 0.4, 0.4, 0.1])
    both = np.column_stack([1 - positive, positive])
    assert class_scores.auroc(np.array([1, 1, 0, 0]), both) == pytest.approx(3.5 / 4)


def test_constant_probabilities_have_an_auroc_of_one_half() -> None:
    assert class_scores.auroc(np.array([0, 1, 2, 1]), np.tile([0.2, 0.5, 0.3], (4, 1))) == pytest.approx(0.5)


def test_a_length_on_an_edge_is_in_the_bin_above() -> None:
    edges = class_scores.equal_width(50, 220)
    assert edges.tolist() == [50, 100, 150, 200]
    assert class_scores.classes([1, 49.9, 50, 220, 9_999], edges).tolist() == [0, 0, 1, 4, 4]


def test_equal_mass_bins_hold_equal_shares() -> None:
    lengths = np.random.default_rng(0).lognormal(5, 1, 10_000)
    share = np.bincount(class_scores.classes(lengths, class_scores.equal_mass(lengths, 20))) / len(lengths)
    assert len(share) == 20
    assert share == pytest.approx(0.05, abs=0.001)


def test_mu_serves_last_class_is_the_longest_percent() -> None:
    lengths = np.arange(1, 10_001)
    counts = np.bincount(class_scores.classes(lengths, class_scores.mu_serve(lengths)))
    assert (counts / len(lengths)).tolist() == pytest.approx([0.25, 0.25, 0.25, 0.24, 0.01], abs=1e-3)
