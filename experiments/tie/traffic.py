"""Synthetic traffic as TIE's paper describes its own, and its predictions in other forms.

CASTILLO's answers to one prompt differ far less than those of the paper, and the sigma of our predictors also includes
their uncertainty. So the paper's claims are also tested on traffic with its statistics: log-t answers, and predictions
of mu and sigma with the R^2 of its predictor. mu and sigma of prompts are drawn so that answers to one prompt have
about the spread and skewness that the paper reports (CV 1.09, skewness 3.1).

`LogNormalPredictions` is the alternative of the paper's ablation; `weighted` orders for latency per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from experiments.tie import paper
from lengthwise.lengths import TIE_NU, LogTColumns
from lengthwise.policies.job import CVAR_ALPHA
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.workloads import Workload
from lengthwise.workloads.arrivals import gamma, generator

Floats = NDArray[np.float64]

SPREAD: Final = math.sqrt(TIE_NU / (TIE_NU - 2))
"""Standard deviation of a Student-t: of the logarithms of a log-t, in units of its sigma."""
_QUANTILES: Final = 2000


@dataclass(frozen=True, eq=False)
class LogNormalPredictions(RequestPredictions):
    """Predictions whose mean and tail are those of log-normals; mu and sigma are mean and spread of the logarithms."""

    @classmethod
    def of(cls, predictions: RequestPredictions) -> LogNormalPredictions:
        """The log-normals with the same mean and spread of logarithms: the result of fitting them to such log-ts."""
        columns = {field.name: getattr(predictions, field.name) for field in fields(RequestPredictions)}
        return cls(
            **{**columns, "predictor": f"{predictions.predictor}, log-normal", "sigma": predictions.sigma * SPREAD}
        )

    def expected_and_tail(self) -> tuple[Floats, Floats]:
        """In closed form; predictions with sigma 0 have no family."""
        if not (self.sigma > 0).all():
            return super().expected_and_tail()
        return mean_and_cvar(self.mu, self.sigma, self.cap)


def mean_and_cvar(mu: Floats, sigma: Floats, cap: Floats, alpha: float = CVAR_ALPHA) -> tuple[Floats, Floats]:
    """Mean and CVaR of min(X, cap), X log-normal."""
    k = (np.log(cap) - mu) / sigma
    z = float(special.ndtri(alpha))
    whole = np.exp(mu + sigma**2 / 2)
    beyond = cap * special.ndtr(-k)
    mean = whole * special.ndtr(k - sigma) + beyond
    worst = whole * (special.ndtr(k - sigma) - special.ndtr(z - sigma)) + beyond
    return mean, np.where(k <= z, cap, worst / (1 - alpha))


def weighted_score(predictions: RequestPredictions) -> Floats:
    """E[X] / E[1/X], X = min(max(length, 1), cap): weighted shortest expected first, where a wait weighs 1 / length.

    Among non-preemptive orders by predictions it is optimal for latency per token on one server. E[1/X] by the midpoint
    rule over quantiles.
    """
    t = special.stdtrit(TIE_NU, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    lengths = np.exp(predictions.mu[:, None] + predictions.sigma[:, None] * t)
    inverse = (1 / np.clip(lengths, 1.0, predictions.cap[:, None])).mean(axis=1)
    return np.asarray(predictions.expected_and_tail()[0] / inverse)


def weighted(predictions: RequestPredictions) -> RequestPredictions:
    """Predictions whose medians are in the order of `weighted_score`, so that `sjf` serves in it."""
    return replace(predictions, mu=np.log(weighted_score(predictions)) / 2)


Kind = TypeVar("Kind", bound=RequestPredictions)


AS_IN_PAPER: Final = "mu, sigma"
"""The name of predictions with the R^2 of the paper's."""
MU: Final = (5.0, 1.0)
"""Mean and standard deviation over prompts."""
LOG_SIGMA: Final = (math.log(0.6), 0.6)
_PROMPT_TOKENS: Final = 100
_FITTED_TO: Final = 20
"""Answers per prompt that a family is fitted to, as in the paper's training data."""
_CV_OF: Final = 100


@dataclass(frozen=True, eq=False)
class SyntheticTraffic:
    """The requests of a seed, one answer to each prompt, and their predictions."""

    workload: Workload
    logt: RequestPredictions
    lognormal: LogNormalPredictions
    prompt_cv: float
    """Standard deviation over mean of 100 answers to each prompt."""


def synthetic_traffic(requests: int, seed: int, correlation: float = 0.0) -> SyntheticTraffic:
    """Draw prompts, answers, arrivals at one per second, and predictions, each from a separate stream of the seed.

    `correlation` is that of mu and ln sigma over prompts; the paper does not report its own.
    """
    prompts = generator(seed, "prompts").standard_normal((2, requests))
    mu = MU[0] + MU[1] * prompts[0]
    shared = correlation * prompts[0] + math.sqrt(1 - correlation**2) * prompts[1]
    sigma = np.exp(LOG_SIGMA[0] + LOG_SIGMA[1] * shared)
    answers = _answers(mu, sigma, 1, generator(seed, "lengths"))[:, 0]
    expected = LogTColumns.of(mu, sigma, paper.MAX_TOKENS).mean()
    workload = Workload.from_table(
        {
            "arrival_s": gamma(requests, 1.0, 1.0, generator(seed, "arrivals")),
            "input_tokens": np.full(requests, _PROMPT_TOKENS),
            "output_tokens": answers,
            "sample_mean": expected,
            "max_tokens": np.full(requests, paper.MAX_TOKENS),
        },
        name="log-t answers",
    )
    logs = np.log(_answers(mu, sigma, _FITTED_TO, generator(seed, "samples")))
    noise = generator(seed, "noise").standard_normal((2, requests))
    answers_for_cv = _answers(mu, sigma, _CV_OF, generator(seed, "many"))
    return SyntheticTraffic(
        workload,
        _predicted(RequestPredictions, mu, sigma, noise, expected),
        _predicted(LogNormalPredictions, logs.mean(axis=1), logs.std(axis=1), noise, expected),
        float((answers_for_cv.std(axis=1, ddof=1) / answers_for_cv.mean(axis=1)).mean()),
    )


def _answers(mu: Floats, sigma: Floats, each: int, rng: np.random.Generator) -> NDArray[np.int64]:
    drawn = np.exp(mu[:, None] + sigma[:, None] * rng.standard_t(TIE_NU, (len(mu), each)))
    return np.asarray(np.clip(np.rint(drawn), 1, paper.MAX_TOKENS), np.int64)


def _predicted(kind: type[Kind], mu: Floats, sigma: Floats, noise: Floats, expected: Floats) -> Kind:
    """Noisy predictions of fitted parameters; sigma through log(1 + sigma), as in the paper."""
    of_mu, of_sigma = paper.R_SQUARED
    return kind(
        AS_IN_PAPER,
        _disturbed(mu, of_mu, noise[0]),
        np.maximum(np.expm1(_disturbed(np.log1p(sigma), of_sigma, noise[1])), 0.01),
        np.full(len(mu), float(paper.MAX_TOKENS)),
        np.full(len(mu), "", dtype=object),
        expected,
    )


def _disturbed(values: Floats, r_squared: float, noise: Floats) -> Floats:
    """An unbiased prediction with that R^2; its error is independent of the prediction."""
    centre, spread = float(values.mean()), float(values.std())
    return centre + r_squared * (values - centre) + math.sqrt(r_squared * (1 - r_squared)) * spread * noise
