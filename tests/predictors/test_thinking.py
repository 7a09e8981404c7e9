"""A request's switch for reasoning is read in every form, and nothing that a client sends breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.predictors import PredictionInput
from lengthwise.predictors.history import History
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.thinking import (
    LEVELS,
    thinking_of_fields,
    thinking_of_prompt,
    thinking_of_text,
    understood,
)
from tests.predictors.guesses import Guess


@pytest.mark.parametrize(
    ("fields", "switch"),
    [
        ({}, None),
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "none"}, "off"),
        ({"reasoning_effort": "minimal"}, "low"),
        ({"reasoning": {"effort": "medium"}}, "medium"),
        ({"reasoning": {"enabled": False}}, "off"),
        ({"enable_thinking": True}, "on"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "off"),
        ({"chat_template_kwargs": {"thinking": True}}, "on"),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 4096}}, "on"),
        ({"thinking": {"type": "disabled"}}, "off"),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "off"),
        ({"reasoning_effort": 7, "thinking": [], "chat_template_kwargs": "no"}, None),
    ],
)
def test_every_form_of_the_switch_is_read(fields: dict[str, Any], switch: str | None) -> None:
    assert thinking_of_fields(fields) == switch


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["high", "enabled", "none"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "effort", "x"]), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(st.sampled_from(["reasoning_effort", "reasoning", "thinking", "chat_template_kwargs"]), anything)
)
def test_any_value_is_understood_or_ignored(fields: dict[str, Any]) -> None:
    assert thinking_of_fields(fields) in (None, *LEVELS)


@pytest.mark.parametrize(
    ("text", "switch"),
    [
        ("Why is the sky blue? /no_think", "off"),
        ("Why is the sky blue?\n/think", "on"),
        ("/think first\nno, /no_think", "off"),
        ("see example.com/think and /thinking", None),
        ("Why?", None),
    ],
)
def test_the_last_switch_in_a_prompt_counts(text: str, switch: str | None) -> None:
    assert thinking_of_text(text) == switch
    assert PredictionInput(text, "a").switch == switch


@pytest.mark.parametrize(
    ("rendered", "switch"),
    [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "off"),
        ("<|User|>Hi<|Assistant|><think>\n", "on"),
        ("<|start|>system<|message|>You are ChatGPT.\n\nReasoning: high\n\n<|end|>", "high"),
        ("<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n", None),
    ],
)
def test_the_switch_is_read_from_a_rendered_prompt(rendered: str, switch: str | None) -> None:
    assert thinking_of_prompt(rendered) == switch


def test_a_field_counts_more_than_the_text() -> None:
    assert PredictionInput("Hi /no_think", "a", thinking="high").switch == "high"


def test_a_name_that_is_no_state_of_the_switch_is_not_understood() -> None:
    assert [understood(name) for name in ("off", "very", None)] == ["off", None, None]


def test_a_learner_tells_answers_with_and_without_thinking_apart() -> None:
    learner = Learner(Guess())
    rng = np.random.default_rng(0)
    for number in range(60):
        for switch, median in (("on", 3000.0), ("off", 100.0)):
            request = PredictionInput(f"question {number} 500", "qwen3-8b", thinking=understood(switch))
            learner.observe(request, median * float(np.exp(0.3 * rng.standard_normal())))
    on, off, unsaid = (
        float(learner.predict([PredictionInput("another question 500", "qwen3-8b", thinking=switch)]).quantile(0.5)[0])
        for switch in ("on", "off", None)
    )
    assert on == pytest.approx(3000.0, rel=0.3)
    assert off == pytest.approx(100.0, rel=0.3)
    assert off < unsaid < on


def test_history_counts_thinking_and_answer_together() -> None:
    history = History()
    for _ in range(50):
        history.observe("qwen3-8b", 2_000)
    assert history.predict("hi", "qwen3-8b").quantile(0.5)[0] == pytest.approx(2_000, rel=0.3)
