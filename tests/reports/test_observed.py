"""The report on observed traffic says whether its replay can be believed."""

from __future__ import annotations

from lengthwise.reports.observed import observed_document, tables
from lengthwise.simulator.observed import observed_gain
from lengthwise.traffic.reader import LoggedTraffic
from tests.simulator.test_observed import logged, served


def test_the_tables_note_whether_the_replay_matches_the_measurement() -> None:
    outcome = served()
    good = tables(observed_gain(logged(outcome), "log"))
    assert good[0].title.startswith("Does the replay match?")
    assert any("can be read as they are" in note for note in good[0].notes)
    assert len(good) == 3
    log = logged(outcome)
    slower = [row._replace(finished_s=(row.finished_s or 0.0) + 100) for row in log.rows]
    poor = tables(observed_gain(LoggedTraffic.of(slower, "log"), "log", engine="llama-3-8b@a100"))
    assert any("say little" in note for note in poor[0].notes)


def test_the_document_opens_with_the_gain_in_a_replay_and_lists_every_policy_beside_fcfs() -> None:
    document = observed_document(observed_gain(logged(served(100)), "log", policies=["sjf"]))
    assert str(document.verdict).startswith("In a replay: ")
    assert [row[:2] for row in document.tables[1].rows] == [
        ["fcfs", "–"], ["sjf", "as logged"], ["sjf", "true lengths"]
    ]  # fmt: skip
