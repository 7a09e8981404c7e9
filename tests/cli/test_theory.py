from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from experiments.theory.queueing import Queue
from experiments.theory.study import Claim, Effort
from lengthwise.cli import app
from lengthwise.cli import theory as command
from lengthwise.policies import make_policy


@pytest.fixture(autouse=True)
def _one_small_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    def claims(rate: float) -> list[Claim]:
        queue = Queue(rate, "deterministic")
        return [Claim("FCFS", make_policy("fcfs"), queue, queue.fcfs())]

    monkeypatch.setattr(command, "claims", claims)
    monkeypatch.setattr(command, "Effort", lambda runs: Effort(runs=runs, jobs=300))


def test_the_formula_stands_beside_the_simulation() -> None:
    result = CliRunner().invoke(app, ["theory", "--load", "0.5", "--runs", "5"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "1.5000" in result.stdout  # 1 + 0.5 / (2 * 0.5)


def test_findings_come_as_json_too() -> None:
    result = CliRunner().invoke(app, ["theory", "--runs", "5", "--json"])
    (found,) = json.loads(result.stdout)
    assert found["formula"] == pytest.approx(1 + 0.7 / 0.6)
    assert found["half_width_95"] > 0


@pytest.mark.parametrize("arguments", [["--load", "1"], ["--load", "0"], ["--runs", "2"]])
def test_what_cannot_be_examined_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["theory", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: field")
