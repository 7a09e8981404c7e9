"""`lengthwise reproduce castillo` with its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from tests.experiments.castillo.test_curves import made_up

runner = CliRunner()
GIVEN = ("reproduce", "castillo", "--predictor", "constant")


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_curves_of_ones_own_are_printed_and_drawn() -> None:
    Path("mine.json").write_text(json.dumps(made_up([2.0, 1.0], [2.0, 1.5])), encoding="utf-8")
    result = runner.invoke(app, [*GIVEN, "--curves", "mine.json", "--report", "out.html"])
    assert result.exit_code == 0, result.output
    assert "Loss curves (figures 6, 9 and A.3)" in result.stdout
    assert Path("out.html").read_text(encoding="utf-8").count("data:image/png") == 4
    found = json.loads(runner.invoke(app, [*GIVEN, "--curves", "mine.json", "--json"]).stdout)
    assert found["curves"]["lines"][0]["held_out"] == [2.0, 1.5]
    assert found["cells"]


@pytest.mark.parametrize(
    ("given", "said"),
    [(["--curves", "none.json"], "none.json: cannot be read"), (["--report", "no/out.html"], "no: no such folder")],
)
def test_what_is_wrong_is_named(given: list[str], said: str) -> None:
    result = runner.invoke(app, [*GIVEN, *given])
    assert result.exit_code == 2
    assert said in result.stderr
