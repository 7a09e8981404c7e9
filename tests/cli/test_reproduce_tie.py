from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from experiments.tie.study import HIGH, LOW, Effort, TieStudy, study
from lengthwise.cli import app, reproduce_tie
from lengthwise.workloads import load_castillo

if TYPE_CHECKING:
    from typer.testing import Result

SMALL = Effort(2, 120, (LOW, HIGH), 240)


@cache
def _once(predictor: str) -> TieStudy:
    return study(load_castillo(), predictor=predictor, effort=SMALL)


@pytest.fixture(autouse=True)
def _small_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(_: object, *, predictor: str, effort: Effort, **__: Any) -> TieStudy:
        assert effort.seeds >= 2
        return _once(predictor)

    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)
    monkeypatch.setattr(reproduce_tie, "study", stand_in)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", "tie", "--quick", "--predictor", "fast", *arguments])


def test_tables_a_report_and_a_word_on_the_packaged_sample(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    result = run("--report", str(out))
    assert result.exit_code == 0, result.output
    for title in ("Ablation of TIE", "Offline: all at once", "What can be compared", "What explains the differences"):
        assert title in result.stdout
    assert "small sample that ships with the package" in result.stderr
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json() -> None:
    told = json.loads(run("--json").stdout)
    assert told["predictor"] == "fast"
    assert told["paper"]["offline"]["tie"] == [98.1, 4762.0]
    assert told["compared"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--seeds", "1"], "1 seeds"),
        (["--report", "nowhere/out.html"], "no such folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options: list[str], told: str) -> None:
    result = run(*options)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_predictor_is_told_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_tie, "study", study)
    result = CliRunner().invoke(app, ["reproduce", "tie", "--quick", "--predictor", "noisy:7"])
    assert result.exit_code == 2
    assert "7" in result.stderr
