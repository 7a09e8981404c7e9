"""The online calibration follows an LLM that changes, and leaves one alone that does not."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import special

from lengthwise.errors import InputError
from lengthwise.predictors import HistogramPredictions, LogTPredictions, PredictionInput
from lengthwise.predictors.calibration import OnlineCalibrated

NU = 3.5


@dataclass
class Scripted:
    """A calibrated predictor: its prediction is the text, "mu sigma"."""

    asked: int = 0

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        self.asked += len(inputs)
        rows = [tuple(map(float, each.text.split())) for each in inputs]
        caps = np.array([each.cap for each in inputs])
        return LogTPredictions.of([mu for mu, _ in rows], [sigma for _, sigma in rows], caps)


@dataclass
class Traffic:
    """Prompts of all kinds for one LLM, true lengths `times` what the predictor was trained on; some cut at random."""

    seed: int
    sigma: float = 0.4
    cut_share: float = 0.0
    llm: str = "llm"
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def request(self, times: float = 1.0) -> tuple[PredictionInput, int]:
        mu, sigma = self.rng.normal(5.5, 0.8), self.sigma * math.exp(self.rng.normal(0.0, 0.2))
        length = math.exp(min(mu + math.log(times) + sigma * self.rng.standard_t(NU), 14.0))
        return PredictionInput(f"{mu} {sigma}", self.llm, 1_000_000), max(1, round(length))

    def feed(self, online: OnlineCalibrated, n: int, times: float = 1.0) -> None:
        for _ in range(n):
            asked, length = self.request(times)
            online.predict([asked])
            limit = self.limit(asked, times)
            online.observe(asked, min(length, limit), censored=length > limit)

    def limit(self, asked: PredictionInput, times: float) -> int:
        """A cut that knows nothing of this answer's length: of the answers, `cut_share` are longer."""
        if not self.cut_share:
            return 10**9
        mu, sigma = map(float, asked.text.split())
        z = float(special.stdtrit(NU, 1.0 - self.cut_share))
        return max(1, round(times * math.exp(mu + sigma * (z + 0.3 * self.rng.standard_normal()))))

    def judge(self, online: OnlineCalibrated, times: float, n: int = 3000) -> tuple[float, float]:
        """Prediction's median over the true median, and coverage of 90 % intervals, on fresh requests."""
        pairs = [self.request(times) for _ in range(n)]
        predictions = online.predict([asked for asked, _ in pairs])
        true = np.array([times * math.exp(float(asked.text.split()[0])) for asked, _ in pairs])
        lengths = np.array([length for _, length in pairs])
        inside = (predictions.quantile(0.05) <= lengths) & (lengths <= predictions.quantile(0.95))
        return float(np.median(predictions.quantile(0.5) / true)), float(inside.mean())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cut_share", [0.0, 0.3])
@pytest.mark.parametrize("sigma", [0.25, 0.45])
def test_an_llm_whose_lengths_double_is_tracked_within_200_observations(
    seed: int, cut_share: float, sigma: float
) -> None:
    traffic = Traffic(seed, sigma=sigma, cut_share=cut_share)
    online = OnlineCalibrated(Scripted())
    traffic.feed(online, 600)
    traffic.feed(online, 200, times=2.0)
    ratio, covered = traffic.judge(online, times=2.0)
    assert 0.85 <= ratio <= 1.15
    assert covered >= 0.85


@pytest.mark.parametrize("seed", range(3))
def test_lengths_that_halve_are_tracked_as_well(seed: int) -> None:
    traffic, online = Traffic(seed), OnlineCalibrated(Scripted())
    traffic.feed(online, 600)
    traffic.feed(online, 200, times=0.5)
    ratio, covered = traffic.judge(online, times=0.5)
    assert 0.85 <= ratio <= 1.15
    assert covered >= 0.85


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cut_share", [0.0, 0.3])
def test_steady_traffic_is_not_disturbed(seed: int, cut_share: float) -> None:
    traffic, online = Traffic(seed, cut_share=cut_share), OnlineCalibrated(Scripted())
    for _ in range(10):
        traffic.feed(online, 200)
        assert abs(online.adjustment("llm").shift) < 0.12
        assert 0.8 < online.adjustment("llm").factor < 1.25
    ratio, covered = traffic.judge(online, times=1.0)
    assert ratio == pytest.approx(1.0, abs=0.1)
    assert covered == pytest.approx(0.9, abs=0.03)
    assert online.alarms("llm") == 0


