from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app
from lengthwise.cli.traces import sparkline
from lengthwise.workloads import TRACES, load_trace, read_workload


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["traces", *map(str, arguments)])


def test_list_names_every_trace_and_which_are_present() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in TRACES)
    assert "LENGTHWISE_DATA" in result.stdout
    entries = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in entries if entry["here"]] == ["azure_sample"]
    assert all(entry["licence"] and entry["source"] for entry in entries)


def test_show_prints_rate_lengths_and_licence() -> None:
    result = run("show", "azure_sample")
    assert result.exit_code == 0
    for text in ("2,000", "4.712 per second", "CC-BY-4.0", load_trace("azure_sample").content_hash, "█"):
        assert text in result.stdout
    data = json.loads(run("show", "azure_sample", "--json").stdout)
    assert (data["requests"], data["licence"], data["repeated_prefix"]) == (2000, "CC-BY-4.0", None)


def test_show_reads_a_file_without_arrivals(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("input_tokens,output_tokens\n3,4\n3,5\n")
    result = run("show", tmp_path / "l.csv")
    assert result.exit_code == 0
    assert "all at once" in result.stdout
    assert "all 3" in result.stdout


def test_a_trace_survives_conversion_through_every_format(tmp_path: Path) -> None:
    steps: list[str | Path] = ["azure_sample", tmp_path / "a.csv", tmp_path / "b.jsonl", tmp_path / "c.parquet"]
    for source, target in pairwise(steps):
        result = run("convert", source, target)
        assert result.exit_code == 0, result.stderr
    made, sample = read_workload(tmp_path / "c.parquet"), load_trace("azure_sample")
    assert made.arrival_s == pytest.approx(sample.arrival_s, abs=1e-9)
    assert made.replace(arrival_s=sample.arrival_s) == sample


def test_convert_takes_a_format_a_block_size_and_a_jitter_seed(tmp_path: Path) -> None:
    source = tmp_path / "trace.log"
    source.write_text('{"timestamp": 3000, "input_length": 99, "output_length": 1, "hash_ids": [1, 2]}\n' * 9)
    options = ("--from", "mooncake", "--block-size", "64", "--jitter-seed", "1")
    result = run("convert", source, tmp_path / "o.parquet", *options, "--json")
    assert result.exit_code == 0
    made = read_workload(tmp_path / "o.parquet")
    assert made.block_size == 64
    assert len(set(made.arrival_s.tolist())) == 9
    assert json.loads(result.stdout)["content_hash"] == made.content_hash


def test_convert_reports_the_requests_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,1,0\n")
    result = run("convert", tmp_path / "a.csv", tmp_path / "b.csv")
    assert "requests without an answer" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "azure"), "did you mean azure_sample"),
        (("show", "mooncake_conversation"), "set LENGTHWISE_DATA"),
        (("convert", "azure_sample", "out.pdf"), "end it in .parquet"),
        (("convert", "nothing.jsonl", "out.csv"), "no such file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_sparkline_is_proportional_and_shows_every_nonzero_count() -> None:
    assert sparkline(np.array([0, 1, 400, 800])) == " ▁▄█"
    assert sparkline(np.array([0, 0])) == "  "
