"""CASTILLO's function predict_response_length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import lengthwise
from lengthwise.errors import InputError
from lengthwise.predictors import HistogramPredictions, PredictionInput
from lengthwise.predictors.castillo_api import p99_class, p99_of_ten, predict_response_length

PROMPT = "Introduce Nanjing University in China."


class Classifier:
    """Predicts a histogram, without sampling mean and std."""

    def predict(self, inputs: Sequence[PredictionInput]) -> HistogramPredictions:
        return HistogramPredictions.of([1, 100, 200], [[0.5, 0.5]] * len(inputs), 8_192)


def test_regression_has_the_papers_keys() -> None:
    found = predict_response_length(PROMPT, "llama-3.2-3B", task="regression", predictor="fast")
    assert set(found) == {"predicted_mean", "predicted_std"}
    assert 50 < found["predicted_mean"] < 2_000
    assert 0 < found["predicted_std"] < found["predicted_mean"]


def test_classification_has_the_papers_keys_and_the_given_bin_width() -> None:
    found = predict_response_length(PROMPT, "llama-3.2-3B", task="classification", bin_width=500, predictor="fast")
    assert set(found) == {"predicted_p99_class", "predicted_p99_range"}
    low, high = found["predicted_p99_range"]
    assert (low, high) == (500 * found["predicted_p99_class"], low + 500)


def test_classes_are_200_tokens_wide_by_default() -> None:
    low, high = predict_response_length(PROMPT, "llama-3.2-3B", "classification")["predicted_p99_range"]
    assert high - low == 200


def test_the_class_is_that_of_the_p99_of_repeated_answers() -> None:
    prediction = lengthwise.predict(PROMPT, "llama-3.2-3B", predictor="fast")
    found = predict_response_length(PROMPT, "llama-3.2-3B", "classification", predictor="fast")
    high = found["predicted_p99_range"][1]
    assert prediction.sample_mean is not None
    assert prediction.sample_mean < high
    assert high < prediction.p99  # which holds what the predictor does not know


def test_a_short_answer_has_the_lowest_class() -> None:
    found = predict_response_length("Say yes.", "llama-3.1-8b", "classification")
    assert found == {"predicted_p99_class": 0, "predicted_p99_range": (0, 200)}


def test_ten_answers_have_the_p99_of_their_mean_and_std_on_average() -> None:
    answers = np.random.default_rng(0).normal(300, 50, (20_000, 10))
    true = np.quantile(answers, 0.99, axis=1)
    assert p99_of_ten(answers.mean(axis=1), answers.std(axis=1)).mean() == pytest.approx(true.mean(), rel=0.01)


def test_without_sampling_figures_the_class_is_that_of_one_answers_p99() -> None:
    found = predict_response_length(PROMPT, "any", "classification", bin_width=50, predictor=Classifier())
    assert found["predicted_p99_range"] == (150, 200)


def test_a_class_holds_its_lower_end_and_not_its_upper() -> None:
    assert p99_class(450.0) == {"predicted_p99_class": 2, "predicted_p99_range": (400, 600)}
    assert [p99_class(each)["predicted_p99_class"] for each in (0.0, 199.9, 200.0)] == [0, 0, 1]


def test_a_predictor_without_sampling_figures_answers_from_its_prediction() -> None:
    found = predict_response_length(PROMPT, "any", predictor=Classifier())
    assert 80 < found["predicted_mean"] < 120


def test_an_unknown_task_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match="'guess' is no task; regression or classification"):
        predict_response_length(PROMPT, "llama-3.2-3B", task="guess")


def test_a_bin_width_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="give at least 1 token"):
        predict_response_length(PROMPT, "llama-3.2-3B", bin_width=0)
