"""The study of LLMs that think, on answers with known properties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.thinking import LlmAnswers, ThinkingGrid, score, switched
from lengthwise.predictors.adapt import unknown_llms_unlogged

GRID = ThinkingGrid(predictor="fast", orders=2)
PROMPTS = tuple(f"Riddle {number}: who is lying?" for number in range(40))


def answers(llm: str, level: float, *, between: float, within: float, seed: int = 0) -> LlmAnswers:
    """Answers whose prompts have the same effects for every LLM."""
    effect = between * np.random.default_rng(7).standard_normal(len(PROMPTS))
    noise = within * np.random.default_rng(seed).standard_normal((len(PROMPTS), 3))
    tokens = np.rint(np.exp(level + effect[:, None] + noise)).astype(int)
    return LlmAnswers(llm, "made", PROMPTS, tuple(map(tuple, tokens.tolist())))


def test_the_share_within_prompts_is_that_of_repeated_answers() -> None:
    assert answers("a", 7.0, between=0.8, within=0.4).within() == pytest.approx(0.2, abs=0.08)
    assert answers("a", 7.0, between=0.0, within=0.5).within() == pytest.approx(1.0, abs=0.1)
    alone = LlmAnswers("a", "made", ("x", "y"), ((10,), (20,)))
    assert math.isnan(alone.within())


@unknown_llms_unlogged()
def test_other_llms_order_prompts_that_the_text_does_not_and_learning_finds_the_level() -> None:
    own, other = (answers(llm, 8.0, between=0.8, within=0.3, seed=seed) for seed, llm in enumerate(("a", "b")))
    found = score(own, [other], GRID)
    assert found.tau_of_others > 0.6
    assert found.ratio > 3.0
    assert 0.6 < found.learned_ratio < 1.6
    assert found.learned_covered > found.covered


@unknown_llms_unlogged()
def test_a_learner_that_is_told_the_switch_errs_less() -> None:
    off, on = (answers(llm, level, between=0.3, within=0.2) for llm, level in (("off", 5.0), ("on", 8.0)))
    found = switched("a", off, on, GRID)
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(math.exp(3.0), rel=0.2)
    assert found.apart < 0.6 * found.together
