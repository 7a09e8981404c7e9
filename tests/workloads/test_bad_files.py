"""An invalid file is a one-line error that names the file, the row and the field."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import InputError
from lengthwise.workloads import load_trace, read_workload, write_workload

CSV = "arrival_s,input_tokens,output_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TIME = "2023-11-16 18:15:46.6805900"


def line(timestamp: str = "0", input_length: str = "1", output_length: str = "1", hash_ids: str = "[]") -> str:
    return (
        f'{{"timestamp": {timestamp}, "input_length": {input_length}, '
        f'"output_length": {output_length}, "hash_ids": {hash_ids}}}\n'
    )


@pytest.mark.parametrize(
    ("name", "text", "row", "field", "message"),
    [
        ("a.csv", "arrival_s,input_tokens\n0,1\n", None, "output_tokens", "missing column"),
        ("a.csv", "input_tokens,output_tokens\n1,1\n", None, "arrival_s", "missing column"),
        ("a.csv", "arrival_s,input_tokens,input_tokens\n0,1,1\n", None, "input_tokens", "duplicate column"),
        ("a.csv", CSV.replace("\n", ",llm\n") + f"0,x,1,{'y' * 200_000}\n", 1, None, "is not CSV"),
        ("a.csv", "a,b\n1,1\n", None, "arrival_s", "columns found: a, b"),
        ("a.csv", CSV + "0,1,1\n1,-5,1\n", 2, "input_tokens", "-5 is below 1"),
        ("a.csv", CSV + "0,1,1\n1,1,-5\n", 2, "output_tokens", "-5 is below 1"),
        ("a.csv", CSV + "0,1,0\n1,1,-5\n", 2, "output_tokens", "-5 is below 1"),
        ("a.csv", CSV + "0,1,1\n1,many,1\n", 2, "input_tokens", "'many' does not fit"),
        ("a.csv", CSV + "0,1,1\n1,1.5,1\n", 2, "input_tokens", "1.5 does not fit"),
        ("a.csv", CSV + "0,1,1\nsoon,1,1\n", 2, "arrival_s", "'soon' does not fit"),
        ("a.csv", CSV + "0,1,1\n1,,1\n", 2, "input_tokens", "no value"),
        ("a.csv", CSV.replace("\n", ",ttft_limit_s\n") + "0,1,1,2\n1,1,1,0\n", 2, "ttft_limit_s", "above 0"),
        ("a.csv", CSV.replace("\n", ",session,think_s\n") + "0,1,1,a,\n0,1,1,a,-1\n", 2, "think_s", "at least 0"),
        ("a.csv", CSV.replace("\n", ",session,think_s\n") + "0,1,1,a,\n0,1,1,,1\n", 2, "think_s", "a session"),
        ("a.csv", CSV + "5,1,1\n4,1,1\n", 2, "arrival_s", "sort the requests by arrival"),
        ("a.csv", CSV + "0,1,1\n1,1\n", 2, "output_tokens", "truncated"),
        ("a.csv", CSV, None, None, "holds no requests"),
        ("a.csv", AZURE + f"{TIME},1,1\nyesterday,1,1\n", 2, "TIMESTAMP", "2023-11-16 18:15:46.6805900"),
        ("a.csv", AZURE + f"{TIME},1,1\n2023-11-16 18:00:00,1,1\n", 2, "TIMESTAMP", "before the arrival"),
        ("a.csv", AZURE + f"{TIME},1,1\n{TIME},x,1\n", 2, "ContextTokens", "'x' does not fit"),
        ("a.jsonl", line() + line(input_length="-1"), 2, "input_length", "-1 is below 1"),
        ("a.jsonl", line() + line(output_length='"x"'), 2, "output_length", "'x' does not fit"),
        ("a.jsonl", line() + line(output_length="1.5"), 2, "output_length", "a whole number"),
        ("a.jsonl", line("9") + line("3"), 2, "timestamp", "sort the requests"),
        ("a.jsonl", line() + line(hash_ids="[1, 2]"), 2, "hash_ids", "more than the prompt has"),
        ("a.jsonl", line() + line(hash_ids="[-1]"), 2, "hash_ids", "does not fit"),
        ("a.jsonl", line() + '{"timestamp": 0, "input_length": 1}\n', 2, "output_length", "missing key"),
        ("a.jsonl", '{"input_length": 1, "output_length": 1}\n', 1, "timestamp", "missing key"),
        ("a.jsonl", line() + line()[:20], 2, None, "truncated"),
        ("a.jsonl", line() + "nonsense\n" + line(), 2, None, "one JSON object per line"),
        ("a.jsonl", line() + "[1]\n", 2, None, "not a JSON object"),
        ("a.txt", "plain text", None, None, "no format known"),
    ],
)
def test_an_invalid_text_file_is_named_by_row_and_field(
    tmp_path: Path, name: str, text: str, row: int | None, field: str | None, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_workload(path)
    assert (caught.value.source, caught.value.row, caught.value.field) == (str(path), row, field)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    with pytest.raises(InputError, match="is empty"):
        read_workload(tmp_path / "a.parquet")


def test_a_folder_or_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_workload(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_workload(tmp_path / "a.csv")


@pytest.mark.parametrize("kept", [0.5, 0.99])
def test_a_truncated_parquet_file_is_an_error(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "a.parquet"
    write_workload(load_trace("azure_sample"), path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(InputError, match="not a complete Parquet file"):
        read_workload(path)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz"])
def test_a_truncated_gzip_file_is_an_error(tmp_path: Path, name: str) -> None:
    text = CSV + "0,1,1\n" * 5000 if "csv" in name else line() * 5000
    packed = gzip.compress(text.encode())
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"a\.\w+\.gz: is truncated"):
        read_workload(tmp_path / name)


def test_text_in_another_encoding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00a\x00,")
    with pytest.raises(InputError, match="not UTF-8"):
        read_workload(tmp_path / "a.csv")


def test_text_for_a_length_in_parquet_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"arrival_s": [0.0, 1.0], "input_tokens": ["1", "x"], "output_tokens": [1, 1]}), path)
    with pytest.raises(InputError, match=r"a\.parquet, row 2, field 'input_tokens': 'x' does not fit"):
        read_workload(path)


def test_an_unknown_format_is_an_error_that_lists_the_known(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    with pytest.raises(InputError, match="format 'xml' is not known; one of: parquet, csv"):
        read_workload(tmp_path / "a.csv", format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "message"), [("a.xlsx", "end it in .parquet"), ("none/a.csv", "folder does not exist")]
)
def test_an_unwritable_target_is_an_error(tmp_path: Path, target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_workload(load_trace("azure_sample"), tmp_path / target)
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_workload(load_trace("azure_sample"), tmp_path / "d.csv")


def test_several_block_sizes_in_one_file_are_an_error(tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": 99, "output_length": 1, "hash_ids": [1], "block_size": %d}\n'
    (tmp_path / "a.jsonl").write_text(row % 64 + row % 16)
    with pytest.raises(InputError, match="several block sizes"):
        read_workload(tmp_path / "a.jsonl")
