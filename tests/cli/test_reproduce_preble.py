"""`lengthwise reproduce preble`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.preble import study as experiment
from experiments.preble.traffic import castillo_prompts
from lengthwise.cli import app

runner = CliRunner()


def test_it_prints_json_writes_a_page_and_is_quick_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTHWISE_DATA", "")
    castillo_prompts.cache_clear()
    little = experiment.Effort(
        seeds=2,
        engines=(8,),
        rates=(64.0,),
        seconds=0.5,
        least=20,
        varied_engines=(8,),
        varied_rates=(64.0,),
        loads=(0.9,),
        shared_engines=2,
        shared_slots=4,
        shared_requests=30,
    )
    monkeypatch.setattr(experiment.Effort, "quick", staticmethod(lambda **_: little))
    page = tmp_path / "preble.html"
    kept = str(tmp_path / "kept")
    given = ["reproduce", "preble", "--quick", "--predictor", "noisy:0.5", "--jobs", "1", "--cache", kept]
    first = runner.invoke(app, [*given, "--json", "--report", str(page)])
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)
    assert found["predictor"] == "noisy:0.5"
    assert "the small sample that ships" in first.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    second = runner.invoke(app, given)
    assert second.exit_code == 0, second.output
    assert f"{found['computed']} from the cache, 0 computed" in second.stderr
    assert "Figure 2: E2 with true lengths, 8 engines" in second.stdout
    castillo_prompts.cache_clear()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seeds", "1"], "1 seeds; give at least 2"),
        (["--report", "nowhere/out.html"], "nowhere: no such folder"),
        (["--plot", "nowhere/out.png"], "another --plot"),
        (["--jobs", "0"], "give at least 1"),
        (["--engines", "0,8"], "give numbers of at least 1, commas between"),
        (["--rates", "many"], "give numbers, commas between"),
    ],
)
def test_what_is_wrong_is_named(given: list[str], said: str) -> None:
    result = runner.invoke(app, ["reproduce", "preble", "--quick", *given])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
