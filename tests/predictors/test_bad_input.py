"""For nonsense prompts both packaged predictors return wide distributions that are not short."""

from __future__ import annotations

import random
from functools import cache
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.predictors.contract import LoadedPredictor, as_logt
from lengthwise.predictors.resolve import load_predictor

LLAMA: Final = "meta-llama/Llama-3.1-8B-Instruct"
LONG_ENOUGH: Final = 250
"""The least upper end of a 90 % interval, in tokens."""
_random = random.Random(0)
NONSENSE: Final = {
    "empty": "",
    "blank": " \n\t ",
    "1 MB of words": "lorem ipsum dolor " * 58_000,
    "1 MB without a space": "x" * 1_000_000,
    "binary": "".join(map(chr, _random.choices(range(256), k=3_000))),
    "NUL": "\0" * 500,
    "lone surrogate": "\ud800",
    "base64": "".join(_random.choices("ABCDEFGHabcdefgh0123456789+/", k=4_000)),
    "token ids": str([_random.randrange(50_000) for _ in range(400)]),
    "token ids without commas": " ".join(str(_random.randrange(50_000)) for _ in range(200)),
    "emoji": "🎉🎉🎉",
}
OTHER_SCRIPTS: Final = {
    "Chinese": "请详细介绍一下南京大学的历史和现状，并列出主要学科。",
    "Arabic": "اكتب مقالة طويلة عن تاريخ القاهرة",
    "Hindi": "दिल्ली के इतिहास पर एक निबंध लिखें",
}


@cache
def packaged(name: str) -> LoadedPredictor:
    return load_predictor(name)


@pytest.mark.parametrize("name", ["fast", "default", "rank"])
@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_predicted_widely_and_not_as_short(name: str, text: str) -> None:
    found = as_logt(packaged(name).predict([text], [LLAMA]))
    assert found.sigma[0] >= 0.8
    assert found.quantile(0.95)[0] >= LONG_ENOUGH
    assert found.quantile(0.05)[0] <= found.quantile(0.5)[0] <= found.cap[0]


@pytest.mark.parametrize("name", ["fast", "default", "rank"])
@pytest.mark.parametrize("text", OTHER_SCRIPTS.values(), ids=OTHER_SCRIPTS.keys())
def test_other_scripts_are_predicted_widely_and_not_as_short(name: str, text: str) -> None:
    found = as_logt(packaged(name).predict([text], [LLAMA]))
    assert found.sigma[0] >= 0.4  # `default` learned from answers to Chinese prompts
    assert found.quantile(0.95)[0] >= 2 * LONG_ENOUGH


def check(name: str, text: str, llm: str) -> None:
    found = as_logt(packaged(name).predict([text], [llm]))
    assert np.isfinite([found.mu[0], found.sigma[0]]).all()
    assert 1.0 <= found.quantile(0.5)[0] <= found.cap[0]
    assert 0.0 < found.sigma[0] < 8.0


odd_text = st.one_of(
    st.text(alphabet=st.characters(), max_size=300),
    st.binary(max_size=600).map(lambda raw: raw.decode("latin-1")),
    st.lists(st.integers(0, 128_000), max_size=120).map(str),
    st.tuples(st.text(min_size=1, max_size=8), st.integers(1, 20_000)).map(lambda pair: pair[0] * pair[1]),
)


@settings(max_examples=80)
@given(odd_text, st.text(max_size=40))
def test_fast_answers_any_text_and_any_llm(text: str, llm: str) -> None:
    check("fast", text, llm)


@settings(max_examples=12)
@given(odd_text, st.text(max_size=40))
def test_default_answers_any_text_and_any_llm(text: str, llm: str) -> None:
    check("default", text, llm)
