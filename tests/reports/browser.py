"""Open an HTML page in headless Chromium and return what it drew."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--window-size=1600,3000",
)
DARK = "--blink-settings=preferredColorScheme=0"
VIRTUAL_TIME_MS = 10_000
TIMEOUT_S = 120
# Errors are collected from the start; one second (of virtual time) after loading, the page describes itself.
CATCH = """<head><script>
window.errors = [];
window.onerror = message => { window.errors.push(String(message)); };
function sortedColumn(values) {
  const table = document.querySelector('table'), body = table.tBodies[0], row = body.rows[0];
  body.replaceChildren(...values.map(value => {
    const copy = row.cloneNode(true); copy.cells[1].textContent = value; return copy;
  }));
  table.querySelectorAll('th button')[1].click();
  return Array.from(body.rows).map(each => each.cells[1].textContent);
}
const drawn = () => typeof ready === 'undefined' ? Promise.resolve() : ready;
window.addEventListener('load', () => drawn().then(() => setTimeout(() => {
  const plots = Array.from(document.querySelectorAll('.js-plotly-plot')), root = getComputedStyle(document.body);
  const label = document.querySelector('.js-plotly-plot .xtick text');
  window.parent.inspection({
    plots: plots.length,
    legend: Array.from(document.querySelectorAll('.legendtext')).map(name => name.textContent),
    drawn: plots.map(plot => plot.querySelectorAll('.trace, .hm image, .point, .bars').length),
    widths: plots.map(plot => plot.querySelector('svg').clientWidth),
    errors: window.errors,
    fetched: performance.getEntriesByType('resource').map(entry => entry.name),
    rules: Array.from(document.querySelectorAll('tr.rule td')).map(cell => getComputedStyle(cell).borderTopWidth),
    overflow_px: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    paper: root.backgroundColor, ink: root.color, axis_text: label ? getComputedStyle(label).fill : null,
    sorted: sortedColumn(['10.00 s', '900.0 ms', '\u2013', '1.20 s', '20.0 ms']),
  });
}, 1000)));
</script>"""
# The page is in a frame of the chosen width: a window of a headless browser has a least width.
FRAME = """<!doctype html><script>
window.inspection = found => {
  const result = document.createElement('pre');
  result.id = 'inspection';
  result.textContent = JSON.stringify(found);
  document.body.appendChild(result);
};
</script><body style="margin: 0"><iframe src="page.html" width="%d" height="2900" style="border: 0"></iframe></body>"""


def find_browser() -> str:
    """Return the path of Chromium; skip the test if there is none, unless LENGTHWISE_NEED_BROWSER=1."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        message = "no chromium on PATH (Debian: apt-get install chromium)"
        if os.environ.get("LENGTHWISE_NEED_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path


def inspect(
    page: str, folder: Path, screenshot: Path | None = None, *, width: int = 1440, dark: bool = False
) -> dict[str, Any]:
    """Load the page from a file and return its plots, script errors, fetched resources and layout."""
    browser = find_browser()
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text(page.replace("<head>", CATCH, 1), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME % width, encoding="utf-8")
    shot = [] if screenshot is None else [f"--screenshot={screenshot}"]
    run = subprocess.run(
        [
            browser,
            *FLAGS,
            *([DARK] if dark else []),
            f"--user-data-dir={folder / 'profile'}",
            f"--virtual-time-budget={VIRTUAL_TIME_MS}",
            "--dump-dom",
            *shot,
            (folder / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    match = re.search(r'<pre id="inspection">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match, f"the page did not load: {run.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(html.unescape(match.group(1)))
    return found
