"""`lengthwise evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_constant_is_evaluated_on_the_packaged_sample_with_a_report() -> None:
    result = runner.invoke(app, ["evaluate", "constant", "--report", "out.html", "--corpus", "Mbpp"])
    assert result.exit_code == 0, result.output
    assert "noise ceiling" in result.stdout
    assert "report: out.html" in result.stdout
    assert Path("out.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_as_json_stdout_is_json_only() -> None:
    result = runner.invoke(app, ["evaluate", "constant-corpus", "castillo", "--json", "--llm", "llama-3.1-8B"])
    found = json.loads(result.stdout)
    assert found["predictor"] == "constant-corpus"
    assert found["rows"] == 498


def test_mistakes_are_one_line_and_exit_code_2() -> None:
    for arguments, said in (
        (["constant", "nowhere.parquet"], "no such file"),
        (["constant", "castillo", "--split", "dev"], "known: test, train, validate"),
        (["constant", "castillo", "--report", "no/such/out.html"], "no such folder"),
    ):
        result = runner.invoke(app, ["evaluate", *arguments])
        assert result.exit_code == 2
        assert said in result.stderr
        assert "Traceback" not in result.output
