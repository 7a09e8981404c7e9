"""Opens a page in Chromium (QtWebEngine) and prints what is there, as JSON: `python browser.py PAGE [PICTURE]`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

LOOK = """JSON.stringify({
  plots: document.querySelectorAll('.js-plotly-plot').length,
  drawn: Array.from(document.querySelectorAll('.js-plotly-plot')).map(
    plot => plot.querySelectorAll('.trace, .hm image, .point, .bars').length),
  errors: window.errors,
  fetched: performance.getEntriesByType('resource').map(entry => entry.name),
  rules: Array.from(document.querySelectorAll('tr.rule td')).map(cell => getComputedStyle(cell).borderTopWidth),
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
})"""
CATCH = "<head><script>window.errors = []; window.onerror = said => { window.errors.push(said); };</script>"
SETTLE_MS = 3000
GIVE_UP_MS = 90_000


def look(page: Path, picture: Path | None) -> str:
    """Load the page and say what it holds once it is drawn; Qt must have the main thread to itself."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu")
    views: Any = import_module("PyQt6.QtWebEngineWidgets")
    widgets: Any = import_module("PyQt6.QtWidgets")
    core: Any = import_module("PyQt6.QtCore")
    caught = page.with_suffix(".caught.html")
    caught.write_text(page.read_text(encoding="utf-8").replace("<head>", CATCH, 1), encoding="utf-8")
    app = widgets.QApplication(sys.argv[:1])
    view = views.QWebEngineView()
    view.resize(1440, 3000)
    view.show()
    said: list[str] = []

    def done(found: str) -> None:
        said.append(found)
        if picture is not None:
            view.grab().save(str(picture))
        app.quit()

    view.loadFinished.connect(
        lambda _: core.QTimer.singleShot(SETTLE_MS, lambda: view.page().runJavaScript(LOOK, done))
    )
    view.load(core.QUrl.fromLocalFile(str(caught.resolve())))
    core.QTimer.singleShot(GIVE_UP_MS, app.quit)
    app.exec()
    return said[0] if said else "{}"


if __name__ == "__main__":
    sys.stdout.write(look(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None) + "\n")
    sys.stdout.flush()
    os._exit(0)  # Chromium's own processes are slow to go, and nothing is left to do
