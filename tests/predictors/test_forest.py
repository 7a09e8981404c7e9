"""Magnus learns from what it missed, and only from that."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import wide_prior
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.forest import Forest, features, is_miss, sklearn_forest


@dataclass
class Mean:
    """Stands in for a forest where only the learning loop is looked at."""

    sizes: list[int] = field(default_factory=list)
    value: float = 0.0

    def fit(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> Any:
        assert len(x) == len(y)
        self.sizes.append(len(x))
        self.value = float(y.mean())

    def predict(self, x: NDArray[np.float64]) -> Any:
        return np.full(len(x), self.value)


def ask(text: str = "x", llm: str = "meta-llama/Llama-3.1-8B-Instruct") -> PredictionInput:
    return PredictionInput(text, llm, prompt_tokens=5)


@pytest.mark.parametrize(
    ("predicted", "length", "miss"),
    [(100, 105, False), (100, 111, True), (1000, 1009, False), (1000, 1200, True), (20, 24, True), (50, 50, False)],
)
def test_a_miss_is_off_by_more_than_10_tokens_or_10_percent(predicted: float, length: int, miss: bool) -> None:
    assert is_miss(predicted, length) is miss


def test_before_the_first_fit_the_history_is_predicted() -> None:
    forest = Forest(make=Mean)
    assert isinstance(forest, LengthPredictor)
    assert forest.predict([ask()])[0] == wide_prior()
    forest.observe(ask(), 40)
    assert forest.predict([ask()])[0] == forest.history.predict([ask()])[0]


def test_it_retrains_on_misses_and_not_on_hits() -> None:
    forest = Forest(make=Mean, retrain_every=30)
    for _ in range(50):
        forest.observe(ask(), 200)
    assert forest.fits == 1
    for _ in range(300):
        forest.observe(ask(), 203)
    assert forest.fits == 1
    for _ in range(30):
        forest.observe(ask(), 800)
    assert forest.fits == 2


def test_the_spread_of_its_predictions_is_that_of_its_errors() -> None:
    rng, forest = np.random.default_rng(0), Forest(make=Mean, retrain_every=100)
    for _ in range(1000):
        forest.observe(ask(), max(1, round(200 * np.exp(0.3 * rng.standard_t(3.5)))))
    told = forest.predict([ask()])
    assert told.sigma[0] == pytest.approx(0.3, rel=0.2)
    assert told.quantile(0.5)[0] == pytest.approx(200, rel=0.15)


def test_cut_answers_shorter_than_predicted_teach_nothing() -> None:
    forest = Forest(make=Mean, retrain_every=10)
    for _ in range(50):
        forest.observe(ask(), 400)
    for _ in range(40):
        forest.observe(ask(), 100, censored=True)
    assert forest.fits == 1


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(InputError, match=r"needs scikit-learn.*pip install"):
        sklearn_forest()


def test_a_real_forest_tells_long_prompts_from_short_ones() -> None:
    pytest.importorskip("sklearn")
    rng, forest = np.random.default_rng(1), Forest()
    for n in range(300):
        text, length = ("write an essay on", 900) if n % 2 else ("yes or no", 10)
        forest.observe(ask(f"{text} {n}"), max(1, round(length * np.exp(0.2 * rng.standard_normal()))))
    long, short = forest.predict([ask("write an essay on tea"), ask("yes or no tea")])
    assert long.quantile(0.5) == pytest.approx(900, rel=0.3)
    assert short.quantile(0.5) == pytest.approx(10, rel=0.4)


def test_features_know_prompt_and_llm() -> None:
    assert features(ask("a b")).shape == features(PredictionInput("", "unknown")).shape
    assert not np.array_equal(features(ask(llm="qwen-7b")), features(ask(llm="llama-7b")))
