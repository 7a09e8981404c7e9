"""The integrated likelihood: right by quadrature, and fair where held-out scores are not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from lengthwise.lengths.families import LOGNORMAL, LOGT, Family
from lengthwise.lengths.fit import fit_rows
from lengthwise.lengths.goodness import log_evidence, unround

TYPICAL = np.tile([5.8, 0.2, 3.5], (800, 1))


def gain(truth: Family, nu: float) -> float:
    rng = np.random.default_rng(4)
    x = unround(np.rint(truth.draw(rng, TYPICAL, 10)), rng)
    everything = np.ones(x.shape, bool)
    centre = fit_rows(LOGT, x)
    return float(np.mean(log_evidence(nu, x, everything, centre) - log_evidence(np.inf, x, everything, centre)))


@pytest.mark.parametrize("nu", [2.0, 3.5, 12.0])
def test_it_is_the_double_integral_it_says_it_is(nu: float) -> None:
    y = np.array([5.1, 5.3, 5.35, 5.5, 6.4])
    x = np.exp(y)[None, :]
    centre = fit_rows(LOGT, x, width=0.01)

    mu = np.linspace(1, 10, 1801)
    log_sigma = np.linspace(-5, 3.5, 171)
    slices = [stats.t.logpdf((y[:, None] - mu) / np.exp(s), nu).sum(axis=0) - len(y) * s for s in log_sigma]
    area = integrate.trapezoid(integrate.trapezoid(np.exp(slices), mu, axis=1), log_sigma)
    assert log_evidence(nu, x, np.ones(x.shape, bool), centre)[0] == pytest.approx(np.log(area), abs=2e-3)


@pytest.mark.parametrize("samples", [5, 10, 20, 256])
def test_many_degrees_of_freedom_meet_the_log_normals_closed_form(samples: int) -> None:
    x = LOGT.draw(np.random.default_rng(0), TYPICAL[:20], samples)
    everything = np.ones(x.shape, bool)
    centre = fit_rows(LOGT, x)
    far = log_evidence(1e7, x, everything, centre)
    np.testing.assert_allclose(far, log_evidence(np.inf, x, everything, centre), atol=1e-3)


def test_absent_samples_do_not_count() -> None:
    x = np.array([[90.0, 110, 130, 180, 9999]])
    some = x < 9999
    centre = fit_rows(LOGT, x, some)
    for nu in (3.5, np.inf):
        alone = log_evidence(nu, x[:, :4], np.ones((1, 4), bool), centre)
        np.testing.assert_allclose(log_evidence(nu, x, some, centre), alone)


def test_ten_samples_of_many_prompts_tell_the_tails_apart() -> None:
    assert gain(LOGNORMAL, 3.5) < -0.1
    assert gain(LOGT, 3.5) > 0.15


def test_the_true_nu_scores_best() -> None:
    at_truth = gain(LOGT, 3.5)
    assert at_truth > gain(LOGT, 1.5)
    assert at_truth > gain(LOGT, 20.0)
