"""Goodness of fit, the likelihood ratio of tails, and the Hill estimate."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from experiments.length_families.families import FAMILIES
from experiments.length_families.goodness import (
    held_out,
    hill,
    ks_critical,
    ks_passes_plain,
    ks_statistic,
    log_evidence,
    means_by_cluster,
    power,
    split_halves,
    survival,
    unround,
)
from lengthwise.lengths.families import LOGNORMAL, LOGT, Family
from lengthwise.lengths.fit import fit_rows

RNG_SEED = 5
TYPICAL = np.tile([5.8, 0.2, 3.5], (600, 1))


def lengths(family: Family, count: int = 10) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    drawn = np.rint(family.draw(np.random.default_rng(RNG_SEED), TYPICAL, count))
    return drawn.reshape(len(TYPICAL), count)


def test_the_plain_statistic_is_that_of_scipy() -> None:
    x = lengths(LOGNORMAL)[:5]
    fits = fit_rows(LOGNORMAL, x)
    present = np.ones(x.shape, bool)
    found = ks_statistic(fits, x, present, width=0.0)
    for row, params, statistic in zip(x, fits.params, found, strict=True):
        theirs = stats.kstest(np.log(row), stats.norm(params[0], params[1]).cdf)
        assert statistic == pytest.approx(theirs.statistic, rel=1e-9)


def test_the_rounded_statistic_is_small_for_ties_by_rounding() -> None:
    x = np.array([[56.0, 57, 57, 57, 57, 57, 57, 57, 58, 58]])
    fits = fit_rows(LOGNORMAL, x)
    present = np.ones(x.shape, bool)
    assert ks_statistic(fits, x, present)[0] < 0.1 < 0.25 < ks_statistic(fits, x, present, width=0.0)[0]


def test_absent_samples_do_not_count_in_the_statistic() -> None:
    x = np.array([[90.0, 110, 130, 180, 9999]])
    some = x < 9999
    fits = fit_rows(LOGT, x, some)
    alone = ks_statistic(fits, x[:, :4], np.ones((1, 4), bool))
    np.testing.assert_allclose(ks_statistic(fits, x, some), alone)


def test_passing_is_a_pvalue_above_five_percent() -> None:
    statistic = np.linspace(0.05, 0.9, 40)
    count = np.tile([5, 10], 20)
    np.testing.assert_array_equal(ks_passes_plain(statistic, count), stats.kstwo.sf(statistic, count) > 0.05)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_refitted_test_rejects_the_truth_in_five_of_a_hundred_rows(family: Family) -> None:
    """The plain test almost never rejects: refitting corrects its optimism."""
    data = np.maximum(np.rint(LOGNORMAL.draw(np.random.default_rng(1), TYPICAL, 10)), 1)
    params = fit_rows(family, data).params
    x = np.maximum(np.rint(family.draw(np.random.default_rng(2), params, 10)), 1)
    present = np.ones(x.shape, bool)
    fits = fit_rows(family, x)
    critical = ks_critical(family, params, 10, np.random.default_rng(3), draws=600)
    passed = np.mean(ks_statistic(fits, x, present) <= critical)
    assert 0.91 < passed < 0.985
    assert ks_passes_plain(ks_statistic(fits, x, present, width=0.0), present.sum(axis=1)).mean() > 0.985


def test_halves_are_disjoint_and_cover_all_samples() -> None:
    present = np.random.default_rng(0).random((50, 10)) < 0.8
    first, second = split_halves(present)
    np.testing.assert_array_equal(first | second, present)
    assert not np.any(first & second)
    assert np.all(np.abs(first.sum(axis=1) - second.sum(axis=1)) <= 1)


def test_held_out_scores_are_log_probabilities_of_the_other_half() -> None:
    x = lengths(LOGT)[:3]
    present = np.ones(x.shape, bool)
    score = held_out(LOGT, x, present)
    by_hand = 0.0
    for known, unseen in ((x[:1, ::2], x[0, 1::2]), (x[:1, 1::2], x[0, ::2])):
        mu, sigma, nu = fit_rows(LOGT, known).params[0]
        prediction = stats.t(nu, loc=mu, scale=sigma)
        for n in unseen:
            probability = prediction.cdf(np.log(n + 0.5)) - prediction.cdf(np.log(n - 0.5))
            anywhere = np.log((n + 0.5) / (n - 0.5)) / np.log(2 * 131_072)
            by_hand += np.log(0.999 * probability + 0.001 * anywhere)
    assert score.total[0] == pytest.approx(by_hand, rel=1e-6)
    assert score.usable.all()


def test_a_half_of_one_length_is_not_usable() -> None:
    x = np.array([[57.0, 50, 57, 60, 57, 70]])
    assert not held_out(LOGNORMAL, x, np.ones(x.shape, bool)).usable[0]


def test_from_five_samples_the_heavier_tail_wins_even_where_the_truth_is_log_normal() -> None:
    """Hence held-out gains are read together with `log_evidence`."""
    x = lengths(LOGNORMAL)
    present = np.ones(x.shape, bool)
    gain = held_out(LOGT, x, present).total - held_out(LOGNORMAL, x, present).total
    assert gain.sum() / x.size > 0.1


def test_clusters_of_equal_rows_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=200)
    repeated = np.repeat(values, 10)[:, None]
    ones = np.ones(2000, np.int64)
    [as_rows] = means_by_cluster(repeated, ones, np.arange(2000), rng)
    [as_prompts] = means_by_cluster(repeated, ones, np.repeat(np.arange(200), 10), rng)
    assert as_rows.estimate == pytest.approx(values.mean())
    assert (as_prompts.high - as_prompts.low) > 2.5 * (as_rows.high - as_rows.low)
    assert as_prompts.low < values.mean() < as_prompts.high


TYPICAL = np.tile([5.8, 0.2, 3.5], (800, 1))


def gain(truth: Family, nu: float) -> float:
    rng = np.random.default_rng(4)
    x = unround(np.rint(truth.draw(rng, TYPICAL, 10)), rng)
    present = np.ones(x.shape, bool)
    centre = fit_rows(LOGT, x)
    return float(np.mean(log_evidence(nu, x, present, centre) - log_evidence(np.inf, x, present, centre)))


@pytest.mark.parametrize("nu", [2.0, 3.5, 12.0])
def test_the_evidence_is_the_double_integral(nu: float) -> None:
    y = np.array([5.1, 5.3, 5.35, 5.5, 6.4])
    x = np.exp(y)[None, :]
    centre = fit_rows(LOGT, x, width=0.01)

    mu = np.linspace(1, 10, 1801)
    log_sigma = np.linspace(-5, 3.5, 171)
    slices = [stats.t.logpdf((y[:, None] - mu) / np.exp(s), nu).sum(axis=0) - len(y) * s for s in log_sigma]
    area = integrate.trapezoid(integrate.trapezoid(np.exp(slices), mu, axis=1), log_sigma)
    assert log_evidence(nu, x, np.ones(x.shape, bool), centre)[0] == pytest.approx(np.log(area), abs=2e-3)


@pytest.mark.parametrize("samples", [5, 10, 20, 256])
def test_the_evidence_tends_to_the_log_normals_closed_form(samples: int) -> None:
    x = LOGT.draw(np.random.default_rng(0), TYPICAL[:20], samples)
    present = np.ones(x.shape, bool)
    centre = fit_rows(LOGT, x)
    far = log_evidence(1e7, x, present, centre)
    np.testing.assert_allclose(far, log_evidence(np.inf, x, present, centre), atol=1e-3)


def test_absent_samples_do_not_count() -> None:
    x = np.array([[90.0, 110, 130, 180, 9999]])
    some = x < 9999
    centre = fit_rows(LOGT, x, some)
    for nu in (3.5, np.inf):
        alone = log_evidence(nu, x[:, :4], np.ones((1, 4), bool), centre)
        np.testing.assert_allclose(log_evidence(nu, x, some, centre), alone)


def test_ten_samples_of_many_prompts_separate_the_tails() -> None:
    assert gain(LOGNORMAL, 3.5) < -0.1
    assert gain(LOGT, 3.5) > 0.15


def test_the_true_nu_scores_best() -> None:
    at_truth = gain(LOGT, 3.5)
    assert at_truth > gain(LOGT, 1.5)
    assert at_truth > gain(LOGT, 20.0)


def test_survival_is_the_share_above() -> None:
    x, above = survival(np.array([1.0, 2.0, 2.0, 5.0]))
    assert x.tolist() == [1.0, 2.0]  # the share above 5 is 0, which a log plot cannot show
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


def test_hill_accepts_few_and_equal_values() -> None:
    assert len(hill(np.full(30, 5.0)).k) > 0


def test_ten_samples_per_prompt_separate_the_families_together_but_not_by_ks() -> None:
    normal, student = power(5.8, 0.15, np.random.default_rng(0), samples=(10,), prompts=300)
    for truth in (normal, student):
        assert min(truth.passes_plain.values()) > 0.97
        assert set(truth.passes_plain) == {family.name for family in FAMILIES}
    assert student.passes_refitted[LOGNORMAL.name] > 0.75
    assert normal.held_out_gain[LOGT.name] > 0  # the wrong answer
    assert normal.evidence_gain + 3 * normal.evidence_error < 0 < student.evidence_gain - 3 * student.evidence_error
