"""Calibrated intervals have their nominal coverage, offline and online."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from lengthwise.errors import InputError
from lengthwise.predictors import HistogramPredictions, LogTPredictions, PredictionInput
from lengthwise.predictors.calibration import Calibration, OnlineCalibrated, fit_calibration
from lengthwise.predictors.scores import coverage as inside

NU = 3.5


def world(
    seed: int, prompts: int, samples: int = 5, shift: float = 0.5, factor: float = 1.6
) -> tuple[LogTPredictions, np.ndarray]:
    """Predictions that are `shift` too low and `factor` too sharp; a prompt's samples share most of their error."""
    rng = np.random.default_rng(seed)
    mu, sigma = rng.normal(5.5, 0.8, prompts), 0.4 * np.exp(rng.normal(0, 0.2, prompts))
    shared, own = rng.standard_normal((prompts, 1)), rng.standard_normal((prompts, samples))
    chi = rng.chisquare(NU, (prompts, 1))
    t = (0.9 * shared + math.sqrt(1 - 0.81) * own) / np.sqrt(chi / NU)
    return LogTPredictions.of(mu, sigma, 10**9), np.exp(mu[:, None] + shift + factor * sigma[:, None] * t)


def coverage(predictions: LogTPredictions, lengths: np.ndarray, level: float = 0.9) -> float:
    low, high = predictions.quantile((1 - level) / 2), predictions.quantile((1 + level) / 2)
    return inside(low, high, lengths, np.ones(lengths.shape, bool))


def test_shift_and_factor_are_found() -> None:
    predictions, lengths = world(0, 4000)
    told = fit_calibration(predictions, ["m"] * 4000, lengths)
    assert told.by_llm["m"].shift == pytest.approx(0.5, abs=0.05)
    assert told.by_llm["m"].factor == pytest.approx(1.6, rel=0.06)


@pytest.mark.parametrize(("prompts", "level"), [(15, 0.9), (40, 0.9), (40, 0.5), (200, 0.8)])
def test_a_new_prompts_answer_is_covered_with_the_promised_probability(prompts: int, level: float) -> None:
    covered = []
    for seed in range(400):
        predictions, lengths = world(seed, prompts + 50)
        train = LogTPredictions.of(predictions.mu[:prompts], predictions.sigma[:prompts], 10**9)
        test = LogTPredictions.of(predictions.mu[prompts:], predictions.sigma[prompts:], 10**9)
        told = fit_calibration(train, ["m"] * prompts, lengths[:prompts], levels=[level])
        covered.append(coverage(told.apply(test, ["m"] * 50), lengths[prompts:], level))
    # Within the noise of the simulation; not much more than promised either: one prompt's worth, and the shift's.
    assert level - 0.015 <= np.mean(covered) <= level + 1.5 / prompts + 0.015


def test_each_llm_is_covered_by_its_own_figures() -> None:
    right, right_lengths = world(1, 800, shift=0.0, factor=1.0)
    wrong, wrong_lengths = world(2, 800, shift=-0.7, factor=2.0)
    predictions = LogTPredictions.of(np.r_[right.mu, wrong.mu], np.r_[right.sigma, wrong.sigma], 10**9)
    llms = ["right"] * 800 + ["wrong"] * 800
    told = fit_calibration(predictions, llms, np.r_[right_lengths, wrong_lengths])
    for llm, shift, factor in (("right", 0.0, 1.0), ("wrong", -0.7, 2.0)):
        fresh, lengths = world(3, 2000, shift=shift, factor=factor)
        assert coverage(told.apply(fresh, [llm] * 2000), lengths) == pytest.approx(0.9, abs=0.025)


def test_an_llm_with_few_prompts_leans_on_the_others_and_one_without_has_their_figures() -> None:
    many, many_lengths = world(4, 1000, shift=0.5)
    few, few_lengths = world(5, 12, shift=-0.5)
    predictions = LogTPredictions.of(np.r_[many.mu, few.mu], np.r_[many.sigma, few.sigma], 10**9)
    llms = ["many"] * 1000 + ["few"] * 10 + ["two"] * 2
    told = fit_calibration(predictions, llms, np.r_[many_lengths, few_lengths])
    assert -0.5 < told.by_llm["few"].shift < told.by_llm["many"].shift
    assert "two" not in told.by_llm
    adjusted = told.apply(LogTPredictions.of([5.0, 5.0], [0.5, 0.5], 100), ["two", "never seen"])
    assert adjusted.mu == pytest.approx([5.0 + told.others.shift] * 2)


def test_samples_that_do_not_count_do_not() -> None:
    predictions, lengths = world(6, 200)
    present = np.ones(lengths.shape, bool)
    present[:, 3:] = False
    spoiled = np.where(present, lengths, 1e8)
    told = fit_calibration(predictions, ["m"] * 200, spoiled, present)
    assert told == fit_calibration(predictions, ["m"] * 200, lengths[:, :3])


