"""The one progress bar of all commands; it appears only after some seconds of work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_QUIET_S: Final = 2.0


@contextmanager
def late_bar(
    what: str = "preparing", *, after_s: float = _QUIET_S, console: Console | None = None
) -> Iterator[Callable[[str, float], None]]:
    """Yield a callback for (label, fraction done); the bar is on stderr and is removed at the end.

    Until the first call the bar has the label `what` and no end. There is no bar if stderr is no terminal.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
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
    task = bar.add_task(what, total=None)
    start = threading.Timer(after_s, bar.start)  # also if the first step is a long one
    start.daemon = True
    start.start()

    def show(label: str, done: float) -> None:
        if done < bar.tasks[task].completed:  # the next phase: the time left is of this one
            bar.reset(task)
        bar.update(task, description=label, completed=done, total=1.0)

    try:
        yield show
    finally:
        start.cancel()
        start.join()
        bar.stop()
