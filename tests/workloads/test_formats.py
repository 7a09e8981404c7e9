from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from lengthwise.workloads import LeftOut, Workload, load_trace, read_workload, write_workload
from tests.workloads.strategies import workloads

reuses_the_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


def small(**columns: Any) -> Workload:
    table = {
        "arrival_s": [0.0, 1.5, 2.0],
        "input_tokens": [10, 200, 30],
        "output_tokens": [5, 6, 7],
        **columns,
    }
    return Workload.from_table(table, name="small", block_size=64, left_out=(LeftOut("rule", 3),))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@reuses_the_folder
@given(workload=workloads())
def test_parquet_keeps_everything(tmp_path: Path, workload: Workload) -> None:
    write_workload(workload, tmp_path / "w.parquet")
    back = read_workload(tmp_path / "w.parquet")
    assert back == workload
    assert (back.name, back.block_size, back.left_out) == ("random", workload.block_size, ())


def test_parquet_keeps_the_rows_left_out(tmp_path: Path) -> None:
    write_workload(small(), tmp_path / "w.parquet")
    assert read_workload(tmp_path / "w.parquet").left_out == (LeftOut("rule", 3),)


@reuses_the_folder
@given(workload=workloads(blocks=False))
def test_csv_keeps_everything_but_block_hashes(tmp_path: Path, workload: Workload) -> None:
    write_workload(workload, tmp_path / "w.csv")
    assert read_workload(tmp_path / "w.csv") == workload


@reuses_the_folder
@given(workload=workloads())
def test_mooncake_keeps_everything_but_the_values_of_block_hashes(tmp_path: Path, workload: Workload) -> None:
    write_workload(workload, tmp_path / "w.jsonl")
    back = read_workload(tmp_path / "w.jsonl")
    assert back.arrival_s == pytest.approx(workload.arrival_s, abs=1e-9)
    for name in set(workload.table.column_names) - {"arrival_s", "block_hashes"}:
        assert back.table[name].to_pylist() == workload.table[name].to_pylist()
    assert back.block_size == workload.block_size
    assert back.block_offsets.tolist() == workload.block_offsets.tolist()
    renamed: dict[int, int] = {}
    for before, after in zip(workload.block_values.tolist(), back.block_values.tolist(), strict=True):
        assert renamed.setdefault(before, after) == after
    assert list(renamed.values()) == list(range(len(renamed)))
    write_workload(back, tmp_path / "w.jsonl")
    assert read_workload(tmp_path / "w.jsonl") == back


def test_mooncake_lines_begin_with_the_four_standard_keys(tmp_path: Path) -> None:
    write_workload(small(llm=["a", "a", "a"], priority=[0, 1, 0], block_hashes=[[], [9, 5], []]), tmp_path / "w.jsonl")
    records = lines(tmp_path / "w.jsonl")
    assert list(records[1]) == [
        *("timestamp", "input_length", "output_length", "hash_ids"),
        *("llm", "priority", "block_size"),
    ]
    assert [record["timestamp"] for record in records] == [0, 1500, 2000]
    assert records[1]["hash_ids"] == [0, 1]


def test_blocks_of_512_tokens_need_no_block_size_in_mooncake(tmp_path: Path) -> None:
    workload = small(input_tokens=[600, 600, 600], block_hashes=[[1, 2], [1], []]).replace(block_size=512)
    write_workload(workload, tmp_path / "w.jsonl")
    assert all("block_size" not in record for record in lines(tmp_path / "w.jsonl"))
    assert read_workload(tmp_path / "w.jsonl").block_size == 512


def test_a_mooncake_trace_as_published_is_read(tmp_path: Path) -> None:
    path = tmp_path / "conversation_trace.jsonl"
    path.write_text(
        '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}\n'
        '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 2366]}\n'
    )
    workload = read_workload(path)
    assert workload.arrival_s.tolist() == [27.482, 30.535]
    assert workload.blocks(1).tolist() == [46, 47, 2366]
    assert (workload.block_size, workload.name) == (512, "conversation_trace")
    assert read_workload(path, block_size=256).block_size == 256


def test_mooncake_ticks_are_spread_only_with_a_jitter_seed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 3000, "input_length": 1, "output_length": 1, "hash_ids": []}\n' * 20)
    assert set(read_workload(path).arrival_s.tolist()) == {3.0}
    spread = read_workload(path, jitter_seed=1)
    assert ((spread.arrival_s >= 3) & (spread.arrival_s < 6)).all()
    assert spread == read_workload(path, jitter_seed=1)
    assert spread != read_workload(path, jitter_seed=2)


