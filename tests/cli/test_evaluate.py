"""`lengthwise evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from tests.traffic.traffic_rows import made, write

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


def test_with_json_stdout_holds_only_json() -> None:
    result = runner.invoke(app, ["evaluate", "constant-corpus", "castillo", "--json", "--llm", "llama-3.1-8B"])
    found = json.loads(result.stdout)
    assert found["predictor"] == "constant-corpus"
    assert found["rows"] == 498


def test_bad_input_is_an_error_with_exit_code_2() -> None:
    for arguments, message in (
        (["constant", "nowhere.parquet"], "no such file"),
        (["constant", "castillo", "--split", "dev"], "known: test, train, validate"),
        (["constant", "castillo", "--report", "no/such/out.html"], "no such folder"),
    ):
        result = runner.invoke(app, ["evaluate", *arguments])
        assert result.exit_code == 2
        assert message in result.stderr
        assert "Traceback" not in result.output


def test_a_traffic_log_is_scored_by_model_tenant_and_day_with_a_report(tmp_path: Path) -> None:
    write(tmp_path / "learn", made(200, tenant="team-a"))
    result = runner.invoke(app, ["evaluate", "--from", "learn", "--report", "out.html"])
    assert result.exit_code == 0, result.output
    for shown in ("as served", "history", "By tenant", "team-a", "2001-09-09"):
        assert shown in result.stdout
    assert "By day" in Path("out.html").read_text(encoding="utf-8")
    found = json.loads(runner.invoke(app, ["evaluate", "--from", "learn", "--json"]).stdout)
    assert found["scored"] == 200
    assert found["groups"]["tenant"]["team-a"]["as served"]["tau"] > 0.4


def test_evaluate_needs_either_a_predictor_or_a_traffic_log(tmp_path: Path) -> None:
    for arguments, message in (
        (["fast", "--from", "learn"], "leave the predictor out"),
        ([], "give a traffic log with --from DIR"),
        (["--from", str(tmp_path / "none")], "is not a folder"),
        (["--from", str(tmp_path)], "holds no requests"),
    ):
        result = runner.invoke(app, ["evaluate", *arguments])
        assert result.exit_code == 2
        assert message in result.output.replace("\n", " ")
