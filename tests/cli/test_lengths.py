"""`lengthwise lengths fit`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import lengths
from lengthwise.errors import InputError
from lengthwise.workloads.length_families import study_families
from tests.experiments.samples import QUICK, made_up

runner = CliRunner()


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "samples.parquet"
    made_up(prompts=10).write(path)
    return path


@pytest.fixture(autouse=True)
def _quick_and_without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lengths, "study_families", partial(study_families, effort=QUICK))


def test_fit_prints_tables_and_writes_a_plot(parquet: Path) -> None:
    result = runner.invoke(lengths.app, ["fit", str(parquet), "--by", "corpus"])
    assert result.exit_code == 0, result.output
    assert "60.3 %" in result.stdout
    assert "DollyDataset" in result.stdout
    assert Path("lengths-fit.png").is_file()


def test_fit_prints_json_and_nothing_else_on_stdout(parquet: Path) -> None:
    options = ["--by", "none", "--llm", "owner/a", "--json", "--plot", "x.png"]
    result = runner.invoke(lengths.app, ["fit", str(parquet), *options])
    found = json.loads(result.stdout)
    assert [group["group"] for group in found["groups"]] == ["all"]
    assert found["rows"] == 8  # of ten; one row is constant, one is degenerate
    assert Path("x.png").is_file()


def test_fit_works_with_the_packaged_sample() -> None:
    result = runner.invoke(lengths.app, ["fit", "castillo", "--sample", "5", "--no-plot", "--by", "llm"])
    assert result.exit_code == 0, result.output
    assert "sample that ships with the package" in result.stderr
    assert not Path("lengths-fit.png").exists()


def test_a_missing_source_is_an_error() -> None:
    with pytest.raises(InputError, match="no such file or folder; give castillo"):
        lengths.load_samples("nowhere.parquet")


def test_fit_is_a_command_of_its_group() -> None:
    assert "fit" in runner.invoke(lengths.app, ["--help"]).stdout
