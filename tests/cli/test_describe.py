"""`lengthwise workload describe`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lengthwise.cli.describe import describe

app = typer.Typer()
app.command()(describe)
runner = CliRunner()


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_castillo_prints_the_papers_table_and_draws_its_figures() -> None:
    result = runner.invoke(app, ["castillo"])
    assert result.exit_code == 0, result.output
    assert "153.5" in result.stdout
    assert Path("castillo.png").is_file()


def test_castillo_as_json_is_without_raw_values() -> None:
    result = runner.invoke(app, ["castillo", "--json", "--no-plot"])
    found = json.loads(result.stdout)
    assert len(found["by_llm"]) == 13
    assert "lengths" not in found
    assert not Path("castillo.png").exists()


def test_another_workload_prints_its_statistics() -> None:
    result = runner.invoke(app, ["azure_sample"])
    assert result.exit_code == 0, result.output
    assert "requests" in result.stdout
    assert json.loads(runner.invoke(app, ["azure_sample", "--json"]).stdout)
