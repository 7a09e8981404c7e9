"""The fit of novelty finds the variance between kinds, and centres stand for clusters of prompts."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.training.fast.novelty import Errors, fit_centres, fit_factor, fit_novelty

SIGMA = 0.3


def errors(rng: np.random.Generator, distance: float, level: float, pairs: int = 200) -> Errors:
    """Return errors of log-t predictions of a kind whose answers differ by `level`."""
    error = level + SIGMA * rng.standard_t(3.5, (pairs, 2))
    return Errors(error, np.ones(error.shape, bool), np.full(pairs, SIGMA), rng.normal(distance, 0.03, pairs))


def test_the_fit_finds_the_variance_of_the_level_between_kinds_and_leaves_known_kinds_alone() -> None:
    rng = np.random.default_rng(0)
    levels = np.array([-1.6, -1.1, -0.7, -0.3, -0.1, 0.1, 0.3, 0.7, 1.1, 1.6])
    left, trained = [errors(rng, 0.7, level) for level in levels], [errors(rng, 0.2, 0.0, 1_000)]
    novelty = fit_novelty(np.eye(2, dtype=np.float32), left, trained)
    assert novelty.spread == pytest.approx(levels.std(), rel=0.35)
    np.testing.assert_allclose(trained[0].spread(novelty), SIGMA, rtol=0.05)
    assert np.mean([each.covered(each.sigma) for each in left]) < 0.6
    assert 0.85 <= np.mean([each.covered(each.spread(novelty)) for each in left]) <= 0.99


def test_a_factor_for_all_widens_known_kinds_as_much_as_new_ones() -> None:
    rng = np.random.default_rng(1)
    left, trained = [errors(rng, 0.7, level) for level in (-1.5, 0.0, 1.5)], [errors(rng, 0.2, 0.0)]
    assert fit_factor(left, trained) > 1.2
    assert trained[0].covered(trained[0].sigma * fit_factor(left, trained)) > 0.93


def test_centres_are_unit_vectors_and_every_cluster_has_one() -> None:
    rng = np.random.default_rng(2)
    kind = np.repeat(np.arange(4), [200, 200, 200, 10])
    vectors = np.eye(6)[kind] + rng.normal(0.0, 0.05, (len(kind), 6))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    centres = fit_centres(vectors, kind, number=16)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1.0, rtol=1e-5)
    assert (vectors @ centres.T).max(axis=1).min() > 0.9
