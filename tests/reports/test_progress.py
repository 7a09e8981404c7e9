"""The progress bar of commands."""

from __future__ import annotations

import io
import time

from rich.console import Console

from lengthwise.reports.progress import late_bar


def shown(*, terminal: bool, after_s: float = 0.0, steps: bool = True) -> str:
    out = io.StringIO()
    with late_bar("reading", after_s=after_s, console=Console(file=out, force_terminal=terminal)) as report:
        if steps:
            report("working", 0.5)
        end = time.monotonic() + 60.0
        while terminal and after_s == 0.0 and not out.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    return out.getvalue()


def test_a_late_progress_bar_shows_the_time_left_on_a_terminal() -> None:
    found = shown(terminal=True)
    assert "working" in found
    assert "left" in found


def test_a_bar_is_shown_before_the_first_step_has_ended() -> None:
    assert "reading" in shown(terminal=True, steps=False)


def test_no_bar_is_shown_for_quick_work_or_without_a_terminal() -> None:
    assert shown(terminal=True, after_s=3600.0) == ""
    assert shown(terminal=False) == ""
