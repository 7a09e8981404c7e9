"""Cells run at the same time, on engines that share the machine and keep one pace.

Their steps are held to the same times (`engines.pace`), a little longer than a machine that all of them use needs, so
that each is as fast as the others whatever they do, and as fast in one hour as in another. They begin together and end
together: an engine that starts or ends would take the others' time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from lengthwise.engines.embedded import EmbeddedEngine

Found = TypeVar("Found")


class CellBarrierBrokenError(Exception):
    """One of the cells that run together failed, so the others are not worth keeping either."""

    def __init__(self) -> None:
        super().__init__("a cell beside it failed")


@dataclass
class CellBarrier:
    """So many cells at once; each calls `ready` and `over` from its own thread, and waits there for the others."""

    size: int
    _engines: list[EmbeddedEngine] = field(default_factory=list)
    _tasks: list[tuple[AbstractEventLoop, Task[None] | None]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _door: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self._door = threading.Barrier(self.size)

    def ready(self, engine: EmbeddedEngine | None) -> None:
        """Wait until every engine is warm."""
        if engine is not None:
            self._engines.append(engine)
        self._wait()

    def ends_with(self, loop: AbstractEventLoop, task: Task[None] | None) -> None:
        """What a cell's thread is busy with, to be cancelled where another fails."""
        self._tasks.append((loop, task))
        if self._ended.is_set() and task is not None:
            task.cancel()

    def over(self) -> None:
        """Wait until every cell has its answers."""
        self._wait()

    def give_up(self) -> None:
        """Let nobody wait or send on, and stop the engines."""
        self._ended.set()
        self._door.abort()
        for loop, task in self._tasks:
            if task is not None:
                with contextlib.suppress(RuntimeError):  # a loop that has ended
                    loop.call_soon_threadsafe(task.cancel)
        for engine in self._engines:
            engine.stop()

    def _wait(self) -> None:
        try:
            self._door.wait()
        except threading.BrokenBarrierError:
            raise CellBarrierBrokenError from None


def side_by_side(jobs: Sequence[Callable[[], Found]], company: CellBarrier) -> list[Found]:
    """What the jobs return, each run in a thread of its own. Where one fails all end, and its error is raised."""

    def one(job: Callable[[], Found]) -> Found:
        try:
            return job()
        except BaseException:
            company.give_up()
            raise

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(one, job) for job in jobs]
        try:
            wait(futures)
        except BaseException:  # Ctrl-C: the threads end when their engines do
            company.give_up()
            raise
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, CellBarrierBrokenError)), errors[0])
    return [future.result() for future in futures]
