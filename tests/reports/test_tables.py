"""Tables and JSON."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from lengthwise.intervals import Ratio
from lengthwise.reports.tables import Table, multiple, number, print_tables, seconds, share, signed, to_json


@dataclass
class Inner:
    values: object


def test_a_table_shows_titles_cells_and_notes_and_brackets_are_not_markup() -> None:
    out = io.StringIO()
    table = Table("A title", ("name", "figure"), [("one", "+1 [0, 2]")], ["A note [95 %]."])
    print_tables([table], Console(file=out))
    for text in ("A title", "name", "+1 [0, 2]", "A note [95 %]."):
        assert text in out.getvalue()


def test_a_wide_table_is_split_to_fit_80_columns_and_every_part_names_its_rows() -> None:
    out = io.StringIO()
    columns = ("policy", "load", *(f"figure {i}" for i in range(12)))
    rows = [("fcfs", "0.70", *["0.84 [0.80, 0.88]"] * 12), ("tie", "0.90", *["1"] * 12)]
    print_tables([Table("Wide", columns, rows, ["A note."], keys=2)], Console(file=out, width=80))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert (text.count("Wide"), text.count("A note."), text.count("fcfs"), text.count("0.84 [0.80, 0.88]")) == (
        1,
        1,
        4,
        12,
    )
    assert "…" not in text


def test_grouped_columns_are_not_split() -> None:
    columns = ["run", *("first", "then", "ratio") * 4]
    table = Table("t", columns, [["x" * 20] + ["10.00 s"] * 12], together=3)
    parts = table.parts(80)
    assert len(parts) > 1
    assert all(part.columns[1:4] == ["first", "then", "ratio"] and len(part.columns) % 3 == 1 for part in parts)
    assert sum(len(part.columns) - 1 for part in parts) == 12


def test_json_has_plain_values_and_null_for_nan_and_infinity() -> None:
    tree = Inner({"a": np.arange(2), 1: (np.float64(0.5), float("nan")), "b": Inner([np.inf, True, None])})
    expected = {"values": {"a": [0, 1], "1": [0.5, None], "b": {"values": [None, True, None]}}}
    assert json.loads(to_json(tree)) == expected


def test_figures_are_written_with_unit_and_sign() -> None:
    assert (share(0.931), share(float("nan"))) == ("93.1 %", "–")
    assert (signed(0.5), signed(-0.25, 1), signed(float("nan"))) == ("+0.500", "-0.2", "–")


def test_seconds_and_ratios_are_formatted() -> None:
    assert [seconds(value) for value in (0.0123, 12.3, math.nan)] == ["12.3 ms", "12.30 s", "–"]
    assert multiple(Ratio(0.5, 0.4, 0.6)) == "0.500 [0.400, 0.600]"
    assert multiple(Ratio(1.0, 1.0, 1.0)) == "1"
    assert multiple(Ratio(0.9, 0.9, 0.9)) == "0.900 [0.900, 0.900]"
    assert multiple(Ratio.none()) == "–"


def test_numbers_have_separated_thousands_and_a_dash_for_nan() -> None:
    assert (number(12345.678, 1), number(math.nan, 1)) == ("12,345.7", "–")
    assert multiple(Ratio(0.5, math.nan, math.nan), 2) == "0.50"


def test_a_table_without_rows_is_printed_with_its_headings() -> None:
    out = io.StringIO()
    print_tables([Table("Nothing", ("name", "figure"), [])], Console(file=out))
    assert "Nothing" in out.getvalue()
    assert "figure" in out.getvalue()


def test_a_table_that_fits_is_one_part() -> None:
    table = Table("t", ("a", "b"), [["1", "2"]])
    assert table.parts(80) == [table]
