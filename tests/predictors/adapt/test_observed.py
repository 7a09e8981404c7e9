"""Lengths are read from what people have; what is wrong with them is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.adapt import Observed, read_observed
from lengthwise.workloads import LengthSamples

PROMPTS = [f"prompt {i}" for i in range(30)]


def write(path: Path, **columns: Any) -> Path:
    rows = {"prompt": PROMPTS, "length": list(range(1, 31)), "llm": ["me/Mine"] * 30} | columns
    pq.write_table(pa.table({name: value for name, value in rows.items() if value is not None}), path)
    return path


def test_plain_columns_in_parquet_csv_and_json_lines_are_the_same(tmp_path: Path) -> None:
    parquet = read_observed(write(tmp_path / "a.parquet", capped=[i > 27 for i in range(30)]))
    (tmp_path / "a.csv").write_text(
        "prompt,length,llm,capped\n" + "".join(f"prompt {i},{i + 1},me/Mine,{str(i > 27).lower()}\n" for i in range(30))
    )
    lines = [{"prompt": f"prompt {i}", "length": i + 1, "llm": "me/Mine", "capped": i > 27} for i in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    for other in (read_observed(tmp_path / "a.csv"), read_observed(tmp_path / "a.jsonl")):
        assert other.llm == parquet.llm == "me/Mine"
        assert other.texts == parquet.texts
        assert other.lengths.tolist() == parquet.lengths.tolist()
        assert other.cut_off == parquet.cut_off == 2


def test_what_collect_writes_is_read(tmp_path: Path) -> None:
    samples = LengthSamples.from_table(
        {
            "corpus": ["c"] * 30,
            "prompt_id": PROMPTS,
            "llm": ["me/Mine"] * 30,
            "input_tokens": [5] * 30,
            "lengths": [[10, 20, 1024]] * 30,
            "capped": [[False, False, True]] * 30,
            "prompt": PROMPTS,
        },
        origin="made up",
    )
    samples.write(tmp_path / "s.parquet")
    found = read_observed(tmp_path / "s.parquet")
    assert (found.count, len(found.texts), found.cut_off) == (90, 30, 30)
    assert found.caps.tolist() == [1024.0] * 30


def test_answers_to_the_same_prompt_come_together(tmp_path: Path) -> None:
    found = read_observed(write(tmp_path / "a.parquet", prompt=[f"prompt {i // 2}" for i in range(30)]))
    assert len(found.texts) == 15
    assert found.lengths[0].tolist() == [1.0, 2.0]


def test_an_llm_is_named_chosen_or_asked_for(tmp_path: Path) -> None:
    one = write(tmp_path / "one.parquet")
    assert read_observed(one, "other/Name").llm == "other/Name"
    two = write(tmp_path / "two.parquet", llm=["me/A-Instruct"] * 25 + ["me/B"] * 5)
    assert read_observed(two, "a").llm == "me/A-Instruct"
    assert read_observed(two, "a").count == 25
    for path, said in ((two, "holds lengths of 2 LLMs"), (write(tmp_path / "no.parquet", llm=None), "whose lengths")):
        with pytest.raises(InputError, match=said):
            read_observed(path)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"prompt": None}, "field 'prompt': missing column"),
        ({"length": None}, "field 'length': missing column"),
        ({"length": [5] * 29 + [0]}, "row 30, field 'length': 0 is no length"),
        ({"length": [5.5] * 30}, "row 1, field 'length'"),
        ({"prompt": [*PROMPTS[:-1], None]}, "row 30, field 'prompt': has no value"),
        ({"prompt": ["the same"] * 30}, "30 lengths of 1 prompts are too few"),
        ({"capped": [True] * 20 + [False] * 10}, "most of the answers were cut off"),
        ({"length": None, "lengths": [[1, 2]] * 29 + [[]]}, "row 30, field 'lengths'"),
        ({"length": None, "lengths": [[1, 2]] * 30, "capped": [[True]] * 30}, "is not as long as lengths"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_observed(write(tmp_path / "a.parquet", **columns))


@pytest.mark.parametrize("rows", [0, 19])
def test_fewer_than_twenty_lengths_are_refused(tmp_path: Path, rows: int) -> None:
    table = pq.read_table(write(tmp_path / "a.parquet")).slice(0, rows)
    pq.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=f"{rows} lengths of {rows} prompts are too few; give at least 20"):
        read_observed(tmp_path / "b.parquet", "me/Mine")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{not json")
    (tmp_path / "a.parquet").write_text("not parquet")
    for name in ("a.jsonl", "a.parquet", "missing.parquet"):
        with pytest.raises(InputError, match=name):
            read_observed(tmp_path / name)


def test_twenty_lengths_are_taken() -> None:
    assert Observed.of("m", PROMPTS[:20], [5] * 20, origin="here").count == 20
