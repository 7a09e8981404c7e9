from __future__ import annotations

import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import resolve_llm

KNOWN = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.2-1B-Instruct",
    "google/gemma-3-4b-it",
    "Qwen/Qwen2.5-7B-Instruct-1M",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 0),
        ("llama-3.1-8B", 0),
        ("Llama-3.1-8B-Instruct", 0),
        ("LLAMA-3.2-1b", 1),
        ("gemma-3-4b", 2),
        ("qwen2.5-7b", 3),
        ("Qwen2.5-7B-1M", 3),
        ("mixtral-8x7b", 4),
    ],
)
def test_short_names_find_the_llm(name: str, meant: int) -> None:
    assert resolve_llm(name, KNOWN) == KNOWN[meant]


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"'gpt-9' is not known; known: .*gemma-3-4b-it"):
        resolve_llm("gpt-9", KNOWN)


def test_a_name_that_could_be_two_is_not_guessed() -> None:
    twins = ("a/Llama-3-8B-Instruct", "b/Llama-3-8B")
    with pytest.raises(InputError, match="ambiguous; one of: a/Llama-3-8B-Instruct, b/Llama-3-8B"):
        resolve_llm("llama-3-8b", twins)
    assert resolve_llm("b/Llama-3-8B", twins) == "b/Llama-3-8B"


def test_half_a_word_is_no_name() -> None:
    with pytest.raises(InputError, match="not known"):
        resolve_llm("llama-3.1-8", ("meta-llama/Llama-3.1-80B",))
