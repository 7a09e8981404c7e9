from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lengthwise.cli import app
from tests.gateway.engine import StandIn, served


def bench(*options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "engine", *options])  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def packaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENGTHWISE_DATA", raising=False)


def test_a_dry_run_prints_the_cells_and_measures_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = bench("--only", "headline", "--settings", "a", "--dry-run", "--json", "--out", str(out))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert len(told["cells"]) == 19
    assert "19 cells" in told["forecast"]
    assert not out.exists()


def test_a_server_is_measured_one_order_at_a_time_and_reported(tmp_path: Path) -> None:
    report, page = tmp_path / "out.html", tmp_path / "evidence.md"
    sizes = ["--settings", "a", "--n", "6", "--slots", "2", "--repeats", "1", "--out", str(tmp_path / "out")]
    with served(StandIn(token_s=0.0005).app()) as url:
        stock = bench("--url", url, "--policy", "fcfs", *sizes)
        assert stock.exit_code == 0, stock.output
        ours = ["--policy", "lengthwise", "--predictor", "default"]
        written = ["--report", str(report), "--page", str(page), "--json"]
        result = bench("--url", url, *ours, "--no-offline", *sizes, *written)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {(line["policy"], line["load"]) for line in told["lines"]} == {
        (policy, load) for policy in ("fcfs", "lengthwise") for load in (0.7, 1.1)
    }
    assert all(line["mean"]["ratio"] > 0 for line in told["lines"] if line["policy"] == "lengthwise")
    assert "<script>" in report.read_text()
    assert "figures/evidence.png" in page.read_text()
    assert (tmp_path / "figures" / "evidence.png").is_file()
    again = bench("--no-run", "--out", str(tmp_path / "out"))
    assert again.exit_code == 0, again.output
    assert "What was to be reached" in again.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--url", "http://127.0.0.1:9", "--policy", "fcfs,sjf"], "cannot be changed from outside"),
        (["--url", "http://127.0.0.1:9", "--policy", "sjf"], "cannot be changed from outside"),
        (["--url", "http://127.0.0.1:9", "--policy", "fcfs", "--at-once", "2"], "one server is measured at a time"),
        (["--policy", "fcfs,sjf", "--at-once", "5", "--dry-run"], "5 cells at once"),
        (["--policy", "best", "--dry-run"], "best"),
        (["--predictor", "fats", "--dry-run"], "fats"),
        (["--load", "much", "--dry-run"], "--load"),
        (["--policy", ",", "--dry-run"], "names nothing"),
        (["--settings", "c", "--dry-run"], "no setting 'c'"),
        (["--no-run"], "holds no finished cell"),
        (["--report", "nowhere/at/all.html"], "nowhere/at: no such folder"),
    ],
)
def test_a_mistake_is_told_before_hours_are_spent(tmp_path: Path, options: list[str], says: str) -> None:
    result = bench("--out", str(tmp_path / "out"), *options)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_server_whose_capacity_is_unknown_is_told_what_to_do(tmp_path: Path) -> None:
    with served(StandIn().app()) as url:
        ours = ["--url", url, "--policy", "sjf", "--predictor", "default", "--settings", "a", "--no-offline"]
        result = bench(*ours, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert "measure stock vLLM first" in result.stderr
