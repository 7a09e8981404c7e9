from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app
from lengthwise.workloads import Workload, write_workload


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *args], env={"LENGTHWISE_DATA": "", "COLUMNS": "200"})


def batch(path: Path, *, arrivals: bool) -> Path:
    """Sixty requests, alternately long and short."""
    times = [i * 0.25 if arrivals else 0.0 for i in range(60)]
    columns = {"arrival_s": times, "input_tokens": [50] * 60, "output_tokens": [400, 10] * 30}
    write_workload(Workload.from_table(columns, name="batch"), path)
    return path


def test_sjf_beats_fcfs_when_the_queue_is_long(tmp_path: Path) -> None:
    source = batch(tmp_path / "w.parquet", arrivals=False)
    result = run(
        str(source), "--rate", "20", "--policy", "fcfs,sjf", "--predictor", "oracle", "--max-num-seqs", "4", "--json"
    )
    assert result.exit_code == 0
    output = json.loads(result.stdout)
    assert output["requests"] == 60
    assert output["capacity"]["slots"] == 4
    fcfs, sjf = output["runs"]
    assert (fcfs["policy"], fcfs["predictor"], sjf["policy"], sjf["predictor"]) == ("fcfs", None, "sjf", "oracle")
    assert fcfs["load"] > 1
    assert sjf["over_fcfs"]["e2e_mean"]["ratio"] < 0.9
    assert fcfs["over_fcfs"]["e2e_mean"]["ratio"] == 1.0


def test_castillo_by_name_prints_a_table_and_states_the_load() -> None:
    result = run("castillo", "--rate", "8", "--requests", "40", "--max-num-seqs", "4", "--seed", "3")
    assert result.exit_code == 0
    assert "fcfs" in result.stdout
    assert "n 40, slots 4, seed 3, run to drain" in result.stdout
    assert "sample that ships with the package" in result.stderr


def test_the_same_command_twice_prints_the_same_json() -> None:
    command = ("castillo", "--rate", "8", "--requests", "20", "--json")
    first, second = (json.loads(run(*command).stdout) for _ in range(2))
    assert first.pop("origin")["command"] == second.pop("origin")["command"]  # its date may differ
    assert first == second


def test_predictions_are_stated_with_their_tau() -> None:
    command = ("castillo", "--rate", "8", "--requests", "60", "--max-num-seqs", "4", "--policy", "fcfs,sjf")
    output = json.loads(run(*command, "--predictor", "noisy:0.6", "--json").stdout)
    assert output["predictors"]["noisy:0.6"]["tau"] == pytest.approx(0.6, abs=0.01)
    assert "Predictions: fast (tau 0." in run(*command, "--predictor", "fast").stdout
    assert "Predictions: none." in run(*command, "--predictor", "none").stdout


def test_the_default_predictor_is_fast_for_prompts_and_history_without_text(tmp_path: Path) -> None:
    few = ("--requests", "20", "--policy", "sjf", "--rate", "8", "--json")
    assert list(json.loads(run("castillo", *few).stdout)["predictors"]) == ["fast"]
    source = str(batch(tmp_path / "w.parquet", arrivals=True))
    assert list(json.loads(run(source, *few).stdout)["predictors"]) == ["history"]


def test_every_output_of_the_oracle_states_true_lengths(tmp_path: Path) -> None:
    source, page = str(batch(tmp_path / "w.parquet", arrivals=True)), tmp_path / "out.html"
    command = (source, "--policy", "fcfs,sjf", "--predictor", "oracle", "--report", str(page))
    assert "TRUE LENGTHS" in run(*command).stdout
    output = json.loads(run(*command, "--json").stdout)
    assert output["note"] == "TRUE LENGTHS"
    assert output["predictors"]["oracle"]["true_lengths"]
    assert "TRUE LENGTHS" in page.read_text(encoding="utf-8")
    assert "TRUE LENGTHS" not in run(source, "--policy", "fcfs,sjf").stdout


def test_loads_and_predictors_are_crossed_and_the_captured_gain_is_given() -> None:
    command = ("castillo", "--load", "0.7,1.1", "--seeds", "3", "--requests", "60", "--max-num-seqs", "4")
    output = json.loads(run(*command, "--policy", "fcfs,sjf", "--predictor", "fast,oracle", "--json").stdout)
    assert output["seeds"] == [0, 1, 2]
    assert [(run["load"], run["policy"], run["predictor"]) for run in output["runs"]] == [
        (load, *pair) for load in (0.7, 1.1) for pair in (("fcfs", None), ("sjf", "fast"), ("sjf", "oracle"))
    ]
    fast, oracle = output["runs"][4:]
    assert oracle["gain_captured"]["e2e"] == 1.0
    assert 0 < fast["gain_captured"]["e2e"] < 1
    ratio = fast["over_fcfs"]["e2e_mean"]
    assert ratio["low"] < ratio["ratio"] < ratio["high"]
    assert len(fast["by_seed"]) == 3


