"""An adapted LLM is one LLM more; the others stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions, PredictionInput
from lengthwise.predictors.adapt import AdaptedPredictor, from_part, to_part
from lengthwise.predictors.mixture import NAMES, Mixture, Tilt
from tests.predictors.adapt import worlds

NO_TILT = Tilt(np.zeros(len(NAMES)), np.zeros(len(NAMES)), np.ones(len(NAMES)))
HALF = Mixture(np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.5, 0.0]), 1.0, 2.0, NO_TILT)
TEXT = "5.0 6.0 7.0"


def predictor(**adapted: Mixture) -> AdaptedPredictor:
    return AdaptedPredictor(worlds.Base(), adapted or {"me/Mine-Instruct": HALF})


def test_a_new_llm_is_mixed_and_the_known_ones_are_as_before() -> None:
    asked = [PredictionInput(TEXT, llm, 4000) for llm in ("me/Mine-Instruct", worlds.KNOWN[2])]
    found = predictor().predict(asked)
    assert isinstance(found, LogTPredictions)
    assert found.mu.tolist() == pytest.approx([6.5, 7.0])
    assert found.sigma.tolist() == pytest.approx([2 * worlds.SIGMA, worlds.SIGMA])
    assert [found[i].cap for i in range(2)] == [4000, 4000]
    before = worlds.Base().predict(asked[1:])
    assert found.sample_mean[1] == before.sample_mean[0]


def test_sampling_mean_and_std_keep_their_ratio_to_the_median() -> None:
    found = predictor().predict([TEXT], ["me/Mine-Instruct"])
    assert found.sample_mean[0] / np.exp(6.5) == pytest.approx(1.1)
    assert found.sample_std[0] / found.sample_mean[0] == pytest.approx(0.25)


def test_a_short_name_means_the_adapted_llm_and_one_it_replaces_is_replaced() -> None:
    assert predictor().predict([TEXT], ["mine"])[0].quantile(0.5) == pytest.approx(np.exp(6.5))
    found = AdaptedPredictor(worlds.Base(), {worlds.KNOWN[2]: HALF})
    assert found.predict([TEXT], [worlds.KNOWN[2]])[0].quantile(0.5) == pytest.approx(np.exp(6.5))
    assert found.llms == worlds.KNOWN


def test_where_no_adapted_llm_is_asked_for_the_base_is_asked_once_each() -> None:
    found = predictor()
    found.predict([TEXT] * 3, list(worlds.KNOWN))
    assert isinstance(found.base, worlds.Base)
    assert found.base.asked == 3
    assert len(found.predict([], [])) == 0


def test_mixtures_survive_their_file_and_a_broken_part_is_named() -> None:
    tilt = Tilt(*(np.arange(12, dtype=np.float64) + n for n in range(3)))
    data = to_part({"m": Mixture(HALF.weights, HALF.likeness, 0.3, 1.2, tilt)}, worlds.KNOWN)
    again = from_part(data, worlds.KNOWN, "here")["m"]
    assert again.weights.tolist() == HALF.weights.tolist()
    assert (again.shift, again.factor) == (0.3, 1.2)
    assert again.tilt.spread.tolist() == tilt.spread.tolist()
    for broken, llms in ((b"{", worlds.KNOWN), (b'{"m": {}}', worlds.KNOWN), (data, (*worlds.KNOWN, "another"))):
        with pytest.raises(InputError, match=r"adapted\.json.*adapt it again"):
            from_part(broken, llms, "here")
