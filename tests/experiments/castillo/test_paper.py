"""Tables 2 to 5 of the paper, ours beside theirs."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

from experiments.castillo.paper import (
    COLUMNS,
    ERRORS,
    PAPER,
    Cell,
    Subject,
    claims,
    compare,
    predict,
    predicted,
    rule_table,
    tables,
)
from experiments.castillo.rows import LLMS, RULES, WIDTHS, rows_to_score, trained_on
from lengthwise.files import sample
from lengthwise.predictors.baselines import ConstantPredictor
from lengthwise.workloads import LengthSamples, load_castillo


@pytest.fixture(scope="module")
def packaged() -> LengthSamples:
    return LengthSamples.read(sample("castillo.parquet"))


@pytest.fixture(scope="module")
def constant(packaged: LengthSamples) -> Subject:
    return constant_subject(packaged)


def constant_subject(samples: LengthSamples) -> Subject:
    found = predict(ConstantPredictor.fit(trained_on(samples)), rows_to_score(samples))
    return predicted(found, samples, "constant fit")


def cell(what: str, paper: float, ours: float, constant: float) -> Cell:
    return Cell(2, "Llama-3.2-1B", "default", "castillo", "mean", what, paper, ours, ours - 1, ours + 1, constant)


def test_every_table_has_the_three_llamas_and_a_value_for_each_column() -> None:
    for number, table in PAPER.items():
        assert tuple(table) == LLMS
        assert {len(row) for row in table.values()} == {len(COLUMNS[number])}


def test_a_cell_is_claimed_only_where_a_constant_does_not_beat_the_paper() -> None:
    accuracy = cell("Acc 1000", paper=89.78, ours=97.0, constant=96.6)
    assert accuracy.constant_beats_paper
    assert not accuracy.claimed
    assert dataclasses.replace(accuracy, constant=80.0).claimed
    assert not dataclasses.replace(accuracy, constant=80.0, ours=89.0).claimed


def test_smaller_errors_and_larger_accuracies_are_better() -> None:
    error = cell("MAE(mean)", paper=121.0, ours=110.0, constant=181.0)
    assert error.claimed
    assert not dataclasses.replace(error, ours=130.0).claimed
    assert not dataclasses.replace(error, constant=120.0).claimed
    unknown = dataclasses.replace(error, ours=float("nan"))
    assert not unknown.claimed


def test_the_claims_of_a_constant_are_bounded(packaged: LengthSamples, constant: Subject) -> None:
    by_error = [cell for cell in compare([constant], packaged).cells if cell.what == "MAE(mean)"]
    assert [cell.ours for cell in by_error] == pytest.approx([cell.constant for cell in by_error])
    assert not any(cell.claimed for cell in by_error)
    assert all(cell.low <= cell.ours <= cell.high for cell in by_error)


def test_a_classifier_is_scored_by_its_classes_and_a_regression_by_the_bins_of_its_lengths() -> None:
    subject = Subject(
        "both", "castillo", {("a", "mean"): np.array([[99.0, 100.0]]), ("a", "p99/50"): np.array([[7.0, 8.0]])}
    )
    found = [subject.classes("a", "mean", 50), subject.classes("a", "p99", 50)]
    assert [None if each is None else each.tolist() for each in found] == [[[1, 2]], [[7, 8]]]
    assert subject.classes("a", "p99", 100) is None


def test_the_p99_is_that_of_repeated_answers(constant: Subject) -> None:
    mean, std, p99 = (constant.values[LLMS[0], kind] for kind in ("mean", "std", "p99"))
    np.testing.assert_allclose(p99, mean + 1.6 * std)


def test_without_alpaca_its_tables_are_left_out_and_named(packaged: LengthSamples, constant: Subject) -> None:
    shown = tables(compare([constant], packaged))
    assert [table.title[:7] for table in shown] == ["Table 2", "Table 4"]
    assert any("no Alpaca rows" in note for note in shown[0].notes)
    # Three LLMs: the paper's line, then ours and the constant's for both readings, or for the only one.
    assert [len(table.rows) for table in shown] == [15, 9]
    assert all(len(row) == len(table.columns) for table in shown for row in table.rows)


def test_a_network_for_some_classes_leaves_the_others_open(packaged: LengthSamples, constant: Subject) -> None:
    one = {key: np.floor(values / 200) for key, values in constant.values.items() if key[1] == "mean"}
    single = Subject("single", "castillo", {(llm, "mean/200"): values for (llm, _), values in one.items()})
    table = tables(compare([single, constant], packaged))[0]
    rows = {row[1]: row[3:] for row in table.rows}
    at = table.columns.index("Acc 200") - 3
    assert rows["single, bin of the mean"][at] == rows["constant fit, bin of the mean"][at]
    assert rows["single, bin of the mean"].count("–") == len(WIDTHS) * 2 - 2
    assert "–" not in rows["constant, bin of the mean"]


def test_every_rule_is_shown(packaged: LengthSamples, constant: Subject) -> None:
    found = compare([dataclasses.replace(constant, rule=rule) for rule in RULES], packaged)
    assert len(rule_table(found).rows) == 3 * (len(RULES) + 1)


def test_a_claim_has_the_papers_value_and_our_interval(packaged: LengthSamples, constant: Subject) -> None:
    found = claims(compare([constant], packaged), "constant fit")
    mine = next(claim for claim in found if claim.statement == "table 4, MAE(mean), Llama-3.2-1B")
    assert mine.paper == 121.02
    assert mine.ours.low < mine.ours.ratio < mine.ours.high
    statements = {claim.statement for claim in found}
    assert {f"table 4, {what}, Llama-3.2-1B" for what in ERRORS} <= statements
    assert {claim.setting for claim in found} == {"constant fit", "constant fit, P99"}


@pytest.mark.skipif("LENGTHWISE_DATA" not in os.environ, reason="the full data are not here")
def test_on_all_of_castillo_a_constant_fills_the_widest_bins() -> None:
    samples = load_castillo()
    found = compare([constant_subject(samples)], samples)
    assert found.prompts[2]["castillo"] == dict.fromkeys(LLMS, 910)
    assert found.prompts[5]["castillo"] == dict.fromkeys(LLMS, 600)
    widest = [cell for cell in found.cells if (cell.table, cell.what, cell.reading) == (2, "Acc 1000", "mean")]
    assert [cell.constant for cell in widest] == pytest.approx([96.6, 98.4, 97.4], abs=0.06)
    assert not any(cell.claimed for cell in widest)