@pytest.mark.parametrize("zone", ["", "+00:00"])
def test_azure_csv_becomes_seconds_since_the_first_request(tmp_path: Path, zone: str) -> None:
    path = tmp_path / "AzureLLMInferenceTrace_conv.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        f"2023-11-16 18:15:46.6805900{zone},374,44\n"
        f"2023-11-16 18:15:50.9951690{zone},396,109\n"
    )
    workload = read_workload(path)
    assert workload.arrival_s == pytest.approx([0, 4.314579], abs=1e-9)
    assert workload.input_tokens.tolist() == [374, 396]
    assert workload.output_tokens.tolist() == [44, 109]


def test_azure_parquet_is_read_like_its_csv(tmp_path: Path) -> None:
    table = pa.table(
        {
            "TIMESTAMP": ["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:47.6805900"],
            "ContextTokens": [1, 2],
            "GeneratedTokens": [3, 4],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_workload(tmp_path / "a.parquet").arrival_s.tolist() == [0.0, 1.0]


def test_hash_ids_in_a_plain_parquet_are_mooncakes_blocks(tmp_path: Path) -> None:
    table = pa.table({"arrival_s": [0.0], "input_tokens": [1000], "output_tokens": [1], "hash_ids": [[4, 5]]})
    pq.write_table(table, tmp_path / "m.parquet")
    workload = read_workload(tmp_path / "m.parquet")
    assert (workload.blocks(0).tolist(), workload.block_size) == ([4, 5], 512)
    assert read_workload(tmp_path / "m.parquet", block_size=600).block_size == 600


def test_columns_can_be_renamed_while_reading(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"t": [0.0], "input_tokens": [1], "output_tokens": [1], "client": [7]}),
        tmp_path / "c.parquet",
    )
    workload = read_workload(tmp_path / "c.parquet", columns={"t": "arrival_s", "client": "tenant"})
    assert workload.table["tenant"].to_pylist() == ["7"]


def test_lengths_without_arrivals_are_a_batch_if_arrivals_are_optional(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("input_tokens,output_tokens\n3,4\n5,6\n")
    workload = read_workload(tmp_path / "l.csv", need_arrivals=False)
    assert workload.arrival_s.tolist() == [0, 0]
    assert not workload.has_arrivals


def test_requests_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "z.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,1,0\n2,1,3\n")
    workload = read_workload(tmp_path / "z.csv")
    assert workload.output_tokens.tolist() == [1, 3]
    assert workload.left_out == (LeftOut("requests without an answer (0 output tokens)", 1),)


def test_integers_written_as_decimals_are_read(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1.0,1\n\n1,2,3\n")
    assert read_workload(tmp_path / "d.csv").input_tokens.tolist() == [1, 2]
    (tmp_path / "d.jsonl").write_text('{"timestamp": 0, "input_length": 1.0, "output_length": 2, "hash_ids": []}\n')
    assert read_workload(tmp_path / "d.jsonl").input_tokens.tolist() == [1]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_gzipped_text_is_read_like_plain_text(tmp_path: Path, ending: str) -> None:
    write_workload(small(), tmp_path / f"w.{ending}")
    (tmp_path / f"w.{ending}.gz").write_bytes(gzip.compress((tmp_path / f"w.{ending}").read_bytes()))
    assert read_workload(tmp_path / f"w.{ending}.gz") == small()


@pytest.mark.parametrize(("ending", "name"), [("parquet", "parquet"), ("csv", "csv"), ("jsonl", "mooncake")])
def test_the_format_is_detected_from_the_content_without_an_extension(tmp_path: Path, ending: str, name: Any) -> None:
    write_workload(small(), tmp_path / f"w.{ending}")
    plain = (tmp_path / f"w.{ending}").rename(tmp_path / "trace")
    assert read_workload(plain) == small()
    assert read_workload(plain, format=name) == small()


def test_a_failed_write_leaves_the_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.csv"
    write_workload(small(), path)
    before = path.read_bytes()

    def half(workload: Workload, target: Path) -> None:
        target.write_text(f"half of {workload.name}")
        raise OSError("disk full")

    monkeypatch.setitem(write_workload.__globals__["_WRITERS"], ".csv", half)
    with pytest.raises(OSError, match="disk full"):
        write_workload(small(), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.csv"]


def test_the_azure_trace_has_its_published_size(full_data: Path) -> None:
    assert full_data.is_dir()
    assert len(load_trace("azure2023_conv")) == 19_366


def test_the_arrow_reader_and_the_slow_reader_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = small(prompt=["a", 'b "c"\nd', None], sample_mean=[1.5, None, 2.0], block_hashes=[[], [1, 2], []])
    for ending in ("csv", "jsonl"):
        path = tmp_path / f"w.{ending}"
        write_workload(workload, path)
        fast = read_workload(path)

        def fail(*_: Any, **__: Any) -> None:
            raise pa.ArrowInvalid("fails")

        with monkeypatch.context() as patch:
            patch.setattr("pyarrow.csv.read_csv", fail)
            patch.setattr("pyarrow.json.read_json", fail)
            slow = read_workload(path)
        assert slow == fast
        assert np.array_equal(slow.block_values, fast.block_values)
