"""Training data: diverse prompts beside CASTILLO's, in one table with uneven numbers of answers."""

from __future__ import annotations

from pathlib import Path

from lengthwise.training.data import PromptTable, load_samples, parts
from lengthwise.training.encoder.config import DataConfig
from lengthwise.training.encoder.pack import HELD_OUT, TEST, TRAIN
from lengthwise.workloads import LengthSamples
from tests.workloads.test_datasets_diverse import LLAMA, write


def folder(tmp_path: Path) -> DataConfig:
    rows = 40
    columns = {
        "corpus": ["Apps"] * rows,
        "split": ["train"] * 30 + ["test"] * 10,
        "prompt_id": [str(number) for number in range(rows)],
        "llm": [LLAMA] * rows,
        "input_tokens": [3] * rows,
        "lengths": [[100, 200, 14_999]] * rows,
        "prompt": [f"Sort {number} numbers." for number in range(rows)],
    }
    LengthSamples.from_table(columns, origin="made up").write(tmp_path / "own.parquet")
    (tmp_path / "diverse").mkdir()
    answers = [{"prompt": f"Question {n}", "model": model} for n in range(60) for model in (LLAMA, "acme/Llama-13B")]
    seen = {"prompt": "sort 31  numbers."}  # a test prompt of CASTILLO
    write(tmp_path / "diverse", seen, *answers)
    return DataConfig(source=str(tmp_path / "own.parquet"), smollm2=False, diverse=True, group_limit=50)


def test_a_group_is_limited_and_rare_llms_are_pooled_by_family_and_size(tmp_path: Path) -> None:
    samples = load_samples(folder(tmp_path))
    table = PromptTable.of(samples)
    assert table.column("corpus").count("ifeval") == 50
    assert table.llms == (LLAMA, "other-llama-16b")
    assert "sort 31  numbers." not in table.column("prompt")


def test_prompts_with_fewer_answers_are_padded_and_degenerate_samples_left_out(tmp_path: Path) -> None:
    table = PromptTable.of(load_samples(folder(tmp_path)))
    place = {text: number for number, text in enumerate(table.column("prompt"))}
    assert table.lengths[place["Sort 3 numbers."], 0].tolist() == [100, 200, 0]
    question = next(text for text in place if text.startswith("Question"))
    assert table.lengths[place[question]].tolist() == [[10, 0, 0], [10, 0, 0]]


def test_diverse_prompts_are_trained_on_and_test_prompts_are_not(tmp_path: Path) -> None:
    config = folder(tmp_path)
    table = PromptTable.of(load_samples(config))
    part = parts(table, config)
    by_split = {
        split: {int(part[number]) for number, own in enumerate(table.column("split")) if own == split}
        for split in ("train", "test")
    }
    assert by_split["test"] == {TEST}
    assert by_split["train"] == {TRAIN, HELD_OUT}
