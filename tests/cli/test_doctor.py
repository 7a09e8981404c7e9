from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app


def test_doctor_names_the_command_that_installs_a_missing_part() -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "prediction ready" in result.stdout
    assert "lengthwise[ray]" in result.stdout


def test_doctor_prints_json() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    parts = {part["package"]: part for part in json.loads(result.stdout)["parts"]}
    assert parts["huggingface-hub"]["version"]


def test_doctor_prints_the_data_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor"], env={"LENGTHWISE_DATA": str(tmp_path), "COLUMNS": "400"})
    assert str(tmp_path) in result.stdout


def test_a_data_folder_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "/nowhere/at/all")
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 2
    assert "LENGTHWISE_DATA=/nowhere/at/all" in result.stderr


def test_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.stdout.startswith("lengthwise ")