def test_cut_answers_are_not_taken_for_short_ones() -> None:
    traffic, online = Traffic(11, cut_share=0.3), OnlineCalibrated(Scripted())
    traffic.feed(online, 800)
    naive, again = OnlineCalibrated(Scripted()), Traffic(11, cut_share=0.3)
    for _ in range(800):
        asked, length = again.request()
        naive.observe(asked, min(length, again.limit(asked, 1.0)))
    assert abs(online.adjustment("llm").shift) < 0.1
    assert naive.adjustment("llm").factor < 0.8 < 0.85 < online.adjustment("llm").factor


def test_an_overconfident_predictor_gets_wider_predictions() -> None:
    traffic, online = Traffic(3, sigma=0.8), OnlineCalibrated(Scripted())
    for _ in range(400):
        asked, length = traffic.request()
        mu, sigma = asked.text.split()
        online.observe(PredictionInput(f"{mu} {float(sigma) / 2}", "llm", asked.max_tokens), length)
    assert online.adjustment("llm").factor == pytest.approx(2.0, rel=0.15)


def test_each_llm_has_its_own_calibration_and_an_unknown_one_has_none() -> None:
    online = OnlineCalibrated(Scripted())
    Traffic(1, llm="a").feed(online, 300, times=3.0)
    Traffic(2, llm="b").feed(online, 300)
    assert online.adjustment("a").shift == pytest.approx(math.log(3.0), abs=0.15)
    assert abs(online.adjustment("b").shift) < 0.15
    raw = online.predict([PredictionInput("5.0 0.5", "c")])
    assert (raw.mu[0], raw.sigma[0]) == (5.0, 0.5)


def test_a_prediction_is_not_made_twice_to_be_observed() -> None:
    scripted = Scripted()
    online = OnlineCalibrated(scripted)
    asked = PredictionInput("5.0 0.5", "m")
    online.predict([asked])
    online.observe(asked, 150)
    assert scripted.asked == 1
    online.observe(PredictionInput("6.0 0.5", "m"), 150)
    assert scripted.asked == 2


def test_state_is_saved_and_restored_as_json() -> None:
    online = OnlineCalibrated(Scripted())
    Traffic(1).feed(online, 100, times=2.0)
    again = OnlineCalibrated(Scripted())
    again.restore(online.state())
    assert again.adjustment("llm") == online.adjustment("llm")
    for each in (online, again):
        each.observe(PredictionInput("5.0 0.5", "llm"), 300, censored=True)
    assert again.state() == online.state()


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("", "is not a saved calibration"),
        ("[]", "is not a saved calibration"),
        ('{"format": 1, "llms": {"a": {}}}', "is not a saved calibration"),
        ('{"format": 9, "llms": {}}', "newer than 1"),
    ],
)
def test_a_broken_or_newer_state_is_named(state: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        OnlineCalibrated(Scripted()).restore(state, "state.json")


def test_a_state_with_numbers_that_cannot_be_is_refused() -> None:
    online = OnlineCalibrated(Scripted())
    Traffic(1).feed(online, 5)
    told = json.loads(online.state())
    told["llms"]["llm"]["slow"]["weight"] = -1.0
    with pytest.raises(InputError):
        OnlineCalibrated(Scripted()).restore(json.dumps(told))


def test_bins_are_calibrated_by_their_median_and_quartiles() -> None:
    class Bins:
        def predict(self, inputs: Sequence[PredictionInput]) -> HistogramPredictions:
            return HistogramPredictions.of([0, 100, 200, 400], [[0.25, 0.5, 0.25]] * len(inputs), 8192)

    predictions = OnlineCalibrated(Bins()).predict([PredictionInput("x", "m")])
    assert predictions.quantile(0.5) == pytest.approx([150], rel=0.01)
    assert predictions.quantile(0.75) / predictions.quantile(0.25) == pytest.approx([2.0], rel=0.01)


def test_an_observation_costs_the_same_however_many_came_before() -> None:
    online = OnlineCalibrated(Scripted())
    asked = PredictionInput("5.0 0.5", "m")
    online.predict([asked])

    def seconds(n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            online.observe(asked, 150, censored=True)
        return time.perf_counter() - began

    first = min(seconds(200) for _ in range(3))
    seconds(5000)
    assert min(seconds(200) for _ in range(3)) < 5 * first
