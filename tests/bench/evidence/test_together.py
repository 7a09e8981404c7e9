"""Cells at the same time: they begin and end together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from lengthwise.bench.evidence import together
from lengthwise.bench.evidence.together import CellBarrier, CellBarrierBrokenError, side_by_side


class Engine:
    """Stands in for an engine: all that is asked of it here is to stop."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


def test_nobody_begins_before_all_are_ready_and_results_keep_their_order() -> None:
    company, begun = CellBarrier(3), []

    def job(number: int) -> int:
        time.sleep(0.02 * number)
        begun.append(("ready", number))
        company.ready(None)
        begun.append(("begun", number))
        company.over()
        return number

    assert side_by_side([lambda n=n: job(n) for n in range(3)], company) == [0, 1, 2]  # type: ignore[misc]
    assert [what for what, _ in begun] == ["ready"] * 3 + ["begun"] * 3


def test_where_one_fails_all_end_their_engines_too_and_its_error_is_told() -> None:
    company = CellBarrier(2)
    engines: list[Any] = [Engine(), Engine()]
    left: list[BaseException] = []

    def fails() -> None:
        company.ready(engines[0])
        raise RuntimeError("out of memory")

    def waits() -> None:
        try:
            company.ready(engines[1])
            company.over()
        except CellBarrierBrokenError as error:
            left.append(error)
            raise

    with pytest.raises(RuntimeError, match="out of memory"):
        side_by_side([waits, fails], company)
    assert [str(error) for error in left] == ["a cell beside it failed"]
    assert all(engine.stopped for engine in engines)


def test_an_interrupt_ends_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    company, waiting = CellBarrier(2), threading.Event()

    def interrupted(_: object) -> None:
        waiting.wait()
        raise KeyboardInterrupt

    def waits() -> None:
        waiting.set()
        company.ready(None)

    monkeypatch.setattr(together, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([waits], company)
