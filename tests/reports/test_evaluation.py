"""An evaluation as tables and as a page."""

from __future__ import annotations

import pytest

from lengthwise.predictors.evaluation import CEILING, PER_BOTH, PER_LLM, Evaluation, evaluate
from lengthwise.reports.evaluation import evaluation_document, tables
from tests.predictors.rows import Knows, known_rows


@pytest.fixture(scope="module")
def found() -> Evaluation:
    samples, mu = known_rows()
    return evaluate(Knows(mu), samples, name="knows <all>")


def test_the_predictor_is_always_beside_both_constants_and_the_ceiling(found: Evaluation) -> None:
    overall, by_llm, by_corpus, by_predicted = tables(found)
    assert [row[0] for row in overall.rows] == ["knows <all>", PER_LLM, PER_BOTH, CEILING]
    for table in (by_llm, by_corpus, by_predicted):
        assert tuple(table.columns[-3:]) == (PER_LLM, PER_BOTH, CEILING)
    assert all(len(row) == len(table.columns) for table in tables(found) for row in table.rows)


def test_a_missing_score_is_a_dash_and_left_out_samples_are_noted(found: Evaluation) -> None:
    overall = tables(found)[0]
    tau = overall.columns.index("tau")
    assert overall.rows[1][tau] == "–"
    assert overall.notes[0].startswith("Left out: 0.0 % of samples")


def test_the_page_is_interactive_opens_with_the_verdict_and_escapes_names(found: Evaluation) -> None:
    page = evaluation_document(found).html()
    assert page.count('data-figure="figure') == 3
    assert "<img alt" not in page
    assert "<h1>The error of knows &lt;all&gt; is " in page
    assert "% smaller than that of a constant per LLM.</h1>" in page
    assert "<script src" not in page
    assert "<all>" not in page.replace('"knows <all>"', "")  # in the data of a figure it is text


def test_every_row_names_its_group_and_the_baselines_have_tau_and_error(found: Evaluation) -> None:
    _, by_llm, by_corpus, _ = tables(found)
    llms, corpora = found.subjects["knows <all>"].by_llm, found.subjects["knows <all>"].by_corpus
    assert [row[0] for row in by_llm.rows] == list(llms)
    assert [row[0] for row in by_corpus.rows] == list(corpora)
    assert all(" / " in cell for row in by_llm.rows for cell in row[-3:])
    assert by_llm.notes == ["Baselines: tau / MAE mean."]


def test_calibration_is_drawn_against_the_diagonal(found: Evaluation) -> None:
    lengths, intervals, _ = evaluation_document(found).figures()
    assert lengths.data[0]["type"] == "heatmap"
    assert any(trace["x"] == trace["y"] for trace in intervals.data), "the diagonal"
