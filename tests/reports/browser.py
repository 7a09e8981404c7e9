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
    "--window-size=1440,3000",
)
VIRTUAL_TIME_MS = 10_000
TIMEOUT_S = 120
# Errors are collected from the start; one second (of virtual time) after loading, the page describes itself in the DOM.
CATCH = """<head><script>
window.errors = [];
window.onerror = message => { window.errors.push(String(message)); };
window.addEventListener('load', () => setTimeout(() => {
  const plots = Array.from(document.querySelectorAll('.js-plotly-plot'));
  const result = document.createElement('pre');
  result.id = 'inspection';
  result.textContent = JSON.stringify({
    plots: plots.length,
    drawn: plots.map(plot => plot.querySelectorAll('.trace, .hm image, .point, .bars').length),
    errors: window.errors,
    fetched: performance.getEntriesByType('resource').map(entry => entry.name),
    rules: Array.from(document.querySelectorAll('tr.rule td')).map(cell => getComputedStyle(cell).borderTopWidth),
    overflow_px: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  });
  document.body.appendChild(result);
}, 1000));
</script>"""


def find_browser() -> str:
    """Return the path of Chromium; skip the test where there is none, unless LENGTHWISE_NEED_BROWSER=1."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        message = "no chromium on PATH (Debian: apt-get install chromium)"
        if os.environ.get("LENGTHWISE_NEED_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path


def inspect(page: str, folder: Path, screenshot: Path | None = None) -> dict[str, Any]:
    """Load the page from a file and return its plots, script errors, fetched resources and layout."""
    browser = find_browser()
    path = folder / "page.html"
    path.write_text(page.replace("<head>", CATCH, 1), encoding="utf-8")
    shot = [] if screenshot is None else [f"--screenshot={screenshot}"]
    run = subprocess.run(
        [
            browser,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            f"--virtual-time-budget={VIRTUAL_TIME_MS}",
            "--dump-dom",
            *shot,
            path.as_uri(),
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
