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
    assert "the lowest of 3 seeds (target 80 %)" in found["verdict"] or "at the lowest of 3 seeds" in found["verdict"]
    assert found["origin"]["seed"] == "0 to 2"
    (policy,) = found["plans"]
    for each in policy["by_seed"]:
        shares = {trial["engines"]: trial["attained"] for trial in each["trials"]}
        assert shares[policy["engines"] or 4] >= 0.8 or policy["engines"] is None


def test_with_a_fixed_fleet_plan_says_which_policy_to_use_and_what_it_costs(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    traffic = ["azure_sample", "--requests", "300", "--rate", "12", "--max-num-seqs", "8", "--engines", "2"]
    limits = ["--slo-ttft", "2", "--attainment", "0.5"]
    result = plan(*traffic, *limits, "--report", str(page), "--json")
    found = json.loads(result.stdout)
    policies = [each["policy"] for each in found["plans"]]
    assert policies == ["fcfs", "lengthwise", "sjf", "slo", "ontime:ttft=2"]
    trials = {each["policy"]: each["by_seed"][0]["trials"] for each in found["plans"]}
    assert all([trial["engines"] for trial in tried] == [2] for tried in trials.values())
    assert found["use"] in policies
    assert found["use"] in found["verdict"]
    attained = {name: tried[0]["attained"] for name, tried in trials.items()}
    assert attained[found["use"]] >= min(0.5, max(attained.values()) - 0.01)
    assert result.exit_code == (0 if max(attained.values()) >= 0.5 else 1)
    assert "What each policy attains" in page.read_text(encoding="utf-8")
    table = plan(*traffic, *limits, "--policy", "fcfs,sjf").stdout
    assert "goodput/s" in table
    assert "p99 over fcfs" in table


def test_of_several_engines_with_your_prices_the_cheapest_fleet_and_policy_is_named() -> None:
    priced = ["--engine", "llama-3-8b@a100", "--price", "2", "--engine", "llama-3-8b@h100", "--price", "5"]
    limits = ["--slo-e2e", "60", "--attainment", "0.9", "--policy", "fcfs,sjf"]
    result = plan(*TRACE, *limits, *priced, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    costs = found["costs"]
    assert [each["per_hour"] for each in costs] == sorted(each["per_hour"] for each in costs)
    assert all(each["per_hour"] == each["engines"] * each["price"] for each in costs)
    assert {each["engine"] for each in costs} == {"llama-3-8b@a100", "llama-3-8b@h100"}
    best = costs[0]
    assert found["verdict"].startswith(
        f"Cheapest for 90 % of requests within E2E at most 60 s: {best['engines']} x {best['engine']} under "
        f"{best['policy']}, {best['per_hour']:.2f} per hour ({best['per_million_output_tokens']:.2f} per million"
    )
    shown = plan(*TRACE, *limits, *priced).stdout
    assert "What it costs, the cheapest first" in shown


def test_limits_of_the_workload_s_requests_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "limits.csv"
    rows = [f"{0.1 * row},40,20,{2 if row % 2 else 0.5},chat" for row in range(20)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,ttft_limit_s,request_class", *rows]))
    found = json.loads(plan(str(path), "--engines", "1", "--max-num-seqs", "2", "--json").stdout)
    assert "within their own limits on 1 engine" in found["verdict"]
    assert "ontime" in [each["policy"] for each in found["plans"]]


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
        ([], "no limit; give --slo-ttft, --slo-tpot, --slo-e2e or --slo-per-token"),
        (["--slo-ttft", "0"], "field 'slo-ttft': a limit of 0 s"),
        (["--slo-ttft", "nan"], "a limit of nan s"),
        (["--slo-per-token", "-1", "--engines", "2"], "a limit of -1 s"),
        (["--slo-e2e", "5", "--engines", "0"], "give a range such as 1..16"),
        (["--slo-e2e", "5", "--engines", "two"], "or the number of engines you have"),
        (["--slo-e2e", "5", "--engines", "x..3"], "give a range such as 1..16"),
        (["--slo-e2e", "5", "--engines", "3..1"], "give a range such as 1..16"),
        (["--slo-e2e", "5", "--engines", "1..100000"], "at most 1,024"),
        (["--slo-e2e", "-5"], "a limit of -5 s"),
        (["--slo-e2e", "5", "--policy", "nope"], "nope"),
        (["--slo-e2e", "5", "--attainment", "2"], "at most 1"),
        (["--slo-e2e", "5", "--engine", "llama-3-8b@a100", "--engine", "llama-3-8b@h100"], "2 engines and 0 prices"),
        (["--slo-e2e", "5", "--price", "0"], "a price of 0"),
        (["--slo-e2e", "5", *["--engine", "llama-3-8b@a100", "--price", "1"] * 2], "an engine is given twice"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(options: list[str], message: str) -> None:
    result = plan("azure_sample", "--requests", "5", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
