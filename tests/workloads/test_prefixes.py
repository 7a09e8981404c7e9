from __future__ import annotations

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import (
    LengthSamples,
    Workload,
    behind_prefixes,
    castillo_workload,
    into_sessions,
    load_trace,
)
from lengthwise.workloads.blocks import BLOCK_BYTES, BLOCK_TOKENS, hash_text
from lengthwise.workloads.generators import system_prefix


@pytest.fixture(scope="module")
def prompts(packaged: LengthSamples) -> Workload:
    return castillo_workload(packaged, "llama-3.1-8b", requests=300, rate=8, seed=0)


def first_blocks(workload: Workload) -> list[int]:
    return [int(workload.blocks(row)[0]) for row in range(len(workload))]


@pytest.mark.parametrize("tokens", [16, 100, 512])
def test_a_system_prompt_has_the_length_asked_for_and_its_own_words(tokens: int) -> None:
    texts = [system_prefix(index, tokens) for index in range(20)]
    assert {len(text) + len("\n\n") for text in texts} == {4 * tokens}
    assert len(set(texts)) == 20
    assert texts == [system_prefix(index, tokens) for index in range(20)]


def test_prompts_stand_behind_the_prefix_and_grow_by_its_tokens(prompts: Workload) -> None:
    workload = behind_prefixes(prompts, prefixes=10, seed=0)
    assert (workload.input_tokens - prompts.input_tokens == 512).all()
    before, after = (w.table["prompt"].to_pylist() for w in (prompts, workload))
    prefixes = {long[: -len(short)] for short, long in zip(before, after, strict=True)}
    assert len(prefixes) == 10
    assert all(prefix.endswith(".\n\n") for prefix in prefixes)


def test_blocks_are_those_of_the_text_and_shared_as_far_as_the_prefix_goes(prompts: Workload) -> None:
    workload = behind_prefixes(prompts, prefixes=3, seed=0)
    for row, text in enumerate(workload.table["prompt"].to_pylist()[:50]):
        full = hash_text(text)
        assert workload.blocks(row).tolist() == full[: workload.input_tokens[row] // BLOCK_TOKENS].tolist()
        assert full[7] == hash_text(text[: 8 * BLOCK_BYTES])[7]
    assert len(set(first_blocks(workload))) == 3


def test_zipf_prefers_the_first_and_uniform_none(packaged: LengthSamples) -> None:
    many = castillo_workload(packaged, "llama-3.1-8b", requests=4000, rate=8, seed=0)
    zipf = np.unique(first_blocks(behind_prefixes(many, prefixes=4, seed=0)), return_counts=True)[1]
    uniform = np.unique(
        first_blocks(behind_prefixes(many, prefixes=4, popularity="uniform", seed=0)), return_counts=True
    )[1]
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert sorted(zipf / 4000) == pytest.approx([share / harmonic for share in (1 / 4, 1 / 3, 1 / 2, 1)], abs=0.03)
    assert uniform / 4000 == pytest.approx([0.25] * 4, abs=0.03)


def test_a_session_keeps_its_prefix_and_still_grows(prompts: Workload) -> None:
    workload = behind_prefixes(into_sessions(prompts, turns=4, think_s=5, seed=0), prefixes=5, seed=0)
    last: dict[str, list[int]] = {}
    for row, session in enumerate(workload.table["session"].to_pylist()):
        blocks = workload.blocks(row).tolist()
        assert len(blocks) == workload.input_tokens[row] // BLOCK_TOKENS
        before = last.get(session, [])
        assert blocks[: len(before)] == before
        last[session] = blocks
    assert len(set(first_blocks(workload))) == 5


def test_a_trace_without_texts_gets_the_prefix_blocks_alone() -> None:
    workload = behind_prefixes(load_trace("azure_sample").head(50), prefixes=2, tokens=128, seed=0)
    assert {len(workload.blocks(row)) for row in range(50)} == {2}
    assert workload.table["prompt"].null_count == 50
    with pytest.raises(InputError, match="multiple of 64"):
        behind_prefixes(load_trace("azure_sample"), prefixes=2, tokens=100, seed=0)


@pytest.mark.parametrize(("prefixes", "tokens"), [(0, 512), (3, 8)])
def test_impossible_prefixes_are_refused(prompts: Workload, prefixes: int, tokens: int) -> None:
    with pytest.raises(InputError):
        behind_prefixes(prompts, prefixes=prefixes, tokens=tokens, seed=0)
