"""Predictions as columns, inputs, and chats as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.lengths import Histogram, LogT
from lengthwise.predictors import HistogramPredictions, LogTPredictions, PredictionInput, Predictions
from lengthwise.predictors.contract import as_inputs, render_chat


def test_log_t_predictions_are_columns_of_log_t_distributions() -> None:
    predictions = LogTPredictions.of([5.0, 6.0], [0.5, 1.0], [512, 8192], sample_mean=[150, 500])
    assert isinstance(predictions, Predictions)
    assert [predictions[i] for i in range(2)] == [LogT(5.0, 0.5, 512), LogT(6.0, 1.0, 8192)]
    assert np.isnan(predictions.sample_std).all()


def test_histograms_are_predictions() -> None:
    predictions = HistogramPredictions.of([0, 100, 200], [[0.5, 0.5], [1.0, 0.0]], 8192)
    assert isinstance(predictions, Predictions)
    assert predictions[1] == Histogram([0, 100, 200], [1.0, 0.0], 8192)
    assert predictions.quantile(0.5) == pytest.approx([100, 50])
    with pytest.raises(InputError, match="one edge more than bins"):
        HistogramPredictions.of([0, 100], [[0.5, 0.5]], 8192)


def test_bare_prompts_become_inputs() -> None:
    ready = PredictionInput("x", "llm", max_tokens=5)
    assert as_inputs(["a", ready], ["l1", "l2"]) == [PredictionInput("a", "l1"), ready]
    assert as_inputs([ready]) == [ready]
    assert (ready.cap, PredictionInput("x", "y").cap) == (5, 8192)
    with pytest.raises(InputError, match="1 prompts for 2 LLMs"):
        as_inputs(["a"], ["l1", "l2"])
    with pytest.raises(InputError, match=r"row 1.*one LLM name"):
        as_inputs(["a"])


def test_a_single_user_turn_is_rendered_unchanged() -> None:
    assert render_chat([{"role": "user", "content": "Hello"}]) == "Hello"


def test_roles_are_marked_and_tools_named() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]},
        {"role": "user", "content": "Well?"},
    ]
    assert render_chat(messages, [{"type": "function", "function": {"name": "look"}}]) == (
        "<tools> look\n<system> Be brief.\n<user> What is this?\n[image_url]\n<assistant> [call look]\n<user> Well?"
    )
