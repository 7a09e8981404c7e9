"""Runs that were stored with --json: read again, paired and compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.reports.page import Origin
from lengthwise.reports.runs import ReportedRun
from lengthwise.reports.stored import StoredRuns, compare_runs, read_runs
from lengthwise.reports.tables import to_json
from tests.reports.builders import FCFS, GOOD

ORIGIN = Origin("lengthwise report", "0.1.0", "today", "8 cores")


def stored(name: str, *runs: ReportedRun, **content: Any) -> StoredRuns:
    """Return a file with these runs, as it is read."""
    return StoredRuns(name, runs, {"runs": [{} for _ in runs], **content})


def slower(run: ReportedRun, times: float) -> ReportedRun:
    latency = {metric: {name: times * each for name, each in values.items()} for metric, values in run.latency.items()}
    return replace(run, latency=latency)


def test_a_file_is_read_as_the_runs_that_were_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(to_json({"runs": [FCFS.to_dict(), GOOD.to_dict()], "origin": ORIGIN}))
    found = read_runs(path)
    assert (found.name, [run.label for run in found.runs]) == ("a.json", ["fcfs", "lengthwise, fast"])
    assert found.origin == ORIGIN
    assert found.runs[1].over_fcfs == GOOD.over_fcfs


def test_a_file_of_a_sweep_is_read_by_its_rows(tmp_path: Path) -> None:
    spread = {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p99": 3.0}
    profile: dict[str, list[float]] = {"tokens": [], "e2e_s": [], "time_s": [], "waiting": [], "window_e2e_s": []}
    row = {
        "workload": "w", "fleet": "f", "load": 0.9, "rate": None, "router": "round_robin", "policy": "fcfs",
        "predictor": None, "profile": profile, **dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "per_token_s"), spread),
    }  # fmt: skip
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"rows": [row]}))
    (run,) = read_runs(path).runs
    assert (run.place, run.offered, run.latency["e2e_s"]["p99"]) == ("w on f", "load 0.90", 3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such file"), ("{", "is not JSON"), ("[]", "holds no runs"), ('{"runs": [1]}', "holds no runs")],
)
def test_a_file_without_runs_is_an_error_that_names_it(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_runs(path)
    assert "x.json" in str(error.value)


def test_one_file_is_shown_with_its_verdict_and_a_dash_for_what_it_does_not_have() -> None:
    shown = stored("a.json", FCFS, GOOD).document
    assert shown.verdict is not None
    assert shown.verdict.headline.startswith("lengthwise with the predictor fast lowers mean E2E by 40 %")
    assert shown.facts["verdict"] == str(shown.verdict)
    (table,) = shown.tables
    assert table.rows == [
        ["fcfs", "load 0.90", "10.00 s", "30.00 s", "10.00 s", "–", "1"],
        ["lengthwise, fast", "load 0.90", "6.00 s", "31.50 s", "6.00 s", "–", "0.60 [0.55, 0.66]"],
    ]


def test_runs_are_paired_by_name_and_level_and_compared_second_over_first() -> None:
    found = compare_runs(stored("a", FCFS, GOOD), stored("b", slower(GOOD, 1.5), slower(FCFS, 1.5)))
    assert [pair.label for pair in found.pairs] == ["lengthwise, fast at load 0.90", "fcfs at load 0.90"]
    assert [pair.ratios["e2e_mean"].ratio for pair in found.pairs] == pytest.approx([1.5, 1.5])
    assert str(found.verdict) == "Mean E2E of lengthwise, fast at load 0.90 is 50.0 % HIGHER in b than in a."
    assert found.to_dict()["verdict"] == str(found.verdict)
    (row, _) = found.table().rows
    assert row[:4] == ["lengthwise, fast at load 0.90", "6.00 s", "9.00 s", "1.50"]


def test_two_single_runs_are_a_pair_whatever_their_names() -> None:
    (pair,) = compare_runs(stored("a", FCFS), stored("b", GOOD)).pairs
    assert pair.label == "lengthwise, fast at load 0.90, before: fcfs at load 0.90"


def test_files_without_a_common_run_are_an_error_that_names_the_runs() -> None:
    with pytest.raises(InputError, match="which has fcfs at load"):
        compare_runs(stored("a", FCFS, FCFS), stored("b", GOOD, GOOD))


def test_the_same_requests_under_several_seeds_have_intervals() -> None:
    def seeds(*means: float) -> dict[str, Any]:
        metrics = ("e2e_s", "ttft_s", "per_token_s")
        by_seed = [{metric: {"mean": mean, "p50": mean, "p99": mean} for metric in metrics} for mean in means]
        return {"content_hash": "same", "runs": [{"by_seed": by_seed}]}

    found = compare_runs(stored("a", FCFS, **seeds(1.0, 2.0)), stored("b", FCFS, **seeds(1.1, 2.2)))
    ratio = found.pairs[0].ratios["e2e_mean"]
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((1.1, 1.1, 1.1))
    other = compare_runs(
        stored("a", FCFS, **seeds(1.0, 2.0)), stored("b", FCFS, **seeds(1.1, 2.2) | {"content_hash": 1})
    )
    assert math.isnan(other.pairs[0].ratios["e2e_mean"].low)
    assert "The requests are not the same: a difference may come from them." in other.notes
    assert any(note.startswith("No intervals") for note in other.notes)


def test_differences_of_the_files_are_noted() -> None:
    first = stored("a", FCFS, fleet="1*x", capacity={"requests_per_s": 2.0}, origin=vars(ORIGIN))
    second = stored(
        "b", FCFS, fleet="2*x", capacity={"requests_per_s": 4.0}, origin=vars(ORIGIN) | {"version": "0.2.0"}
    )
    notes = compare_runs(first, second).notes
    assert "fleet: 1*x -> 2*x" in notes
    assert "version: 0.1.0 -> 0.2.0" in notes
    assert any(note.startswith("capacity: 2.00 -> 4.00 requests/s. The same load is another rate") for note in notes)


def test_the_page_names_both_files_and_escapes_them() -> None:
    page = compare_runs(stored("a<b>", FCFS), stored("b.json", slower(FCFS, 2.0))).document(ORIGIN).html()
    assert "<h1>Mean E2E of fcfs at load 0.90 is 100.0 % HIGHER in b.json than in a&lt;b&gt;.</h1>" in page
    assert "Latency by output length: fcfs at load 0.90" in page
