"""`lengthwise reproduce alpaca20`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.alpaca20.run import write_predictions
from lengthwise.cli import app
from tests.experiments.test_alpaca20 import predictions, write_alpaca

runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "alpaca52k").mkdir()
    samples = write_alpaca(tmp_path / "alpaca52k")
    write_predictions(tmp_path / "made.npz", {"equal_mass": predictions(samples, 0.6)})
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_predictions_of_a_training_elsewhere_are_scored_and_drawn(folder: Path) -> None:
    given = ["reproduce", "alpaca20", "--predictions", "made.npz", "--report", "out.html", "--json"]
    result = runner.invoke(app, given)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["paper"]["accuracy"] == 0.24
    assert "accuracy" in found["beaten"]["equal_mass"]
    assert (folder / "out.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--predictions", "nothing.npz"], "nothing.npz: is not a file of predictions"),
        (["--config", "nothing.yaml"], "nothing.yaml: cannot be read"),
        (["--predictions", "made.npz", "--report", "nowhere/out.html"], "nowhere: no such folder"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_wrong_is_named(given: list[str], said: str) -> None:
    result = runner.invoke(app, ["reproduce", "alpaca20", *given])
    assert result.exit_code == 2
    assert said in result.stderr
