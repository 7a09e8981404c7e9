from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.workloads.datasets import load_reasoning

if TYPE_CHECKING:
    from typer.testing import Result


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", "reasoning", "--predictor", "fast", *arguments])


def test_tables_of_the_packaged_pairs_and_a_report(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    result = run("--report", str(out))
    assert result.exit_code == 0, result.output
    assert "How much longer answers become" in result.stdout
    assert "How predictions hold" in result.stdout
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_of_a_persons_own_pairs(tmp_path: Path) -> None:
    pairs = load_reasoning()
    plain, steps = tmp_path / "plain.parquet", tmp_path / "steps.parquet"
    pairs.plain.write(plain)
    pairs.steps.write(steps)
    options = ["--plain", str(plain), "--steps", str(steps), "--max-tokens", "512", "--json"]
    told, packaged = json.loads(run(*options).stdout), json.loads(run("--json").stdout)
    assert told["origin"] == str(plain)
    assert told["holdings"] == packaged["holdings"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--plain", "x.parquet"], "--plain and --steps go together"),
        (["--report", "nowhere/out.html"], "no such folder"),
        (["--plain", "x.parquet", "--steps", "y.parquet"], "x.parquet"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options: list[str], told: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
