"""`lengthwise reproduce trail`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.trail import study as trail_experiment
from lengthwise.cli import app

runner = CliRunner()


def test_it_prints_json_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    little = trail_experiment.Effort(seeds=2, requests=40, limits=(0.0, 0.8), slots=(2,), loads=(0.9,))
    monkeypatch.setattr(trail_experiment.Effort, "quick", staticmethod(lambda **_: little))
    page = tmp_path / "trail.html"
    given = ["reproduce", "trail", "--quick", "--predictor", "noisy:0.5", "--json", "--report", str(page)]
    result = runner.invoke(app, given)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["predictor"] == "noisy:0.5"
    assert found["corpus"] == "all test prompts"
    assert "the small sample that ships" in result.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seeds", "1"], "1 seeds; give at least 2"),
        (["--report", "nowhere/out.html"], "nowhere: no such folder"),
    ],
)
def test_what_is_wrong_is_named(given: list[str], said: str) -> None:
    result = runner.invoke(app, ["reproduce", "trail", "--quick", *given])
    assert result.exit_code == 2
    assert said in result.stderr
