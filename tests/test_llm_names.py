from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.llm_names import FEATURES, LlmIdentity, identify, resolve_llm, short_name
from lengthwise.workloads import load_castillo


@pytest.mark.parametrize(
    ("name", "family", "billions"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama", 8),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama", 70),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen", 7),
        ("google/gemma-3-12b-it", "gemma", 12),
        ("microsoft/Phi-4-mini-instruct", "phi", 3.8),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral", 56),
        ("mistralai/Ministral-8B-Instruct-2410", "mistral", 8),
        ("SmolLM2-135M-Instruct", "smollm", 0.135),
        ("unknown", None, None),
        ("", None, None),
    ],
)
def test_family_and_size_are_read_from_the_name(name: str, family: str | None, billions: float | None) -> None:
    assert identify(name) == LlmIdentity(family, billions)


def test_every_llm_of_castillo_is_known() -> None:
    for llm in load_castillo().llms:
        identity = identify(llm)
        assert identity.family is not None, llm
        assert identity.billions is not None, llm


@given(st.text())
def test_any_string_is_a_valid_name(name: str) -> None:
    assert len(identify(name).features()) == FEATURES


@pytest.mark.parametrize(
    "name",
    [
        "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
        "llama-3.1-8b-instruct-q4_k_m",
        "Llama-3.1-8B-Instruct-fp8",
    ],
)
def test_quantised_weights_resolve_to_their_llm(name: str) -> None:
    known = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct")
    assert resolve_llm(name, known) == known[0]


@pytest.mark.parametrize(
    ("llm", "name"),
    [("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"), ("google/gemma-2-9b-it", "gemma-2-9b"), ("phi", "phi")],
)
def test_an_llm_is_named_without_its_organisation(llm: str, name: str) -> None:
    assert short_name(llm) == name
