"""Made-up traffic as TIE's paper describes its own: log-t answers, and a predictor of mu and sigma as good as theirs.

CASTILLO's answers to one prompt differ far less than those the paper saw, and what our predictors call sigma is also
their ignorance. So the paper's claims are tried on its own ground as well. mu and sigma of prompts are drawn so that
answers to one prompt have about the spread and skewness that the paper reports (CV 1.09, skewness 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from experiments.tie import paper
from experiments.tie.predictions import LogNormalPredictions
from lengthwise.lengths import TIE_NU, LogTColumns
from lengthwise.simulator.predictions import RequestPredictions
from lengthwise.workloads import Workload
from lengthwise.workloads.arrivals import gamma, generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Kind = TypeVar("Kind", bound=RequestPredictions)

__all__ = ["AS_IN_PAPER", "MadeUp", "made_up"]

AS_IN_PAPER: Final = "mu, sigma"
"""The name of predictions as good as the paper's."""
MU: Final = (5.0, 1.0)
"""Mean and spread over prompts."""
LOG_SIGMA: Final = (math.log(0.6), 0.6)
_PROMPT_TOKENS: Final = 100
_FITTED_TO: Final = 20
"""Answers per prompt that a family is fitted to, as in the paper's training data."""
_CV_OF: Final = 100


@dataclass(frozen=True, eq=False)
class MadeUp:
    """The requests of a seed, one answer to each prompt, and what is predicted of them."""

    workload: Workload
    logt: RequestPredictions
    lognormal: LogNormalPredictions
    prompt_cv: float
    """Of 100 answers to each prompt."""


def made_up(requests: int, seed: int) -> MadeUp:
    """Draw prompts, answers, arrivals at one per second, and predictions, each from its own stream of the seed."""
    prompts = generator(seed, "prompts")
    mu, sigma = prompts.normal(*MU, requests), np.exp(prompts.normal(*LOG_SIGMA, requests))
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
    many = _answers(mu, sigma, _CV_OF, generator(seed, "many"))
    return MadeUp(
        workload,
        _predicted(RequestPredictions, mu, sigma, noise, expected),
        _predicted(LogNormalPredictions, logs.mean(axis=1), logs.std(axis=1), noise, expected),
        float((many.std(axis=1, ddof=1) / many.mean(axis=1)).mean()),
    )


def _answers(mu: Floats, sigma: Floats, each: int, rng: np.random.Generator) -> NDArray[np.int64]:
    drawn = np.exp(mu[:, None] + sigma[:, None] * rng.standard_t(TIE_NU, (len(mu), each)))
    return np.asarray(np.clip(np.rint(drawn), 1, paper.MAX_TOKENS), np.int64)


def _predicted(kind: type[Kind], mu: Floats, sigma: Floats, noise: Floats, expected: Floats) -> Kind:
    """Predictions of what was fitted; sigma through log(1 + sigma), as in the paper."""
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
    """An unbiased prediction with that R^2: its error does not depend on what is predicted."""
    centre, spread = float(values.mean()), float(values.std())
    return centre + r_squared * (values - centre) + math.sqrt(r_squared * (1 - r_squared)) * spread * noise
