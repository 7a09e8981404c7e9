"""Tables 2 to 5 of the paper, ours beside theirs."""

from __future__ import annotations

import dataclasses
import os

import pytest

from experiments.castillo.paper import (
    LLMS,
    PAPER_TABLE_2,
    PAPER_TABLE_3,
    PAPER_TABLE_4,
    PAPER_TABLE_5,
    Cell,
    compare,
    tables,
)
from lengthwise.errors import InputError
from lengthwise.predictors.baselines import ConstantPredictor
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.files import sample
from tests.predictors.rows import known_rows


@pytest.fixture(scope="module")
def packaged() -> LengthSamples:
    return LengthSamples.read(sample("castillo.parquet"))


def test_every_table_has_the_three_llamas() -> None:
    for table in (PAPER_TABLE_2, PAPER_TABLE_3, PAPER_TABLE_4, PAPER_TABLE_5):
        assert tuple(table) == LLMS


def test_a_cell_is_claimed_only_where_a_constant_does_not_beat_the_paper() -> None:
    cell = Cell(2, "Llama-3.2-1B", "Acc 1000", "mean", paper=89.78, ours=97.0, constant=96.6)
    assert cell.constant_beats_paper
    assert not cell.claimed
    assert dataclasses.replace(cell, constant=80.0).claimed
    assert not dataclasses.replace(cell, constant=80.0, ours=89.0).claimed


def test_smaller_errors_and_larger_accuracies_win() -> None:
    error = Cell(4, "Llama-3.2-1B", "MAE(mean)", "", paper=121.0, ours=110.0, constant=181.0)
    assert error.claimed
    assert not dataclasses.replace(error, ours=130.0).claimed
    assert not dataclasses.replace(error, constant=120.0).claimed
    unknown = dataclasses.replace(error, ours=float("nan"))
    assert not unknown.claimed


def test_a_constant_claims_no_more_than_a_constant_can(packaged: LengthSamples) -> None:
    constant = ConstantPredictor.fit(packaged.where(split=["train", "validate"]))
    found = compare(constant, packaged, name="constant")
    by_error = [cell for cell in found.cells if cell.what == "MAE(mean)"]
    assert [cell.ours for cell in by_error] == pytest.approx([cell.constant for cell in by_error])
    assert not any(cell.claimed for cell in by_error)


def test_without_alpaca_its_tables_are_left_out_and_said_to_be(packaged: LengthSamples) -> None:
    found = compare(ConstantPredictor.fit(packaged.where(split=["train", "validate"])), packaged)
    shown = tables(found)
    assert [table.title[:7] for table in shown] == ["Table 2", "Table 4"]
    assert any("no Alpaca rows" in note for note in shown[0].notes)
    # Three LLMs: the paper's line, then ours and the constant's for both readings, or for the only one.
    assert [len(table.rows) for table in shown] == [15, 9]
    assert all(len(row) == len(table.columns) for table in shown for row in table.rows)


def test_data_without_the_llamas_are_refused() -> None:
    samples, _ = known_rows()
    with pytest.raises(InputError, match=r"Llama-3\.2-1B"):
        compare(ConstantPredictor.fit(samples), samples)


@pytest.mark.skipif("LENGTHWISE_DATA" not in os.environ, reason="the full data are not here")
def test_on_all_of_castillo_a_constant_fills_the_widest_bins() -> None:
    samples = load_castillo()
    seen = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != "Alpaca"])
    found = compare(ConstantPredictor.fit(seen.where(split=["train", "validate"])), samples)
    assert found.prompts[2] == dict.fromkeys(LLMS, 910)
    assert found.prompts[5] == dict.fromkeys(LLMS, 600)
    widest = [cell for cell in found.cells if (cell.table, cell.what, cell.reading) == (2, "Acc 1000", "mean")]
    assert [cell.constant for cell in widest] == pytest.approx([96.6, 98.4, 97.4], abs=0.06)
    assert not any(cell.claimed for cell in widest)
