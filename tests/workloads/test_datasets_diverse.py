"""Diverse length samples: groups of sources, one name per LLM, each prompt in one group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import InputError
from lengthwise.workloads.datasets import GROUPS, UNCLEAR_LICENCE, diverse_licences, load_diverse, normalise_llm

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    usual = {
        "prompt": "Hello?", "model": "gpt-4", "output_tokens": 10.0, "finish": "stop", "source": "shisa-ai/M-IFEval",
        "licence": "MIT", "maybe_hidden_reasoning": False,
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([usual | row for row in rows]), folder / "lengths.parquet")
    return folder


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        (LLAMA, "llama-3.1-8b-instruct"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b-instruct"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct@hyperbolic", "llama-3.1-405b-instruct"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b-instruct"),
        ("openai/gpt-3.5-turbo", "gpt-3.5-turbo"),
        ("", ""),
    ],
)
def test_the_same_llm_has_one_name(name: str, normal: str) -> None:
    assert normalise_llm(name) == normal


def test_answers_of_one_llm_to_one_prompt_are_one_row_and_capped_ones_are_marked(tmp_path: Path) -> None:
    quantised = "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4"
    cut: dict[str, Any] = {"model": quantised, "finish": "length", "output_tokens": 512.0}
    rows = [{"model": LLAMA}, cut, {"model": "gpt-4"}]
    samples = load_diverse(write(tmp_path, *rows), known_llms=[LLAMA])
    found = {row["llm"]: row for row in samples.table.to_pylist()}
    assert set(found) == {LLAMA, "gpt-4"}
    assert found[LLAMA]["lengths"] == [10, 512]
    assert found[LLAMA]["capped"] == [False, True]
    assert found[LLAMA]["corpus"] == "ifeval"


def test_a_prompt_of_two_groups_stays_in_the_first_one(tmp_path: Path) -> None:
    later, earlier = GROUPS["chat"][0], GROUPS["mt-bench"][0]
    rows = [{"source": later, "prompt": "  HELLO  you"}, {"source": earlier, "prompt": "Hello you"}]
    assert load_diverse(write(tmp_path, *rows)).corpora == ("mt-bench",)


def test_unclear_licences_and_hidden_reasoning_are_left_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a", "source": UNCLEAR_LICENCE[0]},
        {"prompt": "b", "maybe_hidden_reasoning": True},
        {"prompt": "c", "output_tokens": 0.0},
        {"prompt": "d"},
    ]
    folder = write(tmp_path, *rows)
    assert load_diverse(folder).table["prompt"].to_pylist() == ["d", "a"]
    assert load_diverse(folder, ships=True).table["prompt"].to_pylist() == ["d"]
    assert set(diverse_licences(folder)) - set(diverse_licences(folder, ships=True)) == {UNCLEAR_LICENCE[0]}


def test_an_unknown_source_or_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="source 'me/mine' is in no group"):
        load_diverse(write(tmp_path, {"source": "me/mine"}))
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "lengths.parquet")
    with pytest.raises(InputError, match=r"field 'model': missing column"):
        load_diverse(tmp_path)
