"""Alpaca-52k."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import LeftOut, load_alpaca
from lengthwise.workloads.datasets import ALPACA, ALPACA_LLM, load_alpaca_lengths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = pa.table(
        {
            "instruction": ["Name a colour.", "Translate.", "Say nothing."],
            "input": ["", "rouge", ""],
            "prompt_tokens": [4, 3, 3],
            "out_tokens": [2, 1, 0],
        }
    )
    pq.write_table(table, tmp_path / "alpaca52k.parquet")
    return tmp_path


def test_the_prompt_is_the_instruction_with_its_input_below(folder: Path) -> None:
    workload = load_alpaca(folder)
    assert workload.table["prompt"].to_pylist() == ["Name a colour.", "Translate.\nrouge"]
    assert workload.output_tokens.tolist() == [2, 1]
    assert not workload.has_arrivals


def test_empty_answers_are_left_out_and_counted(folder: Path) -> None:
    assert load_alpaca(folder).left_out == (LeftOut("rows with an empty answer", 1),)


def test_each_answer_is_one_length_sample_of_one_llm(folder: Path) -> None:
    samples = load_alpaca_lengths(folder)
    assert (samples.corpora, samples.llms) == ((ALPACA,), (ALPACA_LLM,))
    rows = {row["prompt_id"]: row for row in samples.table.to_pylist()}
    assert {number: row["lengths"] for number, row in rows.items()} == {"0": [2], "1": [1]}
    assert rows["1"]["prompt"] == "Translate.\nrouge"


def test_a_prompt_stays_in_its_split_when_prompts_are_added(tmp_path: Path) -> None:
    splits = []
    for count in (200, 400):
        numbers = list(range(count))
        words = {"instruction": [f"say {n}" for n in numbers], "input": [""] * count}
        sizes = {"prompt_tokens": [2] * count, "out_tokens": [1] * count}
        pq.write_table(pa.table(words | sizes), tmp_path / "alpaca52k.parquet")
        table = load_alpaca_lengths(tmp_path).table
        splits.append(dict(zip(table["prompt_id"].to_pylist(), table["split"].to_pylist(), strict=True)))
    assert splits[0].items() <= splits[1].items()
    assert 40 < sum(split == "test" for split in splits[1].values()) < 120


def test_without_a_data_folder_alpaca_is_an_error() -> None:
    with pytest.raises(InputError, match=r"does not ship .* set LENGTHWISE_DATA"):
        load_alpaca()


def test_a_missing_file_and_a_missing_column_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"alpaca52k\.parquet: no such file"):
        load_alpaca(folder / "nowhere")
    pq.write_table(pa.table({"instruction": ["a"]}), folder / "alpaca52k.parquet")
    with pytest.raises(InputError, match="field 'input': missing column"):
        load_alpaca(folder)


def test_alpaca_has_all_rows_but_28_empty_answers(full_data: Path) -> None:
    workload = load_alpaca(full_data / "alpaca52k")
    assert len(workload) == 52_002 - 28
    assert workload.left_out == (LeftOut("rows with an empty answer", 28),)
    tested = load_alpaca_lengths(full_data / "alpaca52k").where(split="test")
    assert len(tested) == pytest.approx(0.2 * len(workload), rel=0.02)
