"""What a prompt says about its length is read in six languages, and any string is a valid prompt."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.encoder import EncoderPredictor
from lengthwise.predictors.fast import FastPredictor
from lengthwise.predictors.resolve import load_predictor
from lengthwise.predictors.stated_length import (
    LOG_UNIT,
    NOTHING,
    SPREADS,
    STATED,
    StatedLength,
    combined,
    stated,
    with_observations,
)
from lengthwise.training.stated_rows import made_samples


@pytest.mark.parametrize(
    ("text", "field", "tokens"),
    [
        ("Write a 3000 word essay about Rome.", "exact", 4050),
        ("Write a 3,000-word essay about Rome.", "exact", 4050),
        ("Eine Geschichte mit 3.000 Wörtern", "exact", 5700),
        ("un récit de 1 000 mots", "exact", 1600),
        ("between 200 and 250 words", "exact", 302),
        ("(50 - 100 words)", "exact", 95),
        ("two thousand words on tea", "exact", 2700),
        ("a 2k word story", "exact", 2700),
        ("three paragraphs of 100 words each", "exact", 405),
        ("Answer in no more than 200 words.", "at_most", 270),
        ("100 words or less", "at_most", 135),
        ("höchstens 50 Wörter", "at_most", 95),
        ("en moins de 100 mots", "at_most", 160),
        ("en menos de 100 palabras", "at_most", 160),
        ("请用200字以内回答", "at_most", 220),
        ("200字以内で答えて", "at_most", 220),
        ("at least 300 words", "at_least", 405),
        ("au moins 300 mots", "at_least", 480),
        ("al menos 300 palabras", "at_least", 480),
        ("至少300字", "at_least", 330),
        ("300字以上", "at_least", 330),
        ("Explain it in one sentence.", "exact", 25),
        ("in drei Sätzen", "exact", 75),
        ("用三句话介绍", "exact", 90),
        ("Give 5 key bullet points", "items", 5),
        ("List 50 animals", "items", 50),
        ("List the numbers from 1 to 500.", "span", 500),
        ("Cuenta del 1 al 1.200", "span", 1200),
        ("从1数到100", "span", 100),
    ],
)
def test_a_stated_size_is_read_in_tokens(text: str, field: str, tokens: float) -> None:
    assert getattr(stated(text), field) == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("Say only yes.", "terse"),
        ("Antworte nur mit ja oder nein.", "terse"),
        ("en un mot", "terse"),
        ("只回答是或否", "terse"),
        ("Think step by step.", "detailed"),
        ("请详细说明", "detailed"),
        ("Reply as JSON", "json"),
        ("Übersetze: the house", "translate"),
        ("要約してください", "summarise"),
        ("Keep it brief", "brief"),
    ],
)
def test_kinds_of_requests_are_flags(text: str, flag: str) -> None:
    assert getattr(stated(text), flag)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Who was Ada Lovelace?",
        "the word of a man",
        "a word",
        "a letter in a word",
        "one line of text",
        "3 words that begin with a",
        "99999999999999999 words",
        "words, 300 of them",
    ],
)
def test_a_prompt_that_states_no_size_has_none(text: str) -> None:
    assert stated(text) == StatedLength()
    np.testing.assert_array_equal(stated(text).numbers(), NOTHING)


def test_the_text_to_translate_is_measured_and_the_answer_is_as_long() -> None:
    short, long = (stated("Translate into German:\n" + "The river was quiet. " * n) for n in (2, 20))
    assert long.tokens == pytest.approx(10 * short.tokens, rel=0.05)
    assert long.tokens == pytest.approx(20 * 21 / 4, rel=0.01)


@given(st.text(max_size=400))
def test_any_string_gives_bounded_numbers(text: str) -> None:
    numbers = stated(text).numbers()
    assert numbers.shape == (STATED,)
    assert ((numbers >= 0.0) & (numbers <= 12.0 / LOG_UNIT)).all()


@given(st.integers(8, 5_000), st.sampled_from(["words", "Wörter", "mots", "palabras", "字", "文字"]))
def test_the_estimate_grows_in_proportion_to_the_number(number: int, unit: str) -> None:
    one, other = (stated(f"{n} {unit}").tokens for n in (number, 2 * number))
    assert math.log(other / one) == pytest.approx(math.log(2), abs=0.01)


def test_an_estimate_follows_the_most_definite_statement() -> None:
    assert StatedLength(exact=100.0, at_most=400.0).tokens == 100.0
    assert StatedLength(at_least=100.0, at_most=400.0).tokens == pytest.approx(200.0)
    assert StatedLength(translate=True, given=70.0).tokens == 70.0
    assert StatedLength(summarise=True, given=70.0).tokens == 0.0


def test_turns_of_a_chat_that_are_answered_state_nothing() -> None:
    chat = "<system> Be kind.\n<user> Write 500 words.\n<assistant> Rome was ...\n<user> Thanks!"
    assert stated(chat) == StatedLength()
    assert stated(chat.replace("Be kind", "Answer in one sentence")).tokens == 25.0


ASKED = list(csv.DictReader((Path(__file__).parent / "stated_lengths.csv").read_text(encoding="utf-8").splitlines()))
"""Prompts with phrasings that no template of the training data has, and the tokens that they ask for."""


def misses(medians: Sequence[float]) -> list[str]:
    """Return the prompts whose median is not within a factor of 2 of what is asked."""
    return [
        f"{row['prompt']}: {median:.0f} tokens, asked {row['least_tokens']} to {row['most_tokens']}"
        for row, median in zip(ASKED, medians, strict=True)
        if not int(row["least_tokens"]) / 2 <= median <= 2 * int(row["most_tokens"])
    ]


def test_the_estimate_is_near_what_is_asked_in_six_languages() -> None:
    assert Counter(row["language"] for row in ASKED) == dict.fromkeys(("en", "de", "fr", "es", "zh", "ja"), 10)
    assert misses([stated(row["prompt"]).tokens for row in ASKED]) == []


def test_no_prompt_of_the_test_is_made_from_a_template() -> None:
    made = made_samples(["a"], prompts=2_000).table["prompt"].to_pylist()
    skeletons = {_skeleton(prompt) for prompt in made}
    assert skeletons.isdisjoint(_skeleton(row["prompt"]) for row in ASKED)


def _skeleton(prompt: str) -> str:
    return re.sub(r"[\d.,  ]+", "#", prompt.split("\n")[0])


@pytest.mark.parametrize("name", ["fast", "default", "rank"])
@pytest.mark.parametrize("llm", ["meta-llama/Llama-3.1-8B-Instruct", "unknown-llm"])
def test_the_median_of_a_packaged_predictor_is_near_what_is_asked(name: str, llm: str) -> None:
    predictor = load_predictor(name)
    assert isinstance(predictor, FastPredictor | EncoderPredictor)
    prompts = [row["prompt"] for row in ASKED]
    assert misses(predictor.predict(prompts, [llm] * len(prompts)).quantile(0.5).tolist()) == []


@given(st.floats(0.0, 9.0), st.floats(0.05, 1.5), st.floats(0.0, 9.0), st.sampled_from(sorted(SPREADS)))
def test_a_stated_length_moves_a_prediction_towards_it_and_widens_it_where_they_disagree(
    mu: float, sigma: float, log_stated: float, kind: str
) -> None:
    found, spread = combined(mu, sigma, (log_stated, SPREADS[kind]))
    assert min(mu, log_stated) - 1e-9 <= found <= max(mu, log_stated) + 1e-9
    agreed = combined(mu, sigma, (mu, SPREADS[kind]))[1]
    assert agreed <= spread
    assert agreed < SPREADS[kind]


def test_a_size_inside_a_programming_task_is_no_observation() -> None:
    assert stated("Write 200 words.").observation == (math.log(270.0), SPREADS["exact"])
    assert stated("Write a function that splits a string into lines of 200 characters.").observation is None
    assert stated("Who was Ada Lovelace?").observation is None


def test_a_prediction_of_a_prompt_that_states_nothing_is_unchanged() -> None:
    plain = LogTPredictions.of([5.0, 6.0], [0.5, 0.5], 8192.0, sample_mean=[150.0, 400.0], sample_std=[10.0, 10.0])
    assert with_observations(plain, [None, None]) is plain
    found = with_observations(plain, [None, (7.0, 0.4)])
    assert (found.mu[0], found.sigma[0], found.sample_mean[0]) == (5.0, 0.5, 150.0)
    assert 6.0 < found.mu[1] < 7.0
    assert found.sample_mean[1] == pytest.approx(400.0 * math.exp(found.mu[1] - 6.0))