def test_a_report_is_one_page_with_its_plots_inside(tmp_path: Path) -> None:
    source, page = batch(tmp_path / "w.parquet", arrivals=True), tmp_path / "out.html"
    result = run(str(source), "--policy", "fcfs,sjf", "--rate", "5,20", "--max-num-seqs", "2", "--report", str(page))
    assert result.exit_code == 0, result.stderr
    assert f"report: {page}" in result.stdout.replace("\n", "")
    text = page.read_text(encoding="utf-8")
    assert text.count('data-figure="figure') == 4
    assert "<script src" not in text


def test_several_seeds_of_a_trace_need_resampled_arrivals(tmp_path: Path) -> None:
    source = str(batch(tmp_path / "w.parquet", arrivals=True))
    result = run(source, "--seeds", "2")
    assert result.exit_code == 2
    assert "--cv 1" in result.stderr
    assert run(source, "--seeds", "2", "--cv", "1", "--rate", "4").exit_code == 0
    assert run(source, "--seeds", "2", "--cv", "1").exit_code == 2


def test_a_trained_predictor_needs_prompts(tmp_path: Path) -> None:
    result = run(str(batch(tmp_path / "w.parquet", arrivals=True)), "--predictor", "default")
    assert result.exit_code == 2
    assert (
        "has no prompt texts for predictor 'default' to read; take oracle, noisy:TAU, history or none" in result.stderr
    )
    assert result.stderr.count("\n") == 1


def test_own_arrivals_are_kept_without_a_rate_and_rescaled_with_one(tmp_path: Path) -> None:
    source = str(batch(tmp_path / "w.parquet", arrivals=True))
    assert json.loads(run(source, "--json").stdout)["runs"][0]["offered_per_s"] == pytest.approx(4.0)
    assert json.loads(run(source, "--rate", "9", "--json").stdout)["runs"][0]["offered_per_s"] == pytest.approx(9.0)


def test_a_row_per_request_and_policy_is_written(tmp_path: Path) -> None:
    source, out = batch(tmp_path / "w.parquet", arrivals=True), tmp_path / "out.parquet"
    assert run(str(source), "--policy", "fcfs,sjf", "--requests", "10", "-o", str(out)).exit_code == 0
    table = pq.read_table(out)
    assert table["policy"].to_pylist() == ["fcfs"] * 10 + ["sjf"] * 10
    assert table["predictor"].to_pylist() == [None] * 10 + ["history"] * 10
    assert set(table["seed"].to_pylist()) == {0}
    assert (table["finished_s"].to_numpy() > table["first_token_s"].to_numpy()).all()


def test_too_few_requests_for_a_backlog_make_capacity_a_lower_bound(tmp_path: Path) -> None:
    result = run(str(batch(tmp_path / "w.parquet", arrivals=True)))
    assert "Capacity is a lower bound" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["castillo", "--admission-quantile", "0.9"], "add --admission joint"),
        (["castillo", "--admission", "joint", "--admission-quantile", "1"], "between 0 and 1"),
        (["castillo", "--rate", "0"], "above 0"),
        (["castillo", "--rate", "8", "--llm", "gpt-9"], "gpt-9"),
        (["castillo", "--rate", "8", "--policy", "sfj"], "did you mean sjf"),
        (["castillo", "--rate", "8", "--fleet", "1*llama-3-8b@a1000"], "did you mean llama-3-8b@a100"),
        (["castillo", "--rate", "8", "--predictor", "orakel"], "oracle"),
        (["castillo", "--rate", "8", "--max-num-seqs", "0"], "at least 1"),
        (["castillo", "--rate", "8", "--max-batched-tokens", "10"], "max_num_batched_tokens"),
        (["castillo", "--rate", "8", "--requests", "0"], "greater than or equal to 1"),
        (["castillo", "--rate", "8,fast"], "separated by commas"),
        (["castillo", "--load", "0"], "above 0"),
        (["castillo", "--load", "0.9", "--rate", "8"], "one of --rate and --load"),
        (["castillo", "--rate", "8", "--seeds", "0"], "greater than or equal to 1"),
        (["castillo", "--rate", "8", "--slo-ttft", "-1"], "above 0"),
        (["castillo", "--rate", "8", "--slo-e2e", "nan"], "field 'slo-e2e': a limit of nan s"),
        (["castillo", "--rate", "8", "--slo-per-token", "0"], "field 'slo-per-token': a limit of 0 s"),
        (["castillo", "--rate", "8", "--cv", "-1"], "CV"),
        (["castillo", "--rate", "8", "--predictor", "oracle,orakel"], "oracle"),
        (["castillo", "--rate", "8", "--report", "out.pdf"], ".html"),
        (["castillo", "--rate", "8", "-o", "out.csv"], ".parquet"),
        (["castillo", "--rate", "8", "-o", "nowhere/out.parquet"], "nowhere"),
        (["castilo", "--rate", "8"], "did you mean castillo"),
        (["azure_samples"], "azure_sample"),
        (["nowhere.parquet"], "nowhere.parquet"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_workload_without_arrivals_needs_a_rate(tmp_path: Path) -> None:
    result = run(str(batch(tmp_path / "w.parquet", arrivals=False)))
    assert result.exit_code == 2
    assert "has no arrivals of its own; give --rate" in result.stderr
