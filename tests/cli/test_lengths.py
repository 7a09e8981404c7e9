"""`lengthwise lengths fit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import lengths
from lengthwise.errors import InputError
from tests.workloads.made_samples import made_up

runner = CliRunner()


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "samples.parquet"
    made_up(prompts=10).write(path)
    return path


@pytest.fixture(autouse=True)
def _without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_fit_prints_a_row_for_each_group(parquet: Path) -> None:
    result = runner.invoke(lengths.app, ["fit", str(parquet), "--by", "corpus"])
    assert result.exit_code == 0, result.output
    assert "DollyDataset" in result.stdout
    assert "19 of 20 rows have 3 clean samples" in " ".join(result.stdout.split())


def test_fit_prints_json_and_nothing_else_on_stdout(parquet: Path) -> None:
    result = runner.invoke(lengths.app, ["fit", str(parquet), "--by", "none", "--llm", "owner/a", "--json"])
    found = json.loads(result.stdout)
    assert [(group["group"], group["rows"], group["fitted"]) for group in found["groups"]] == [("all", 10, 9)]


def test_fit_works_with_the_packaged_sample() -> None:
    result = runner.invoke(lengths.app, ["fit", "castillo", "--sample", "5", "--by", "llm"])
    assert result.exit_code == 0, result.output
    assert "sample that ships with the package" in result.stderr


def test_a_missing_source_is_an_error() -> None:
    with pytest.raises(InputError, match="no such file or folder; give castillo"):
        lengths.load_samples("nowhere.parquet")


def test_fit_is_a_command_of_its_group() -> None:
    assert "fit" in runner.invoke(lengths.app, ["--help"]).stdout
