"""Calibration while serving: a `Learner` without a regression on the text follows level and spread of each LLM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import special

from lengthwise.predictors import HistogramPredictions, LogTPredictions, PredictionInput
from lengthwise.predictors.contract import LengthPredictor
from lengthwise.predictors.learner import Learner

NU = 3.5


def calibrating(predictor: LengthPredictor) -> Learner:
    return Learner(predictor, learning=False)


def shift(learner: Learner, llm: str) -> float:
    return learner.prediction(PredictionInput("5.0 0.5", llm)).mu - 5.0


def factor(learner: Learner, llm: str) -> float:
    return learner.prediction(PredictionInput("5.0 0.5", llm)).sigma / 0.5


class Scripted:
    """A calibrated predictor that reads its prediction from the text, "mu sigma"."""

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        rows = [tuple(map(float, each.text.split())) for each in inputs]
        caps = np.array([each.cap for each in inputs])
        return LogTPredictions.of([mu for mu, _ in rows], [sigma for _, sigma in rows], caps)


@dataclass
class Errors:
    """Requests of one LLM whose lengths are `times` those that the predictor was trained on, some of them censored."""

    seed: int
    sigma: float = 0.4
    censored_share: float = 0.0
    llm: str = "llm"
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def request(self, times: float = 1.0) -> tuple[PredictionInput, int]:
        mu, sigma = self.rng.normal(5.5, 0.8), self.sigma * math.exp(self.rng.normal(0.0, 0.2))
        length = math.exp(min(mu + math.log(times) + sigma * self.rng.standard_t(NU), 14.0))
        return PredictionInput(f"{mu} {sigma}", self.llm, 1_000_000), max(1, round(length))

    def feed(self, online: Learner, n: int, times: float = 1.0) -> None:
        for _ in range(n):
            asked, length = self.request(times)
            online.predict([asked])
            limit = self.limit(asked, times)
            online.observe(asked, min(length, limit), censored=length > limit)

    def limit(self, asked: PredictionInput, times: float) -> int:
        """Return a limit independent of this answer's length; `censored_share` of the answers are longer."""
        if not self.censored_share:
            return 10**9
        mu, sigma = map(float, asked.text.split())
        z = float(special.stdtrit(NU, 1.0 - self.censored_share))
        return max(1, round(times * math.exp(mu + sigma * (z + 0.3 * self.rng.standard_normal()))))

    def judge(self, online: Learner, times: float, n: int = 3000) -> tuple[float, float]:
        """Return the predicted over the true median, and the coverage of 90 % intervals, on new requests."""
        pairs = [self.request(times) for _ in range(n)]
        predictions = online.predict([asked for asked, _ in pairs])
        true = np.array([times * math.exp(float(asked.text.split()[0])) for asked, _ in pairs])
        lengths = np.array([length for _, length in pairs])
        inside = (predictions.quantile(0.05) <= lengths) & (lengths <= predictions.quantile(0.95))
        return float(np.median(predictions.quantile(0.5) / true)), float(inside.mean())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("censored_share", [0.0, 0.3])
@pytest.mark.parametrize("sigma", [0.25, 0.45])
def test_an_llm_whose_lengths_double_is_tracked_within_200_observations(
    seed: int, censored_share: float, sigma: float
) -> None:
    traffic = Errors(seed, sigma=sigma, censored_share=censored_share)
    online = calibrating(Scripted())
    traffic.feed(online, 600)
    traffic.feed(online, 200, times=2.0)
    ratio, covered = traffic.judge(online, times=2.0)
    assert 0.85 <= ratio <= 1.15
    assert covered >= 0.85


@pytest.mark.parametrize("seed", range(3))
def test_lengths_that_halve_are_tracked_within_200_observations(seed: int) -> None:
    traffic, online = Errors(seed), calibrating(Scripted())
    traffic.feed(online, 600)
    traffic.feed(online, 200, times=0.5)
    ratio, covered = traffic.judge(online, times=0.5)
    assert 0.85 <= ratio <= 1.15
    assert covered >= 0.85


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("censored_share", [0.0, 0.3])
def test_steady_traffic_is_hardly_adjusted(seed: int, censored_share: float) -> None:
    traffic, online = Errors(seed, censored_share=censored_share), calibrating(Scripted())
    for _ in range(10):
        traffic.feed(online, 200)
        assert abs(shift(online, "llm")) < 0.12
        assert 0.7 < factor(online, "llm") < 1.4
    ratio, covered = traffic.judge(online, times=1.0)
    assert ratio == pytest.approx(1.0, abs=0.1)
    assert covered == pytest.approx(0.9, abs=0.05)


def test_censored_answers_are_not_taken_for_short_ones() -> None:
    traffic, online = Errors(11, censored_share=0.3), calibrating(Scripted())
    traffic.feed(online, 800)
    naive, again = calibrating(Scripted()), Errors(11, censored_share=0.3)
    for _ in range(800):
        asked, length = again.request()
        naive.observe(asked, min(length, again.limit(asked, 1.0)))
    assert abs(shift(online, "llm")) < 0.1
    assert factor(naive, "llm") < 0.8 < 0.85 < factor(online, "llm")


def test_an_overconfident_predictor_gets_wider_predictions() -> None:
    traffic, online = Errors(3, sigma=0.8), calibrating(Scripted())
    for _ in range(400):
        asked, length = traffic.request()
        mu, sigma = asked.text.split()
        online.observe(PredictionInput(f"{mu} {float(sigma) / 2}", "llm", asked.max_tokens), length)
    assert factor(online, "llm") == pytest.approx(2.0, rel=0.2)


def test_each_llm_has_its_own_calibration() -> None:
    online = calibrating(Scripted())
    Errors(1, llm="a").feed(online, 300, times=3.0)
    Errors(2, llm="b").feed(online, 300)
    assert shift(online, "a") == pytest.approx(math.log(3.0), abs=0.15)
    assert abs(shift(online, "b")) < 0.15


def test_histograms_are_calibrated_by_their_median_and_quartiles() -> None:
    class Bins:
        def predict(self, inputs: Sequence[PredictionInput]) -> HistogramPredictions:
            return HistogramPredictions.of([0, 100, 200, 400], [[0.25, 0.5, 0.25]] * len(inputs), 8192)

    predictions = calibrating(Bins()).predict([PredictionInput("x", "m")])
    assert predictions.quantile(0.5) == pytest.approx([150], rel=0.01)
    assert predictions.quantile(0.75) / predictions.quantile(0.25) == pytest.approx([2.0], rel=0.01)
