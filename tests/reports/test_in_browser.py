"""HTML reports in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from lengthwise.reports.latency_figures import figures
from lengthwise.reports.page import Figure, Origin, html_page
from lengthwise.reports.simulation import grid_document, runs_of
from lengthwise.reports.tables import Table
from tests.reports.browser import inspect
from tests.reports.test_simulation import grid

ORIGIN = Origin("lengthwise simulate " + "w" * 200, "0.1.0", "today", "8 cores", "0")


@pytest.mark.parametrize("width", [390, 1440])
def test_the_report_draws_every_figure_fetches_nothing_and_fits_the_window(width: int, tmp_path: Path) -> None:
    found = inspect(grid_document(grid(), ORIGIN).html(), tmp_path, width=width)
    assert found["errors"] == []
    assert found["fetched"] == []
    assert found["plots"] == len(figures(runs_of(grid()))) == 4
    assert all(count > 0 for count in found["drawn"])
    assert set(found["rules"]) == {"2px"}  # the line between loads is visible
    assert found["overflow_px"] == 0
    assert max(found["widths"]) <= width


def test_with_a_dark_colour_scheme_the_page_is_dark_and_text_light(tmp_path: Path) -> None:
    light, dark = (
        inspect(grid_document(grid(), ORIGIN).html(), tmp_path / name, dark=name == "dark") for name in ("l", "dark")
    )
    assert (light["paper"], light["ink"]) == ("rgb(255, 255, 255)", "rgb(31, 38, 44)")
    assert (dark["paper"], dark["ink"]) == ("rgb(20, 24, 28)", "rgb(228, 233, 238)")
    assert dark["axis_text"] == dark["ink"]


def test_the_legend_shows_tags_as_text_and_says_which_series_coincide(tmp_path: Path) -> None:
    names = ("<b>fcfs</b>", "sjf & tie")
    data = [{"type": "scatter", "name": name, "x": [1, 2], "y": [3, 4]} for name in names]
    table = Table("t", ("a", "b"), [["1", "2"]])
    page = html_page("t", [table], figures=[Figure("f", "", data, {"xaxis": {}, "yaxis": {}})])
    assert inspect(page, tmp_path)["legend"] == ["<b>fcfs</b>", "sjf & tie (coincides with <b>fcfs</b>)"]


def test_a_click_on_a_heading_sorts_a_table_by_value_not_by_text(tmp_path: Path) -> None:
    found = inspect(grid_document(grid(), ORIGIN).html(), tmp_path)
    assert found["sorted"] == ["20.0 ms", "900.0 ms", "1.20 s", "10.00 s", "–"]


def test_a_page_without_plots_is_detected(tmp_path: Path) -> None:
    found = inspect(grid_document(grid(), ORIGIN).html().replace("Plotly.react(", "Plotly.noPlot("), tmp_path)
    assert found["errors"]
    assert found["plots"] == 0
