"""An evaluation as tables and as a page."""

from __future__ import annotations

import base64
import re

import pytest

from lengthwise.predictors.evaluation import CEILING, PER_BOTH, PER_LLM, Evaluation, evaluate
from lengthwise.reports.evaluation import html_report, tables
from tests.predictors.rows import Knows, known_rows


@pytest.fixture(scope="module")
def found() -> Evaluation:
    samples, mu = known_rows()
    return evaluate(Knows(mu), samples, name="knows <all>")


def test_the_predictor_is_always_beside_both_constants_and_the_ceiling(found: Evaluation) -> None:
    overall, classes, by_llm, by_corpus = tables(found)
    assert [row[0] for row in overall.rows] == ["knows <all>", PER_LLM, PER_BOTH, CEILING]
    assert [row[1] for row in classes.rows[:4]] == [row[0] for row in overall.rows]
    for table in (by_llm, by_corpus):
        assert tuple(table.columns[-3:]) == (PER_LLM, PER_BOTH, CEILING)
    assert all(len(row) == len(table.columns) for table in tables(found) for row in table.rows)


def test_what_is_unknown_is_a_dash_and_what_is_left_out_is_said(found: Evaluation) -> None:
    overall = tables(found)[0]
    tau = overall.columns.index("tau")
    assert overall.rows[1][tau] == "–"
    assert overall.notes[0].startswith("Left out: 0.0 % of samples")


def test_the_page_holds_its_pictures_and_fetches_nothing(found: Evaluation) -> None:
    page = html_report(found)
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == 3
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert "http" not in page
    assert "knows &lt;all&gt;" in page
    assert "<all>" not in page
