"""How predictions hold when an LLM is asked to reason: the same prompts with and without "Think step by step."

The paper on CASTILLO leaves reasoning and overthinking to future work. Here: how much longer answers become and are
predicted to become, how well intervals cover, and how many answers overrun the prediction's 95 % quantile; as shipped, and
once online calibration has seen some answers of either kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.reasoning.holding import ASKED, SEEN, Answers, Asked, Holding, holding
from lengthwise.errors import InputError
from lengthwise.predictors.baselines import Ceiling, column
from lengthwise.predictors.scores import tau_within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lengthwise.predictors import LengthPredictor
    from lengthwise.workloads.datasets import ReasoningPairs

    Floats = NDArray[np.float64]

_RESAMPLES: Final = 4000
_TAU_RESAMPLES: Final = 400


@dataclass(frozen=True)
class Half:
    """The answers to one way of asking, beside what is predicted as shipped; both are cut at the limit."""

    mean: float
    predicted_mean: float
    median: float
    predicted_median: float
    tau: float
    tau_low: float
    tau_high: float
    """90 % of the taus of resampled prompts lie between."""
    tau_of_halves: float
    """One half of a prompt's answers against the other. With few answers both are noisy: no bound to tau."""


@dataclass(frozen=True)
class Ratio:
    """Length with the sentence over length without: geometric mean over prompts, of a prompt's means."""

    prompts: int
    seen: float
    low: float
    high: float
    """90 % of the ratios of resampled prompts lie between."""
    predicted: float
    cut: Mapping[Asked, float]
    """Share of answers that the limit cut off."""


@dataclass(frozen=True)
class ReasoningStudy:
    """Everything, for one predictor and one LLM."""

    predictor: str
    llm: str
    origin: str
    prompts: int
    samples: int
    max_tokens: int
    halves: Mapping[Asked, Half]
    ratios: Mapping[str, Ratio]
    """By corpus, and over `all`."""
    holdings: tuple[Holding, ...]
    prompt_means: Mapping[Asked, Floats]
    predicted_means: Mapping[Asked, Floats]

    def holding(self, asked: Asked, seen: Asked | None) -> Holding:
        """One of the combinations."""
        return next(each for each in self.holdings if (each.asked, each.seen) == (asked, seen))


def study(
    predictor: LengthPredictor, pairs: ReasoningPairs, *, name: str = "ours", observations: int = 100, seed: int = 0
) -> ReasoningStudy:
    """Compare predictions with answers, before and after so many answers to other prompts were seen."""
    if len(pairs) < 2:
        raise InputError("one prompt is no study", source=pairs.plain.origin, hint="give at least two")
    samples = {"plain": pairs.plain, "steps": pairs.steps}
    halves: dict[Asked, Answers] = {asked: Answers.of(predictor, samples[asked], pairs.max_tokens) for asked in ASKED}
    means: dict[Asked, Floats] = {asked: halves[asked].lengths.mean(axis=1) for asked in ASKED}
    predicted: dict[Asked, Floats] = {asked: halves[asked].predictions.columns.mean() for asked in ASKED}
    llms = column(pairs.plain, "llm")
    return ReasoningStudy(
        predictor=name,
        llm=", ".join(pairs.plain.llms),
        origin=pairs.plain.origin,
        prompts=len(pairs),
        samples=halves["plain"].lengths.shape[1],
        max_tokens=pairs.max_tokens,
        halves={asked: _half(halves[asked], predicted[asked], llms, seed) for asked in ASKED},
        ratios=_ratios(column(pairs.plain, "corpus"), means, predicted, halves, seed),
        holdings=tuple(holding(halves, asked, seen, observations, seed) for asked in ASKED for seen in SEEN),
        prompt_means=means,
        predicted_means=predicted,
    )


def _half(half: Answers, predicted: Floats, llms: NDArray[np.object_], seed: int) -> Half:
    split = Ceiling.of(half.lengths, np.ones(half.lengths.shape, bool))
    means, mu = half.lengths.mean(axis=1), half.predictions.mu
    draws = np.random.default_rng([seed % 2**64, 3]).integers(len(mu), size=(_TAU_RESAMPLES, len(mu)))
    taus = [tau_within(llms[rows], mu[rows], means[rows]) for rows in draws]
    low, high = np.quantile(taus, (0.05, 0.95)).tolist()
    return Half(
        mean=float(half.lengths.mean()),
        predicted_mean=float(predicted.mean()),
        median=float(np.median(half.lengths)),
        predicted_median=float(np.median(half.predictions.quantile(0.5))),
        tau=tau_within(llms, mu, means),
        tau_low=low,
        tau_high=high,
        tau_of_halves=tau_within(llms, split.mean, split.true_mean),
    )


def _ratios(
    corpora: NDArray[np.object_],
    means: Mapping[Asked, Floats],
    predicted: Mapping[Asked, Floats],
    halves: Mapping[Asked, Answers],
    seed: int,
) -> dict[str, Ratio]:
    logs = np.log(means["steps"] / means["plain"])
    said = np.log(predicted["steps"] / predicted["plain"])
    found = {}
    for corpus in ["all", *sorted(set(corpora.tolist()))]:
        rows = np.flatnonzero(corpora == corpus) if corpus != "all" else np.arange(len(corpora))
        draws = np.random.default_rng([seed % 2**64, 1]).integers(len(rows), size=(_RESAMPLES, len(rows)))
        low, high = np.exp(np.quantile(logs[rows][draws].mean(axis=1), (0.05, 0.95))).tolist()
        cut: dict[Asked, float] = {asked: float(halves[asked].capped[rows].mean()) for asked in ASKED}
        seen, expected = float(np.exp(logs[rows].mean())), float(np.exp(said[rows].mean()))
        found[corpus] = Ratio(len(rows), seen, low, high, expected, cut)
    return found
