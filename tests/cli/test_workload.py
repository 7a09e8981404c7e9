from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app
from lengthwise.workloads import load_trace, read_workload, write_workload


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["workload", *map(str, arguments)])


def summary(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_castillo_prompts_get_shared_prefixes(tmp_path: Path) -> None:
    out = tmp_path / "w.parquet"
    arguments = "castillo --llm meta-llama/Llama-3.1-8B-Instruct --rate 8 --requests 2000 --shared-prefixes 10"
    result = run(*arguments.split(), "-o", out)
    assert result.exit_code == 0
    made = read_workload(out)
    assert (len(made), made.block_size) == (2000, 64)
    assert len({int(made.blocks(row)[0]) for row in range(2000)}) == 10
    assert made.content_hash in result.stdout
    assert "degenerate samples" in result.stdout


def test_a_day_has_few_requests_at_night_and_the_same_ones_with_the_same_seed(tmp_path: Path) -> None:
    out = tmp_path / "day.parquet"
    data = summary("day", "--rate", "4", "-o", out)
    made = read_workload(out)
    hours = (made.arrival_s // 30).astype(int)
    assert hours.max() == 23
    assert (hours == 3).sum() < (hours == 15).sum() / 4
    assert len(set(made.table["prompt"].to_pylist())) > 50
    assert summary("day", "--rate", "4", "-o", tmp_path / "again.parquet")["content_hash"] == data["content_hash"]
    assert "give a larger rate" in run("day", "--rate", "0.00001", "-o", out).stderr


def test_use_of_the_packaged_sample_is_noted_on_stderr_only(tmp_path: Path) -> None:
    result = run("castillo", "--llm", "llama-3.1-8b", "--rate", "8", "-o", tmp_path / "w.csv", "--json")
    assert "sample that ships with the package" in result.stderr
    assert json.loads(result.stdout)["requests"] == 1000


def test_react_writes_the_requested_prompts_and_lengths(tmp_path: Path) -> None:
    out = tmp_path / "w.jsonl"
    arguments = "react --workloads 10 --examples 4 --rate 64 --requests 5000 --lengths 1:0.5,300:0.5"
    data = summary(*arguments.split(), "-o", out)
    assert (data["requests"], data["input"]["max"], data["block_size"]) == (5000, 1981, 64)
    made = read_workload(out)
    assert set(made.output_tokens.tolist()) == {1, 300}
    assert data["content_hash"] == made.content_hash


def test_the_same_seed_makes_the_same_workload(tmp_path: Path) -> None:
    arguments = ("castillo", "--llm", "llama-3.1-8b", "--rate", "8", "--turns", "3", "--shared-prefixes", "4")
    first, second, other = (
        summary(*arguments, "--seed", seed, "-o", tmp_path / "w.parquet")["content_hash"] for seed in ("1", "1", "2")
    )
    assert first == second != other


def test_castillo_takes_splits_corpora_limits_and_bursts(tmp_path: Path) -> None:
    out = tmp_path / "w.parquet"
    arguments = "castillo --llm gemma-3-4b --rate 2 --cv 3 --split test --split validate --corpus mbpp --max-tokens 50"
    data = summary(*arguments.split(), "-o", out)
    assert data["output"]["max"] == 50
    assert data["arrival_cv"] > 2


def test_a_rescaled_trace_keeps_its_arrival_pattern(tmp_path: Path) -> None:
    data = summary("trace", "azure_sample", "--rate", "20", "--requests", "500", "-o", tmp_path / "w.parquet")
    own = load_trace("azure_sample").head(500).describe()
    assert data["rate"] == pytest.approx(20)
    assert data["arrival_cv"] == pytest.approx(own.arrival_cv)


def test_with_cv_more_requests_than_the_trace_has_are_resampled(tmp_path: Path) -> None:
    arguments = ("trace", "azure_sample", "--rate", "20", "--cv", "1", "--requests", "5000")
    data = summary(*arguments, "-o", tmp_path / "w.parquet")
    assert data["requests"] == 5000
    assert data["arrival_cv"] == pytest.approx(1, abs=0.1)


def test_a_file_of_lengths_needs_a_rate_and_gets_poisson_arrivals(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("input_tokens,output_tokens\n" + "3,4\n" * 500)
    refused = run("trace", lengths, "-o", tmp_path / "w.parquet")
    assert (refused.exit_code, "arrival_s" in refused.stderr) == (2, True)
    data = summary("trace", lengths, "--rate", "5", "-o", tmp_path / "w.parquet")
    assert data["rate"] == pytest.approx(5, rel=0.2)


def test_a_batch_needs_a_rate(tmp_path: Path) -> None:
    batch = tmp_path / "batch.csv"
    batch.write_text("arrival_s,input_tokens,output_tokens\n0,3,4\n0,3,4\n")
    result = run("trace", batch, "-o", tmp_path / "w.parquet")
    assert (result.exit_code, "--rate" in result.stderr) == (2, True)


def test_writing_csv_warns_that_block_hashes_are_left_out(tmp_path: Path) -> None:
    result = run("react", "--rate", "1", "--requests", "5", "-o", tmp_path / "w.csv")
    assert "block hashes are not in" in result.stderr
    assert not read_workload(tmp_path / "w.csv").has_blocks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("castillo --llm gpt-9 --rate 1", "known: Qwen/Qwen2.5-14B-Instruct"),
        ("castillo --llm llama-3.1-8b --rate 0", "field 'rate'"),
        ("castillo --llm llama-3.1-8b --rate 1 --split dev", "known: test, train, validate"),
        ("castillo --llm llama-3.1-8b --rate 1 --data nowhere", "no such folder"),
        ("castillo --llm llama-3.1-8b --rate 1 --shared-prefixes 0", "give at least 1"),
        ("castillo --llm llama-3.1-8b --rate 1 --turns 0.5", "a mean of at least 1"),
        ("castillo --llm llama-3.1-8b --rate 1 --closed-loop", "give --turns"),
        ("agents --rate 1", "trajectories are not on this machine"),
        ("react --rate 1 --lengths 1:0.5,300:0.4", "sum to 0.9; they must sum to 1"),
        ("alpaca --rate 1", "set LENGTHWISE_DATA"),
        ("trace azure_smaple", "did you mean azure_sample"),
        ("trace nowhere.csv", "nowhere.csv: no such file"),
        ("trace azure_sample --requests 9999", "a trace that has 2000"),
        ("trace azure_sample --cv 2", "--rate"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path, arguments: str, message: str) -> None:
    out = tmp_path / "w.parquet"
    result = run(*arguments.split(), "-o", out)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert not out.exists()


def test_an_unknown_file_extension_is_refused(tmp_path: Path) -> None:
    result = run("react", "--rate", "1", "-o", tmp_path / "w.xlsx")
    assert (result.exit_code, "end it in .parquet" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("cells", "row", "field"),
    [
        ("0,1,1\n1,-4,1\n", 2, "input_tokens"),
        ("0,1,1\n1,1,long\n", 2, "output_tokens"),
        ("0,1,1\n5,1,1\n4,1,1\n", 3, "arrival_s"),
        ("0,1,1\n1,1\n", 2, "output_tokens"),
    ],
)
def test_a_bad_row_is_named_by_file_row_and_field(tmp_path: Path, cells: str, row: int, field: str) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("arrival_s,input_tokens,output_tokens\n" + cells)
    result = run("trace", bad, "-o", tmp_path / "w.parquet")
    assert result.exit_code == 2
    assert f"error: {bad}, row {row}, field '{field}': " in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "w.parquet"
    write_workload(load_trace("azure_sample"), whole)
    whole.write_bytes(whole.read_bytes()[:-100])
    result = run("trace", whole, "-o", tmp_path / "x.parquet")
    assert (result.exit_code, f"error: {whole}: is not a complete Parquet file" in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["castillo", "react", "alpaca", "trace"])
def test_every_help_has_an_example(command: str) -> None:
    text = run(command, "--help").stdout
    assert "Example: " in text
    assert f"lengthwise workload {command} " in text


def test_describe_castillo_names_the_command_that_does() -> None:
    result = run("describe", "castillo")
    assert result.exit_code == 2
    assert "lengthwise lengths fit castillo" in result.stderr


def test_describe_prints_the_statistics_of_a_workload() -> None:
    result = run("describe", "azure_sample")
    assert result.exit_code == 0, result.output
    assert "requests" in result.stdout
    assert json.loads(run("describe", "azure_sample", "--json").stdout)
