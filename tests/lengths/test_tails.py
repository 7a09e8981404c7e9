"""Survival, Hill, and the simulated truths."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.lengths.families import FAMILIES, LOGNORMAL, LOGT
from lengthwise.lengths.goodness import hill, power, survival


def test_survival_is_the_share_above() -> None:
    x, above = survival(np.array([1.0, 2.0, 2.0, 5.0]))
    assert x.tolist() == [1.0, 2.0]  # nothing lies above 5, and the logarithm of nothing is no point on a plot
    assert above.tolist() == [0.75, 0.25]


def test_survival_of_many_values_keeps_both_ends() -> None:
    values = np.random.default_rng(0).pareto(2.0, 50_000) + 1
    x, above = survival(values, points=100)
    assert len(x) <= 100
    assert above[-1] == pytest.approx(1 / 50_000)
    np.testing.assert_allclose(above, [(values > at).mean() for at in x])


def test_hill_finds_the_power_of_a_power_tail() -> None:
    values = np.random.default_rng(0).pareto(1.7, 100_000) + 1
    curve = hill(values)
    for k in (100, 1000, 10_000):
        alpha, low, high = curve.at(k)
        assert low < 1.7 < high
        assert alpha == pytest.approx(1.7, rel=0.25)


def test_hill_keeps_rising_on_a_log_normal() -> None:
    values = np.exp(np.random.default_rng(0).normal(size=100_000))
    curve = hill(values)
    assert curve.at(100)[0] > 1.3 * curve.at(10_000)[0]


def test_hill_bears_few_and_equal_values() -> None:
    assert len(hill(np.full(30, 5.0)).k) > 0


def test_ten_samples_per_prompt_cannot_tell_the_families_apart_by_ks_but_together_they_can() -> None:
    normal, student = power(5.8, 0.15, np.random.default_rng(0), samples=(10,), prompts=300)
    for truth in (normal, student):
        assert min(truth.passes_plain.values()) > 0.97
        assert set(truth.passes_plain) == {family.name for family in FAMILIES}
    assert student.passes_refitted[LOGNORMAL.name] > 0.75
    assert normal.held_out_gain[LOGT.name] > 0  # the wrong answer
    assert normal.evidence_gain + 3 * normal.evidence_error < 0 < student.evidence_gain - 3 * student.evidence_error
