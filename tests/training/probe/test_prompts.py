from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lengthwise.training.probe.learn import Correction, learn_correction
from lengthwise.training.probe.states import States
from tests.training.probe.made import made_states


def test_a_prediction_that_is_off_by_a_factor_is_brought_back() -> None:
    states = made_states(prompts=400)
    length = np.log(states.generated + states.remaining)
    wrong = replace(
        states, mu=2.0 * (length - 1.0), sigma=np.full(len(states), 3.0), capped=np.zeros(len(states), bool)
    )
    found = learn_correction(wrong)
    assert found.shift == pytest.approx(1.0, abs=0.02)
    assert found.slope == pytest.approx(0.5, abs=0.01)
    assert found.factor < 0.05
    assert found.of(wrong).mu == pytest.approx(length, abs=0.05)


def test_cut_answers_pull_upwards_only() -> None:
    states = made_states(prompts=400)
    cut = learn_correction(states)
    ended = learn_correction(replace(states, capped=np.zeros(len(states), bool)))
    assert _median(cut, states) > _median(ended, states)


def test_held_out_answers_teach_nothing() -> None:
    states = made_states(prompts=200)
    other = replace(states, remaining=np.where(states.trained, states.remaining, 5))
    assert learn_correction(other) == learn_correction(states)


def _median(correction: Correction, states: States) -> float:
    return float(correction.of(states).mu[0])
