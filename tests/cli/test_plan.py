"""`lengthwise plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app

TRACE = ["azure_sample", "--requests", "150", "--rate", "20", "--max-num-seqs", "8", "--engines", "1..4"]


def plan(*options: str) -> Result:
    return CliRunner().invoke(app, ["plan", *options])


def test_plan_finds_the_fewest_engines_for_each_policy(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    result = plan(
        *TRACE, "--slo-e2e", "60", "--attainment", "0.9", "--policy", "fcfs,sjf", "--report", str(page), "--json"
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [each["policy"] for each in found["plans"]] == ["fcfs", "sjf"]
    for each in found["plans"]:
        trials = each["by_seed"][0]["trials"]
        assert each["engines"] == min(trial["engines"] for trial in trials if trial["attained"] >= 0.9)
        assert all(trial["interval"][0] <= trial["attained"] <= trial["interval"][1] for trial in trials)
    assert found["seeds"] == 1  # the trace has its own arrivals
    assert found["origin"]["command"].startswith("lengthwise")
    text = page.read_text(encoding="utf-8")
    assert text.index(found["verdict"].split(". ")[0]) < text.index("How many engines are enough")
    assert "Latency by output length" in text


def test_a_generated_workload_meets_the_target_with_every_seed() -> None:
    drawn = ["castillo", "--requests", "60", "--rate", "20", "--max-num-seqs", "8", "--engines", "1..4"]
    result = plan(*drawn, "--slo-ttft", "1", "--attainment", "0.8", "--policy", "fcfs", "--seeds", "3", "--json")
    found = json.loads(result.stdout)
    assert found["verdict"].endswith("in all 3 seeds.") or "at the lowest of 3 seeds" in found["verdict"]
    assert found["origin"]["seed"] == "0 to 2"
    (policy,) = found["plans"]
    for each in policy["by_seed"]:
        shares = {trial["engines"]: trial["attained"] for trial in each["trials"]}
        assert shares[policy["engines"] or 4] >= 0.8 or policy["engines"] is None


def test_an_unreachable_target_is_exit_code_1_with_the_reason() -> None:
    result = plan(*TRACE, "--slo-e2e", "0.01", "--policy", "fcfs")
    assert result.exit_code == 1
    assert result.stdout.startswith("4 engines are not enough for 99 % of requests within E2E at most 0.01 s")
    assert "Without any queue it would be 0.0 %." in result.stdout
    assert max(len(line) for line in result.stdout.splitlines() if line.startswith(("┏", "│"))) <= 80


def test_the_verdict_names_true_lengths() -> None:
    result = plan(*TRACE, "--slo-e2e", "60", "--policy", "sjf", "--predictor", "oracle")
    assert result.stdout.startswith("With TRUE LENGTHS, which no server has: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no limit; give --slo-ttft, --slo-tpot or --slo-e2e"),
        (["--slo-e2e", "5", "--engines", "x..3"], "give a range such as 1..16"),
        (["--slo-e2e", "5", "--engines", "3..1"], "give a range such as 1..16"),
        (["--slo-e2e", "5", "--engines", "1..100000"], "at most 1,024"),
        (["--slo-e2e", "-5"], "a limit of -5 s"),
        (["--slo-e2e", "5", "--policy", "nope"], "nope"),
        (["--slo-e2e", "5", "--attainment", "2"], "at most 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options: list[str], message: str) -> None:
    result = plan("azure_sample", "--requests", "5", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
