"""The shipped fast tier: what it predicts, and what it never does."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.fast import FastPredictor
from lengthwise.predictors.resolve import load_predictor

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
PLAIN = "Write a Python function that returns the sum of all even numbers in a list. Explain how it works."


@pytest.fixture(scope="module")
def fast() -> FastPredictor:
    return cast("FastPredictor", load_predictor("fast"))


def median(fast: FastPredictor, prompt: str, llm: str = LLAMA) -> float:
    return float(fast.predict([prompt], [llm]).quantile(0.5)[0])


def sigma(fast: FastPredictor, prompt: str, llm: str = LLAMA) -> float:
    return float(fast.predict([prompt], [llm]).sigma[0])


def test_it_keeps_the_contract(fast: FastPredictor) -> None:
    assert isinstance(fast, LengthPredictor)
    predictions = fast.predict([PredictionInput(PLAIN, LLAMA, max_tokens=50)])
    assert predictions[0].cap == 50
    assert predictions.sample_mean[0] > 0
    assert predictions.sample_std[0] > 0
    assert len(fast.predict([])) == 0


def test_a_long_programming_contest_is_answered_at_greater_length_than_who_is(fast: FastPredictor) -> None:
    contest = (
        "QUESTION: Alice has an array of N integers and Q queries. For each query print the sum of the elements "
        "from L to R modulo 1000000007.\n\n-----Input-----\nThe first line contains N and Q.\n\n"
        "-----Output-----\nFor each query print one line.\n\n-----Sample Input-----\n3 1\n1 2 3\n1 3\n\n"
        "-----Sample Output-----\n6\n"
    )
    assert median(fast, contest) > 1.5 * median(fast, "Who is Ada Lovelace?")


def test_prompts_predicted_together_get_what_each_gets_alone(fast: FastPredictor) -> None:
    prompts = [PLAIN, "Who was Ada Lovelace?", "", "def f(x):\n    return x"]
    llms = [LLAMA, "gemma-3-4b", "mixtral-8x7b", "nobody/knows-this"]
    together = fast.predict(prompts, llms)
    alone = [fast.predict([prompt], [llm]) for prompt, llm in zip(prompts, llms, strict=True)]
    np.testing.assert_allclose(together.mu, [one.mu[0] for one in alone], rtol=1e-4)
    np.testing.assert_allclose(together.sigma, [one.sigma[0] for one in alone], rtol=1e-4)


def test_a_short_name_is_the_llm_it_means(fast: FastPredictor) -> None:
    assert median(fast, PLAIN, "llama-3.1-8B") == median(fast, PLAIN, LLAMA)
    assert median(fast, PLAIN, "llama-3.2-1B") != median(fast, PLAIN, LLAMA)


def test_an_unknown_llm_is_said_once_and_predicted_more_widely(
    fast: FastPredictor, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            unknown = sigma(fast, PLAIN, "acme/unheard-of-9B")
    assert [record.getMessage() for record in caplog.records if "unheard-of" in record.getMessage()] == [
        "LLM 'acme/unheard-of-9B' is not known to this predictor: its predictions are those of an unknown LLM"
    ]
    assert unknown > sigma(fast, PLAIN)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        " \n\t ",
        "请详细介绍一下南京大学的历史和现状，并列出主要学科。",
        "Расскажите подробно об истории Московского университета.",
        "".join(map(chr, random.Random(0).choices(range(256), k=3_000))),
        "lorem ipsum dolor " * 25_000,
        "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FA5), k=100_000))),
    ],
    ids=["empty", "blank", "Chinese", "Russian", "noise", "100k tokens", "100k Chinese"],
)
def test_prompts_unlike_the_training_data_are_predicted_more_widely(fast: FastPredictor, odd: str) -> None:
    assert sigma(fast, odd) > 1.5 * sigma(fast, PLAIN)


@settings(deadline=None, max_examples=200)
@given(st.text(alphabet=st.characters(), max_size=400), st.text(max_size=40))
def test_any_string_is_a_prompt_and_any_string_an_llm(prompt: str, llm: str) -> None:
    predictor = cast("FastPredictor", _shared())
    prediction = predictor.predict([prompt], [llm])[0]
    assert 1.0 <= prediction.quantile(0.5) <= prediction.cap


def test_a_lone_surrogate_is_a_prompt_too(fast: FastPredictor) -> None:
    assert median(fast, "\ud800 what is this?") >= 1.0


def test_time_is_bounded_however_long_the_prompt(fast: FastPredictor) -> None:
    started = time.process_time()
    median(fast, "word " * 2_000_000)
    assert time.process_time() - started < 0.5


def test_the_middle_of_a_long_prompt_is_not_read(fast: FastPredictor) -> None:
    first, last = "Summarise this. " * 300, "Answer in one sentence. " * 60
    one, other = (f"{first}{middle * 500}{last}" for middle in ("alpha ", "omega "))
    assert median(fast, one) == median(fast, other)


def test_the_card_says_what_a_user_must_know(fast: FastPredictor) -> None:
    assert fast.card["licences"]["CASTILLO (lengths)"] == "CC-BY-4.0"
    assert "Apache-2.0" in fast.card["licences"]["MiniLM (encoder)"]
    assert len(fast.card["teacher"]["answers_sha256"]) == 64
    assert "No Alpaca" in fast.card["data"]
    held, test = fast.card["figures"]["held_out"], fast.card["figures"]["test"]
    assert test["tau"] > 0.5
    assert 0.47 <= held["cover50"] <= 0.53
    assert 0.88 <= held["cover90"] <= 0.92


def test_a_prediction_loads_neither_torch_nor_a_tokenizer() -> None:
    program = (
        "import sys; from lengthwise.predictors.resolve import load_predictor;"
        "load_predictor('fast').predict(['hello'], ['llama-3.2-3B']);"
        "assert not {'torch', 'transformers', 'tokenizers', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


_kept: list[object] = []


def _shared() -> object:
    """One predictor for Hypothesis, which takes no fixtures of narrower scope."""
    if not _kept:
        _kept.append(load_predictor("fast"))
    return _kept[0]
