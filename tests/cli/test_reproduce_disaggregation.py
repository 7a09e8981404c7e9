"""`lengthwise reproduce disaggregation`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.disaggregation.study import Effort
from lengthwise.cli import app

runner = CliRunner()


def test_it_prints_json_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    little = Effort(seeds=2, requests=40, engines=2, loads=(0.9,), prefills=(1,))
    monkeypatch.setattr(Effort, "quick", staticmethod(lambda **_: little))
    page, cache = tmp_path / "apart.html", tmp_path / "cache"
    given = ["--quick", "--jobs", "1", "--cache", str(cache), "--json", "--report", str(page)]
    result = runner.invoke(app, ["reproduce", "disaggregation", *given])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["sources"] == {"react": "react", "azure": "azure_sample", "castillo": "castillo"}
    assert found["link"]["gb_per_s"] == 25.0
    assert "mooncake" in result.stderr
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--seeds", "1"], "1 seeds; give at least 2"),
        (["--kv-link", "0"], "above 0"),
        (["--jobs", "0"], "0 processes"),
        (["--report", "nowhere/out.html"], "nowhere: no such folder"),
    ],
)
def test_what_is_wrong_is_named(given: list[str], said: str, tmp_path: Path) -> None:
    result = runner.invoke(app, ["reproduce", "disaggregation", "--quick", "--cache", str(tmp_path), *given])
    assert result.exit_code == 2
    assert said in result.stderr
