"""The prompt method sends the paper's template and parses what LLMs state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.lengths import wide_prior
from lengthwise.predictors import PredictionInput
from lengthwise.predictors.ask import LONGEST, AskPredictor, parse_length, question
from lengthwise.predictors.evaluation import CEILING, PER_BOTH, PER_LLM, run
from lengthwise.predictors.resolve import resolve_predictor
from tests.conftest import StatingLlm
from tests.predictors.rows import known_rows


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
def test_stated_lengths_are_parsed(answer: str, length: int) -> None:
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
def test_other_numbers_are_not_parsed_as_lengths(answer: str) -> None:
    assert parse_length(answer) is None


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_parsing_any_text_raises_no_error(answer: str) -> None:
    length = parse_length(answer)
    assert length is None or 1 <= length <= LONGEST


@settings(max_examples=50)
@given(st.integers(1, LONGEST), st.text(max_size=50))
def test_the_requested_format_is_always_parsed(length: int, rest: str) -> None:
    assert parse_length(f"[{length}]: {rest}") == length


def test_the_stated_length_is_the_median_and_no_statement_is_the_wide_prior(stating_llm: StatingLlm) -> None:
    predictor = resolve_predictor(f"ask:{stating_llm.url}/v1")
    inputs = [PredictionInput(f"Count to {text}", "m", max_tokens=1000) for text in ("70", "nothing", "12")]
    predictions = predictor.predict(inputs)
    assert predictions.quantile(0.5) == pytest.approx([70, wide_prior().quantile(0.5), 12])
    assert isinstance(predictor, AskPredictor)
    assert (predictor.asked, predictor.stated) == (3, 2)
    body = stating_llm.bodies[-1]
    assert (body["model"], body["max_tokens"]) == ("tiny", 64)
    assert body["messages"][0]["content"].startswith("Predict the length of your answer")


def test_the_prompt_method_is_evaluated_beside_the_constants(stating_llm: StatingLlm) -> None:
    samples, _ = known_rows(20)
    name = f"ask:{stating_llm.url}"
    found = run(name, samples, limit=10)
    assert found.rows == 10
    assert list(found.subjects) == [name, PER_LLM, PER_BOTH, CEILING]


def test_an_unreachable_server_or_a_bad_url_is_an_error() -> None:
    with pytest.raises(InputError, match=r"is the server running"):
        resolve_predictor("ask:http://127.0.0.1:9").predict([PredictionInput("x", "m")])
    with pytest.raises(InputError, match="is not a URL"):
        resolve_predictor("ask:localhost")
