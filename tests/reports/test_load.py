"""Measured load as tables, facts and a page."""

from __future__ import annotations

import json
import math

from lengthwise.client.load import LoadPlan, LoadReport, Sample
from lengthwise.reports.load import ReplayReport
from lengthwise.reports.page import Origin
from lengthwise.reports.tables import to_json
from lengthwise.simulator.metrics import LatencyLimits

LIMITS = LatencyLimits(1.0, 1.0)
ORIGIN = Origin("lengthwise replay", "0.1.0", "today", "8 cores")


def load(rate: float | None = None, *, e2e_s: float = 2.0, failed: int = 0, url: str = "http://e/v1") -> LoadReport:
    """Return four requests of two tokens, `failed` of them without an answer."""
    found = LoadReport(4, LoadPlan(url), "llm<1>", rate=rate)
    for row in range(4):
        sample = Sample(row, float(row), 2, arrival_s=float(row), error="timeout" if row < failed else None)
        if row >= failed:
            sample.first_token_s, sample.finished_s = row + 0.5, row + e2e_s
            sample.output_tokens, sample.gaps_s = 2, [e2e_s - 0.5]
        found.samples.append(sample)
    return found


def test_one_load_is_a_row_per_metric() -> None:
    (table,) = ReplayReport("w", [load()], LIMITS).tables()
    assert [row[0] for row in table.rows] == ["TTFT", "TPOT", "E2E", "per token", "ITL"]
    assert table.rows[0][1:] == ["500.0 ms"] * 4
    assert table.rows[2][1] == "2.00 s"
    assert table.notes == [
        "4 of 4 served in 5.0 s by llm<1>",
        "0.8 requests/s, 1.6 output tokens/s",
        f"goodput 0 requests/s: 0.0 % within {LIMITS}",
    ]


def test_several_loads_are_a_row_per_rate() -> None:
    report = ReplayReport("w", [load(1.0, e2e_s=1.0), load(2.5), load(math.inf)], LIMITS)
    (table,) = report.tables()
    assert [row[0] for row in table.rows] == ["1/s", "2.5/s", "all at once"]
    assert [row[table.columns.index("in SLO")] for row in table.rows] == ["100.0 %", "0.0 %", "0.0 %"]
    assert str(report.verdict) == f"Up to 1 requests/s, 99 % of requests are within {LIMITS}."
    assert [run.load for run in report.runs][:2] == [1.0, 2.5]
    assert math.isnan(report.runs[2].load), "all at once has no rate"


def test_failures_and_wrong_lengths_are_noted() -> None:
    found = load(failed=1)
    found.samples[3].output_tokens = 1
    found.interrupted = True
    notes = ReplayReport("w", [found], LIMITS).tables()[0].notes
    assert "failed: 1 timeout" in notes
    assert "1 answers do not have the requested length" in notes
    assert "stopped after 4 were sent; unfinished requests are not counted" in notes


def test_a_load_without_an_answer_has_no_run_and_dashes() -> None:
    report = ReplayReport("w", [load(failed=4)], LIMITS)
    assert report.runs == []
    assert report.tables()[0].rows[2] == ["E2E", "–", "–", "–", "–"]
    assert str(report.verdict).startswith("100.0 % of requests FAILED. 0.0 % of requests are within")


def test_facts_hold_the_only_load_or_every_rate_and_no_credentials() -> None:
    one = json.loads(to_json(ReplayReport("w", [load(url="http://me:secret@e/v1")], LIMITS).to_dict()))
    assert (one["sent"], one["served"], one["failed"], one["rate"]) == (4, 4, 0.0, None)
    assert one["e2e_s"]["mean"] == 2.0
    assert "secret" not in json.dumps(one)
    several = json.loads(to_json(ReplayReport("w", [load(1.0), load(2.0)], LIMITS).to_dict()))
    assert [each["rate"] for each in several["rates"]] == [1.0, 2.0]


def test_the_page_escapes_the_name_of_the_model() -> None:
    page = ReplayReport("w", [load()], LIMITS).document(ORIGIN).html()
    assert "w sent to http://e/v1" in page
    assert "by llm&lt;1&gt;" in page
    assert "<h1>0.0 % of requests are within" in page
