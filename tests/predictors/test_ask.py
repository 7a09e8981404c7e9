"""The prompt method asks in the paper's words, and understands what LLMs say."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lengthwise.predictors.ask import LONGEST, ask_length, ask_lengths, parse_length, question


def test_the_question_is_the_papers() -> None:
    assert question("Who are you") == (
        'Predict the length of your answer before answering my question, use the format:"[length(only one number)]: '
        '(your answer)". The length of your answer should be as close to the prediction of the length you give me as '
        "possible. Remember to follow the format. Who are you"
    )


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        ("55: I'm an artificial intelligence model known as Llama.", 55),
        ("[55]: I'm an AI.", 55),
        ("(55): I'm an AI.", 55),
        ("[length]: 120 The history of tea begins in 2737 BC.", 120),
        ("[length(only one number)]: 120\n\nThe history", 120),
        ("[length(55)]: I'm an AI.", 55),
        ("[length: 55] I'm an AI.", 55),
        ("[Length = 1,250]: There are 3 reasons.", 1250),
        ("Length: about 200 words\n\nTea is", 200),
        ("**Length:** 75\n\nTea", 75),
        ("Predicted length: ~80 tokens. Tea", 80),
        ("The length of my answer is 90 words.", 90),
        ("**150 tokens**\n\nTea is", 150),
        ("About 150 words: Tea is", 150),
        ("~ 42: yes", 42),
        ("100-150 words: Tea", 125),
        ("[100 to 200]: Tea", 150),
        ("1.5k tokens: a novel", 1500),
        ("2k: a novel", 2000),
        ("37", 37),
        ("37\nYes, it is.", 37),
        ("`64`: code", 64),
        ('"64": code', 64),
        ("<think>The user wants 3 things: 1, 2.</think>\n\n88: Tea", 88),
        ("Sure! [55]: I'm an AI.", 55),
        ("My answer will be about 80 words long.", 80),
        ("  \n 12 : yes", 12),
        ("55： 我是", 55),
    ],
)
def test_all_the_ways_llms_state_a_length(answer: str, length: int) -> None:
    assert parse_length(answer) == length


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "   ",
        "I'm an artificial intelligence model.",
        "1. First, boil water.\n2. Add tea.",
        "Here are 3 reasons why tea is good.",
        "2024 was a good year for tea.",
        "12:30 is a good time for tea.",
        "[length]: (your answer)",
        "Tea: 5 grams, water: 200 ml",
        "I can't predict the length of my answer.",
        "<think>maybe 100 words",
        "0: nothing",
        "99999999999999999999999999: too much",
        "The answer to your question is 42.",
    ],
)
def test_numbers_that_are_no_length_are_not_taken_for_one(answer: str) -> None:
    assert parse_length(answer) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=300))
def test_any_text_is_understood_or_not_but_never_an_error(answer: str) -> None:
    told = parse_length(answer)
    assert told is None or 1 <= told <= LONGEST


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, LONGEST), st.text(max_size=50))
def test_the_asked_for_format_is_always_understood(length: int, rest: str) -> None:
    assert parse_length(f"[{length}]: {rest}") == length


def test_a_host_asks_through_its_own_function() -> None:
    heard: list[str] = []

    async def complete(prompt: str) -> str:
        heard.append(prompt)
        return "70: tea" if "tea" in prompt else "no idea"

    assert asyncio.run(ask_length("what is tea?", complete)) == 70
    assert heard == [question("what is tea?")]
    assert asyncio.run(ask_lengths(["tea", "coffee"], complete)) == [70, None]


def test_no_more_are_on_the_way_than_allowed_and_errors_pass_through() -> None:
    running = most = 0

    async def complete(prompt: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        if prompt.endswith("bad"):
            raise ConnectionError("gone")
        return "9: x"

    assert asyncio.run(ask_lengths(["a"] * 20, complete, at_once=3)) == [9] * 20
    assert most == 3
    with pytest.raises(ConnectionError):
        asyncio.run(ask_lengths(["bad"], complete))
