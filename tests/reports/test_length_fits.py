"""Answer lengths by group, and the log-t fitted to them."""

from __future__ import annotations

import numpy as np
import pytest

from lengthwise.errors import InputError
from lengthwise.reports.length_fits import GroupFit, fit_groups, length_fits_document
from lengthwise.workloads import LengthSamples
from tests.workloads.made_samples import made_up


def quiet(_what: str, _done: float) -> None:
    """Report nothing."""


@pytest.fixture(scope="module")
def found() -> list[GroupFit]:
    return fit_groups(made_up(), by="llm", report=quiet)


def test_groups_hold_every_row_once_and_means_are_of_clean_samples(found: list[GroupFit]) -> None:
    everything, *groups = found
    assert [group.group for group in found] == ["all", "owner/a", "owner/b"]
    assert sum(group.rows for group in groups) == everything.rows == 120
    assert everything.mean == pytest.approx(np.nanmean(made_up().clean_mean()))
    assert everything.degenerate == pytest.approx(6 / 1200)


def test_the_true_sigma_and_the_heavier_tail_are_found(found: list[GroupFit]) -> None:
    assert found[0].sigma == pytest.approx(0.2, rel=0.2)
    assert found[0].median == pytest.approx(np.exp(5.5), rel=0.2)
    assert found[0].gain > 0, "the lengths are log-t"
    assert found[0].fitted == 119, "one row has a single length"


def test_a_capped_sample_counts_as_longer() -> None:
    lengths = [[50, 80, 110, 160, 200, 200]]
    columns = {"corpus": ["c"], "split": ["test"], "prompt_id": ["p"], "llm": ["m"], "input_tokens": [5]}
    plain, capped = (
        LengthSamples.from_table({**columns, "lengths": lengths, "capped": [flags]}, origin="made up")
        for flags in ([False] * 6, [False] * 4 + [True] * 2)
    )
    short, long = (fit_groups(each, by="none", report=quiet)[0] for each in (plain, capped))
    assert long.median > short.median
    assert long.sigma > short.sigma


def test_rows_without_a_spread_are_an_error() -> None:
    constant = made_up(prompts=3, llms=("owner/a",)).table.slice(0, 1)
    with pytest.raises(InputError, match="no row has 3 clean samples of different lengths"):
        fit_groups(LengthSamples.from_table(constant, origin="made up"), report=quiet)


def test_the_table_has_a_cell_for_every_column_and_names_its_source(found: list[GroupFit]) -> None:
    table = length_fits_document(found, "made up", "llm").tables[0]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.notes[0].startswith("Source: made up.")
