from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.probe import log_bins
from tests.training.probe.extras import torch
from tests.training.probe.made import made_states

from lengthwise.training.probe.errors_by_age import HEAT, JOINT_SMOOTH, PROMPT_BY_AGE, heat  # isort: skip
from lengthwise.training.probe.learn import ProbeRecipe, fit  # isort: skip
from lengthwise.training.probe.learn import _negative_log_likelihood  # isort: skip
from lengthwise.training.probe.learn import train_probe  # isort: skip
from lengthwise.training.probe.states import Correction, States, learn_correction  # isort: skip

RECIPE = ProbeRecipe(hidden=16, dropout=0.0, input_dropout=0.0, epochs=10, networks=1, rate=1e-2)


def test_the_informative_layer_is_chosen_and_beats_the_prompt() -> None:
    states = made_states()
    trained = train_probe(states, log_bins(states.cap), "tiny", recipe=RECIPE, name="made", report=lambda *_: None)
    assert trained.probe.layer == 2
    scores = {way.name: way.overall for way in trained.scores}
    assert scores[JOINT_SMOOTH].mae < 0.6 * scores[PROMPT_BY_AGE].mae
    assert scores[JOINT_SMOOTH].tau > 0.7
    assert trained.probe.card["data"]["corpora"] == ["Mbpp"]
    assert trained.capped == pytest.approx(float((states.capped[states.generated == 0]).mean()))


def test_held_out_test_and_excluded_prompts_are_not_trained_on() -> None:
    states = made_states()
    number = states.answer[states.trained]
    assert not ((number % 5 == 0) | (number % 7 == 0) | (number % 11 == 0)).any()
    once = fit(states, states.trained, 2, log_bins(200), (), RECIPE)
    spoiled = {2: np.where(states.trained[:, None], states.layers[2], np.float16(9.0))}
    other = made_states()
    object.__setattr__(other, "layers", spoiled)
    again = fit(other, other.trained, 2, log_bins(200), (), RECIPE)
    assert all(np.array_equal(once.network.arrays()[name], value) for name, value in again.network.arrays().items())


def test_a_capped_answer_counts_as_its_bin_and_all_above() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.3, 0.5]] * 2))
    found = _negative_log_likelihood(logits, torch.tensor([1, 1]), torch.tensor([False, True]))
    assert torch.allclose(found, -torch.log(torch.tensor([0.3, 0.8])))


def test_a_collected_state_is_weighted_by_the_states_it_represents() -> None:
    states = made_states(prompts=10)
    assert np.allclose(states.weight, 1.0)
    half = states.where(states.generated % 32 == 0)
    object.__setattr__(half, "generated", half.generated)
    assert half.step == 32
    few = states.where((states.generated % 48 == 0) | (states.generated == 16))
    assert few.weight.max() > 1.5


def test_training_without_held_out_prompts_is_refused() -> None:
    states = made_states()
    rows = states.trained
    with pytest.raises(InputError, match="held out"):
        train_probe(states.where(rows), log_bins(200), "tiny", recipe=RECIPE, name="made", report=lambda *_: None)


def test_a_heatmap_has_the_share_of_each_true_bin_in_each_predicted_bin() -> None:
    true, point = np.array([3, 3, 900]), np.array([3.0, 900.0, 900.0])
    found = heat(true, point, np.array([3.0, 1.0, 1.0]))
    low, high = HEAT.of([3, 900])
    assert found[low, low] == 0.75
    assert found[low, high] == 0.25
    assert found[high, high] == 1.0
    assert np.allclose(found.sum(axis=1)[[low, high]], 1.0)


def test_a_prediction_that_is_off_by_a_factor_is_corrected() -> None:
    states = made_states(prompts=400)
    length = np.log(states.generated + states.remaining)
    wrong = replace(
        states, mu=2.0 * (length - 1.0), sigma=np.full(len(states), 3.0), capped=np.zeros(len(states), bool)
    )
    found = learn_correction(wrong.where(wrong.trained))
    assert found.shift == pytest.approx(1.0, abs=0.02)
    assert found.slope == pytest.approx(0.5, abs=0.01)
    assert found.factor < 0.05
    assert found.of(wrong).mu == pytest.approx(length, abs=0.05)


def test_capped_answers_raise_the_correction() -> None:
    states = made_states(prompts=400)
    cut = learn_correction(states)
    ended = learn_correction(replace(states, capped=np.zeros(len(states), bool)))
    assert _median(cut, states) > _median(ended, states)


def test_held_out_answers_do_not_change_the_correction() -> None:
    states = made_states(prompts=200)
    other = replace(states, remaining=np.where(states.trained, states.remaining, 5))
    found = [
        train_probe(each, log_bins(200), "tiny", recipe=RECIPE, name="made", report=lambda *_: None).correction
        for each in (states, other)
    ]
    assert found[0] == found[1]


def _median(correction: Correction, states: States) -> float:
    return float(correction.of(states).mu[0])
