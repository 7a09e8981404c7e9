"""Options of `lengthwise simulate` that change the engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lengthwise.cli import app
from lengthwise.workloads import Workload, write_workload


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Forty requests in 0.4 s, alternately long and short, with a shared prefix."""
    columns = {
        "arrival_s": [0.01 * i for i in range(40)],
        "input_tokens": [130] * 40,
        "output_tokens": [300, 10] * 20,
        "block_hashes": [[1, 2]] * 40,
    }
    write_workload(Workload.from_table(columns, name="w", block_size=64), tmp_path / "w.parquet")
    return str(tmp_path / "w.parquet")


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["simulate", *arguments, "--max-num-seqs", "8", "--json"])
    assert result.exit_code == 0, result.stderr
    output: dict[str, Any] = json.loads(result.stdout)
    return output


def mean(output: dict[str, Any], measure: str = "e2e_s") -> float:
    return float(output["runs"][0][measure]["mean"])


def test_prefix_caching_lowers_ttft(source: str) -> None:
    assert mean(run(source), "ttft_s") < mean(run(source, "--no-prefix-caching"), "ttft_s")


def test_short_memory_causes_preemptions_that_peak_admission_avoids(source: str) -> None:
    short = ("--kv-tokens", "1600", "--no-prefix-caching")
    preempted = [run(source, *short, *more)["runs"][0]["preemptions"] for more in ((), ("--admission", "peak"))]
    assert preempted[0] > 0
    assert preempted[1] == 0


def test_decisions_and_late_predictions_cost_latency(source: str) -> None:
    assert mean(run(source, "--decision-time", "0.05")) > mean(run(source))
    known = ("--policy", "sjf", "--predictor", "oracle")
    assert mean(run(source, *known, "--prediction-delay", "100")) > mean(run(source, *known))


@pytest.mark.parametrize(
    "option", [("--admission", "luck"), ("--prediction-delay", "-1"), ("--decision-time", "nan"), ("--kv-tokens", "3")]
)
def test_an_invalid_option_is_refused(source: str, option: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["simulate", source, *option])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
