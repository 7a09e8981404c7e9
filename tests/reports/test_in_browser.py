"""HTML reports in a real browser."""

from __future__ import annotations

from pathlib import Path

from lengthwise.reports.simulation import html_report
from tests.reports.browser import inspect
from tests.reports.test_simulation import FIGURES, grid


def test_the_simulation_report_draws_every_figure_fetches_nothing_and_fits_the_window(tmp_path: Path) -> None:
    found = inspect(html_report(grid()), tmp_path)
    assert found["errors"] == []
    assert found["fetched"] == []
    assert found["plots"] == len(FIGURES)
    assert all(count > 0 for count in found["drawn"])
    assert set(found["rules"]) == {"2px"}  # the line between loads is visible
    assert found["overflow_px"] == 0


def test_a_page_that_does_not_draw_is_detected(tmp_path: Path) -> None:
    found = inspect(html_report(grid()).replace("Plotly.newPlot(", "Plotly.noPlot("), tmp_path)
    assert found["errors"]
    assert found["plots"] == 0
