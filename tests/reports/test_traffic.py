"""Predictions in production, as tables and a page."""

from __future__ import annotations

import pytest

from lengthwise.predictors.traffic_evaluation import ALONE, HISTORY, SERVED, TrafficEvaluation, evaluate_traffic
from lengthwise.reports.tables import to_json
from lengthwise.reports.traffic import SCORE_COLUMNS, score_cells, tables, traffic_document
from tests.traffic.traffic_rows import made, traffic


@pytest.fixture(scope="module")
def found() -> TrafficEvaluation:
    return evaluate_traffic(traffic(made(300, tenant="a<b>") + made(100, seed=1, tenant="c")))


def test_every_kind_of_prediction_is_a_row_and_every_group_is_a_table(found: TrafficEvaluation) -> None:
    overall, over_time, *groups = tables(found)
    assert [row[0] for row in overall.rows] == [SERVED, ALONE, HISTORY]
    assert [row[0] for row in over_time.rows] == ["1 to 100", "101 to 200", "201 to 300", "301 to 400"]
    assert [table.title for table in groups] == ["By model", "By tenant", "By day", "By predictor"]
    assert [row[:2] for row in groups[1].rows] == [["a<b>", "300"], ["c", "100"]]
    assert all(len(row) == len(table.columns) for table in (overall, *groups) for row in table.rows)


def test_scores_are_formatted_and_an_undefined_tau_is_a_dash(found: TrafficEvaluation) -> None:
    served = dict(zip(SCORE_COLUMNS, score_cells(found.overall[SERVED]), strict=True))
    history = dict(zip(SCORE_COLUMNS, score_cells(found.overall[HISTORY]), strict=True))
    assert served["requests"] == "400"
    assert served["log error"].startswith("x1.")
    assert served["in 90 %"].endswith(" %")
    assert history["tau"] == "–", "all predictions of the history are equal"


def test_the_first_note_counts_what_was_scored_and_when(found: TrafficEvaluation) -> None:
    notes = tables(found)[0].notes
    assert notes[0] == "400 of 400 requests scored, 2001-09-09 01:46 to 2001-09-09 06:45 UTC."
    assert notes[1] == "Ended: stop 400. Ordered by: predictor 400."


def test_the_page_opens_with_the_verdict_and_escapes_tenants(found: TrafficEvaluation) -> None:
    shown = traffic_document(found)
    page = shown.html()
    assert "<h1>Half of the 400 predictions were off by less than a factor of 1." in page
    assert "<td>a&lt;b&gt;</td>" in page
    assert page.count('data-figure="figure') == 4
    assert "a<b>" not in page
    assert '"scored": 400' in to_json(shown.facts)


def test_scores_by_day_show_served_and_history_in_three_panels(found: TrafficEvaluation) -> None:
    by_day = list(traffic_document(found).figures())[-1]
    assert {trace["name"] for trace in by_day.data} == {SERVED, HISTORY}
    assert len(by_day.data) == 6
    assert by_day.data[0]["x"] == ["2001-09-09"]
