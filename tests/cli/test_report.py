"""`lengthwise report`: stored runs, shown and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lengthwise.cli import app
from lengthwise.reports.simulation import facts
from lengthwise.reports.tables import to_json
from tests.reports.test_simulation import grid

ORIGIN = {"command": "lengthwise simulate x", "version": "0.1.0", "date": "today", "hardware": "8 cores", "seed": "0"}


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def stored(path: Path, *, slower: float = 1.0, **changes: Any) -> Path:
    content = json.loads(to_json(facts(grid()))) | {"origin": ORIGIN} | changes
    for run in content["runs"]:
        for summary in (run, *run["by_seed"]):
            for measure in ("ttft_s", "e2e_s", "per_token_s"):
                summary[measure] = {name: slower * value for name, value in summary[measure].items()}
    path.write_text(json.dumps(content))
    return path


def test_two_runs_are_paired_by_policy_and_load_with_intervals_over_seeds(tmp_path: Path) -> None:
    first, second, page = stored(tmp_path / "a.json"), stored(tmp_path / "b.json", slower=1.5), tmp_path / "out.html"
    result = report(first, second, "--report", page, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [run["run"] for run in found["runs"]][:2] == ["fcfs at load 0.70", "sjf, none at load 0.70"]
    for run in found["runs"]:
        ratio = run["ratios"]["e2e_mean"]
        assert (ratio["ratio"], ratio["low"], ratio["high"]) == pytest.approx((1.5, 1.5, 1.5))
    assert found["verdict"].endswith("is 50.0 % HIGHER in b.json than in a.json.")
    text = page.read_text(encoding="utf-8")
    assert "Latency by output length: fcfs at load 1.40" in text
    assert "over a.json: below 1 is faster, above 1 slower" in text


def test_runs_at_one_rate_are_paired_where_their_loads_differ(tmp_path: Path) -> None:
    first = stored(tmp_path / "a.json")
    content = json.loads(stored(tmp_path / "b.json", slower=1.5).read_text())
    for run in content["runs"]:
        run["offered"] = run["offered"].replace("load 0.", "load 0.4").replace("load 1.", "load 0.8")  # more slots
    (tmp_path / "b.json").write_text(json.dumps(content))
    result = report(first, tmp_path / "b.json", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)["runs"]
    assert found[0]["run"] == "fcfs at load 0.470 (was 0.70)"
    assert [run["ratios"]["e2e_mean"]["ratio"] for run in found] == pytest.approx([1.5] * len(content["runs"]))


def test_a_run_compared_with_itself_has_no_difference(tmp_path: Path) -> None:
    file = stored(tmp_path / "a.json")
    assert report(file, file).stdout.startswith("a.json and a.json have the same latencies.")


def test_differences_in_workload_fleet_and_version_are_listed(tmp_path: Path) -> None:
    other = stored(tmp_path / "b.json", content_hash="other", fleet="9*x", origin=ORIGIN | {"version": "0.2.0"})
    result = report(stored(tmp_path / "a.json"), other)
    for text in (
        "b.json: lengthwise simulate x",
        "fleet: ",
        "version: 0.1.0 -> 0.2.0",
        "The requests are not the same",
        "No intervals",
    ):
        assert text in result.stdout
    assert max(map(len, result.stdout.partition("┏")[2].splitlines()[:20])) <= 80


def test_a_difference_in_capacity_is_listed(tmp_path: Path) -> None:
    one, two = (stored(tmp_path / f"{rate}.json", capacity={"requests_per_s": rate}) for rate in (2.0, 3.0))
    assert "capacity: 2.00 -> 3.00 requests/s" in report(one, two).stdout
    assert "capacity" not in report(one, one).stdout


def test_one_stored_run_is_shown_again(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    result = report(stored(tmp_path / "a.json"), "--report", page)
    assert result.stdout.startswith("No difference beyond noise at load 1.40")
    assert "<dd>lengthwise simulate x</dd>" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), ("{", "is not JSON"), ("[]", "holds no runs"), ('{"runs": []}', "holds no runs")],
)
def test_bad_files_are_one_line_and_exit_code_2(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    result = report(path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
