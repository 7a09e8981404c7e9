"""Reports in a real browser: Chromium as QtWebEngine, of the dev extra; skipped where its libraries are missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lengthwise.reports.simulation_page import html_report
from tests.reports.test_simulation import FIGURES, grid


@pytest.fixture(autouse=True, scope="module")
def browser() -> None:
    """Skip where the machine has no X11 or font libraries to load it with; a missing package is a failure."""
    command = [sys.executable, "-c", "import PyQt6.QtWebEngineWidgets"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    if "cannot open shared object file" in said:
        pytest.skip(said.splitlines()[-1])
    assert not said, said


def seen(page: str, folder: Path) -> dict[str, Any]:
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    script = Path(__file__).with_name("browser.py")
    run = subprocess.run(
        [sys.executable, str(script), str(path)], capture_output=True, text=True, timeout=150, check=True
    )
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def test_the_simulators_page_draws_every_figure_fetches_nothing_and_fits(tmp_path: Path) -> None:
    found = seen(html_report(grid()), tmp_path)
    assert found["errors"] == []
    assert found["fetched"] == []
    assert found["plots"] == len(FIGURES)
    assert all(count > 0 for count in found["drawn"])
    assert set(found["rules"]) == {"2px"}  # a line between loads that can be seen
    assert found["wide"] == 0


def test_a_page_that_does_not_draw_is_noticed(tmp_path: Path) -> None:
    found = seen(html_report(grid()).replace("Plotly.newPlot(", "Plotly.noPlot("), tmp_path)
    assert found["errors"]
    assert found["plots"] == 0
