"""The same prompts with and without a request to reason: paired row by row, with the texts that were asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.datasets import LIMIT, SENTENCE, load_reasoning, pair, read_reasoning, with_sentence


def answers(ids: list[str], **more: Any) -> LengthSamples:
    n = len(ids)
    rows = {"corpus": ["c"] * n, "prompt_id": ids, "llm": ["m"] * n, "input_tokens": [5] * n, "prompt": ids}
    return LengthSamples.from_table({**rows, "lengths": [[int(i), 2] for i in ids], **more}, origin="made up")


def test_the_packaged_pairs_are_castillos_test_prompts_asked_twice() -> None:
    pairs = load_reasoning()
    assert (len(pairs), pairs.max_tokens, pairs.plain.llms) == (60, LIMIT, ("SmolLM2-135M-Instruct",))
    castillo = load_castillo().where(split="test").table
    known = set(zip(*(castillo[name].to_pylist() for name in ("corpus", "prompt_id", "prompt")), strict=True))
    for half, sentence in ((pairs.plain, ""), (pairs.steps, SENTENCE)):
        names = zip(*(half.table[name].to_pylist() for name in ("corpus", "prompt_id", "prompt")), strict=True)
        for corpus, prompt_id, text in names:
            assert (corpus, prompt_id, text.removesuffix(f"\n\n{SENTENCE}")) in known
            assert text.endswith(SENTENCE) == bool(sentence)
        lengths, capped = half.lengths_matrix(), half.capped_matrix()
        assert lengths.shape == (60, 4)
        assert (lengths[capped] == LIMIT).all()
        assert lengths.max() <= LIMIT
    assert pairs.plain.table["prompt_id"].to_pylist() == pairs.steps.table["prompt_id"].to_pylist()


def test_both_halves_are_put_in_one_order_and_what_only_one_has_is_left_out() -> None:
    pairs = pair(answers(["1", "2", "3"]), answers(["4", "3", "1"]), max_tokens=9)
    for half in (pairs.plain, pairs.steps):
        assert half.table["prompt_id"].to_pylist() == ["1", "3"]
        assert half.lengths_matrix().tolist() == [[1, 2], [3, 2]]


def test_halves_of_different_prompts_or_llms_are_refused(tmp_path: Path) -> None:
    answers(["1"]).write(tmp_path / "a")
    answers(["1"], llm=["another"]).write(tmp_path / "b")
    with pytest.raises(InputError, match="has no prompt in common with"):
        read_reasoning(tmp_path / "a", tmp_path / "b", 9)


def test_the_sentence_stands_apart_from_the_prompt() -> None:
    assert with_sentence("Why?", "Think.") == "Why?\n\nThink."
    assert with_sentence("Why?", "") == "Why?"
