"""A progress bar that appears only after some seconds of work."""

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
def late_bar(
    *, after_s: float = _QUIET_S, quiet: bool = False, console: Console | None = None
) -> Iterator[Callable[[str, float], None]]:
    """Yield a callback for (label, fraction done); the bar is on stderr and is removed at the end.

    There is no bar if `quiet`, or if stderr is no terminal.
    """
    console = console or Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _what, _done: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("", total=1.0)
    started = time.monotonic()
    shown = False

    def report(what: str, done: float) -> None:
        nonlocal shown
        bar.update(task, description=what, completed=done)
        if not shown and time.monotonic() - started > after_s:
            bar.start()
            shown = True

    try:
        yield report
    finally:
        if shown:
            bar.stop()
