"""LengthSamples, and LLMs by short name."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.llm_names import resolve_llm
from lengthwise.workloads import LengthSamples, load_castillo
from tests.workloads.made_samples import made_up

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
def test_short_names_resolve_to_the_llm(name: str, meant: int) -> None:
    assert resolve_llm(name, KNOWN) == KNOWN[meant]


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(InputError, match=r"'gpt-9' is not known; known: .*gemma-3-4b-it"):
        resolve_llm("gpt-9", KNOWN)


def test_an_ambiguous_name_is_an_error() -> None:
    twins = ("a/Llama-3-8B-Instruct", "b/Llama-3-8B")
    with pytest.raises(InputError, match="ambiguous; one of: a/Llama-3-8B-Instruct, b/Llama-3-8B"):
        resolve_llm("llama-3-8b", twins)
    assert resolve_llm("b/Llama-3-8B", twins) == "b/Llama-3-8B"


def test_part_of_a_word_does_not_match() -> None:
    with pytest.raises(InputError, match="not known"):
        resolve_llm("llama-3.1-8", ("meta-llama/Llama-3.1-80B",))


def samples(*lengths: list[int], **columns: Any) -> LengthSamples:
    n = len(lengths)
    table = {
        "corpus": ["Mbpp"] * n,
        "split": ["train"] * n,
        "prompt_id": [str(i) for i in range(n)],
        "llm": ["meta-llama/Llama-3.1-8B-Instruct"] * n,
        "input_tokens": [10] * n,
        "lengths": list(lengths),
    }
    return LengthSamples.from_table({**table, **columns}, origin="test")


def test_lengths_are_a_matrix_and_uncapped_unless_marked() -> None:
    rows = samples([1, 2], [3, 4])
    assert rows.lengths_matrix().tolist() == [[1, 2], [3, 4]]
    assert not rows.capped_matrix().any()
    capped = samples([1, 2], capped=[[False, True]])
    assert capped.capped_matrix().tolist() == [[False, True]]


def test_a_matrix_of_ragged_samples_is_an_error() -> None:
    with pytest.raises(InputError, match="test, row 2, field 'lengths': 1 samples where row 1 has 2"):
        samples([1, 2], [3]).lengths_matrix()


@pytest.mark.parametrize(
    ("columns", "row", "field"),
    [
        ({"lengths": [[1], []]}, 2, "lengths"),
        ({"lengths": [[1], [0]]}, 2, "lengths"),
        ({"lengths": [[None], [1]]}, 1, "lengths"),
        ({"lengths": [["x"], ["1"]]}, 1, "lengths"),
        ({"input_tokens": [1, 0]}, 2, "input_tokens"),
        ({"llm": [None, "a"]}, 1, "llm"),
        ({"capped": [[True], [True, False]]}, 2, "capped"),
    ],
)
def test_the_first_bad_row_is_named(columns: dict[str, Any], row: int, field: str) -> None:
    with pytest.raises(InputError) as caught:
        samples([1], [1], **columns)
    assert (caught.value.source, caught.value.row, caught.value.field) == ("test", row, field)


def test_an_answer_at_the_limit_is_degenerate() -> None:
    assert samples([14_998, 14_999, 15_000]).clean_mask().tolist() == [[True, False, False]]


def test_a_long_answer_is_degenerate_only_if_the_spread_of_its_row_is_large() -> None:
    lone = [8_500] + [10] * 9
    assert samples(lone).clean_mask().tolist() == [[False] + [True] * 9]
    at_the_edge = [8_499] + [10] * 9
    many = [8_500] * 5 + [10] * 5
    assert samples(at_the_edge, many).clean_mask().all()


def test_the_clean_mean_ignores_degenerate_samples_and_is_nan_if_all_are() -> None:
    mean = samples([15_000, 2, 4], [15_000, 15_000, 15_000], [1, 2, 3]).clean_mean()
    assert mean[[0, 2]].tolist() == [3.0, 2.0]
    assert np.isnan(mean[1])


def test_the_degenerate_rule_uses_the_published_std(full_data: Path) -> None:
    import pyarrow.parquet as pq

    published = pq.read_table(full_data / "castillo" / "lengths.parquet")["output_std"].to_numpy()
    assert load_castillo().lengths_matrix().std(axis=1) == pytest.approx(published, abs=0.006)


def test_rows_are_chosen_by_llm_corpus_and_split() -> None:
    rows = samples([1], [2], [3], corpus=["Apps", "Mbpp", "Mbpp"], split=["train", "test", "train"])
    assert rows.where(corpus="mbpp").lengths_matrix().tolist() == [[2], [3]]
    assert rows.where(corpus=["Mbpp", "Apps"], split="train").lengths_matrix().tolist() == [[1], [3]]
    assert len(rows.where(llm="llama-3.1-8b")) == 3
    assert (rows.corpora, rows.splits) == (("Apps", "Mbpp"), ("test", "train"))


@pytest.mark.parametrize("choice", [{"corpus": "Dolly"}, {"split": "dev"}, {"llm": "gpt-9"}])
def test_an_unknown_choice_is_an_error_that_lists_the_known(choice: dict[str, str]) -> None:
    with pytest.raises(InputError, match="is not known; known: "):
        samples([1]).where(**choice)


@settings(max_examples=10)
@given(seed=st.integers(-5, 2**40))
def test_all_rows_of_a_prompt_are_in_one_split(packaged: LengthSamples, seed: int) -> None:
    parts = packaged.split_by_prompt({"train": 0.6, "validate": 0.2, "test": 0.2}, seed)
    assert sum(map(len, parts.values())) == len(packaged)
    where = defaultdict(set)
    for name, part in parts.items():
        for prompt_id in part.table["prompt_id"].to_pylist():
            where[prompt_id].add(name)
    assert all(len(names) == 1 for names in where.values())
    shares = [len(set(part.table["prompt_id"].to_pylist())) / len(where) for part in parts.values()]
    assert shares == pytest.approx([0.6, 0.2, 0.2], abs=0.06)


def test_a_prompt_stays_in_its_split_when_llms_are_left_out(packaged: LengthSamples) -> None:
    halves = {"a": 0.5, "b": 0.5}
    of_all = set(packaged.split_by_prompt(halves, 3)["a"].table["prompt_id"].to_pylist())
    of_one = set(packaged.where(llm="mixtral-8x7b").split_by_prompt(halves, 3)["a"].table["prompt_id"].to_pylist())
    assert of_one <= of_all
    other_seed = set(packaged.split_by_prompt(halves, 4)["a"].table["prompt_id"].to_pylist())
    assert other_seed != of_all


@pytest.mark.parametrize("fractions", [{"a": 0.5, "b": 0.4}, {"a": 1.5, "b": -0.5}, {}])
def test_fractions_must_sum_to_one(fractions: dict[str, float]) -> None:
    with pytest.raises(InputError, match="sum to"):
        samples([1]).split_by_prompt(fractions, 0)


def test_samples_are_written_and_read_back(tmp_path: Path) -> None:
    rows = samples([1, 2], [3, 4], capped=[[False, True], [False, False]], prompt=["é", None])
    rows.write(tmp_path / "s.parquet")
    assert LengthSamples.read(tmp_path / "s.parquet").table.equals(rows.table)


def test_an_incomplete_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"s\.parquet: is not a complete Parquet file"):
        LengthSamples.read(tmp_path / "s.parquet")


def test_drawing_prompts_keeps_all_their_rows() -> None:
    assert len(made_up().draw_prompts(7, seed=1)) == 14
    assert len(made_up().draw_prompts(10_000, seed=1)) == 120
