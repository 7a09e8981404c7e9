"""A progress bar that only appears when the work is not over at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["late_bar"]

_QUIET_S: Final = 2.0


@contextmanager
def late_bar(*, after_s: float = _QUIET_S) -> Iterator[Callable[[str, float], None]]:
    """Gives a function to call with (what is done now, share done of the whole); the bar is on stderr and goes away."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("", total=1.0)
    began = time.monotonic()
    shown = False

    def report(what: str, done: float) -> None:
        nonlocal shown
        bar.update(task, description=what, completed=done)
        if not shown and time.monotonic() - began > after_s:
            bar.start()
            shown = True

    try:
        yield report
    finally:
        if shown:
            bar.stop()