def test_answers_cut_at_the_cap_are_inside_an_interval_that_reaches_it() -> None:
    predictions = LogTPredictions.of([5.0] * 100, [0.5] * 100, 150)
    lengths = np.minimum(np.exp(5.0 + 0.5 * np.random.default_rng(0).standard_t(NU, (100, 4))), 150)
    told = fit_calibration(predictions, ["m"] * 100, lengths, levels=[0.9])
    assert coverage(told.apply(predictions, ["m"] * 100), lengths) >= 0.9


def test_answers_cut_off_leave_shift_and_factor_what_they_are() -> None:
    predictions, lengths = world(10, 3000)
    limits = np.exp(predictions.mu + np.random.default_rng(10).normal(1.0, 0.8, 3000))[:, None]
    cut = lengths > limits
    seen = np.minimum(lengths, limits)
    assert 0.3 < cut.mean() < 0.5
    told = fit_calibration(predictions, ["m"] * 3000, seen, censored=cut)
    assert told.by_llm["m"].shift == pytest.approx(0.5, abs=0.06)
    assert told.by_llm["m"].factor == pytest.approx(1.6, rel=0.1)
    taken_as_whole = fit_calibration(predictions, ["m"] * 3000, seen)
    assert taken_as_whole.by_llm["m"].shift < 0.4


def test_where_almost_all_is_cut_off_nothing_is_told() -> None:
    predictions, lengths = world(11, 100)
    both = LogTPredictions.of(np.r_[predictions.mu, predictions.mu], np.r_[predictions.sigma, predictions.sigma], 10**9)
    cut = np.r_[np.zeros(lengths.shape, bool), np.ones(lengths.shape, bool)]
    told = fit_calibration(both, ["whole"] * 100 + ["cut"] * 100, np.r_[lengths, lengths / 9], censored=cut)
    assert set(told.by_llm) == {"whole"}


def test_rows_count_as_they_are_weighed() -> None:
    short, short_lengths = world(12, 900, shift=-0.5)
    long, long_lengths = world(13, 100, shift=0.5)
    predictions = LogTPredictions.of(np.r_[short.mu, long.mu], np.r_[short.sigma, long.sigma], 10**9)
    lengths, weights = np.r_[short_lengths, long_lengths], np.r_[np.full(900, 1 / 900), np.full(100, 1 / 100)]
    alike = fit_calibration(predictions, ["m"] * 1000, lengths, weights=weights)
    assert alike.by_llm["m"].shift == pytest.approx(0.0, abs=0.15)
    assert fit_calibration(predictions, ["m"] * 1000, lengths).by_llm["m"].shift < -0.3


@pytest.mark.parametrize("nu", [2.5, 8.0])
def test_caution_lets_no_level_promise_too_much(nu: float) -> None:
    t = np.random.default_rng(14).standard_t(nu, 20_000)
    predictions = LogTPredictions.of(np.zeros(20_000) + 6, np.full(20_000, 0.5), 10**9)
    lengths = np.exp(6 + 0.5 * t)[:, None]
    careful = fit_calibration(predictions, ["m"] * 20_000, lengths, cautious=True).apply(predictions, ["m"] * 20_000)
    plain = fit_calibration(predictions, ["m"] * 20_000, lengths).apply(predictions, ["m"] * 20_000)
    held = [coverage(careful, lengths, level) - level for level in (0.5, 0.9)]
    assert min(held) == pytest.approx(0.0, abs=0.005)
    assert max(held) > 0.005
    assert min(coverage(plain, lengths, level) - level for level in (0.5, 0.9)) < -0.005


@settings(max_examples=50)
@given(st.floats(-2, 2), st.floats(0.2, 5), st.integers(10, 60))
def test_calibrating_what_was_moved_moves_it_back(shift: float, factor: float, prompts: int) -> None:
    predictions, lengths = world(7, prompts)
    other = replace(predictions, mu=predictions.mu + shift, sigma=predictions.sigma * factor)
    moved = fit_calibration(other, ["m"] * prompts, lengths)
    still = fit_calibration(predictions, ["m"] * prompts, lengths)
    again = moved.apply(other, ["m"] * prompts)
    assert again.mu == pytest.approx(still.apply(predictions, ["m"] * prompts).mu)
    assert again.sigma == pytest.approx(still.apply(predictions, ["m"] * prompts).sigma)


def test_a_calibration_survives_being_saved() -> None:
    predictions, lengths = world(8, 50)
    told = fit_calibration(predictions, ["a"] * 25 + ["b"] * 25, lengths, levels=(0.5, 0.9))
    assert Calibration.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_too_few_prompts_or_columns_that_do_not_fit_are_refused() -> None:
    predictions, lengths = world(9, 5)
    with pytest.raises(InputError, match="5 prompts are too few"):
        fit_calibration(predictions, ["m"] * 5, lengths)
    with pytest.raises(InputError, match="5 predictions, 4 LLMs and 5 rows"):
        fit_calibration(predictions, ["m"] * 4, lengths)


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
