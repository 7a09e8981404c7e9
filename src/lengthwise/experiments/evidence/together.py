"""Cells run at the same time, on engines that share the machine's cores alike.

Whatever else slows the machine slows all of them, so that they can be compared where one after the other could not: at
a load of 1.1 a machine that is a few hundredths slower for ten minutes moves every latency by a third. The engines
begin together and end together. Between, they take turns of half a second on the cores, stopped while it is another's:
each has the same share of the machine whatever the others do, and its weights stay in the cache for most of a turn.
Predictors run in processes of their own, which are never stopped and take what they need from whoever's turn it is: all
engines pay alike for them, as none would beside a GPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from lengthwise.engines.embedded import engine_threads
from lengthwise.errors import InputError
from lengthwise.experiments.evidence import seen

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Callable, Sequence

    from lengthwise.engines.embedded import EmbeddedEngine

Found = TypeVar("Found")
TURN_S: Final = 0.5


class CompanyLeftError(Exception):
    """One of the cells that run together failed, so the others are not worth keeping either."""

    def __init__(self) -> None:
        super().__init__("a cell beside it failed")


@dataclass
class Company:
    """So many cells at once; each calls `ready` and `over` from its own thread, and waits there for the others."""

    size: int
    _engines: list[EmbeddedEngine] = field(default_factory=list)
    _computing: list[list[int]] = field(default_factory=list)
    _tasks: list[tuple[AbstractEventLoop, Task[None] | None]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _turns: threading.Thread | None = None
    _door: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self._door = threading.Barrier(self.size)

    def ready(self, engine: EmbeddedEngine | None) -> None:
        """Wait until every engine is warm; from then on they take turns."""
        if engine is not None:
            self._engines.append(engine)
            self._computing.append(seen.computing(engine))
            if not self._computing[-1]:
                raise InputError("no process of this vLLM's can be told to compute", hint="measure without --at-once")
        if self._wait() == 0:
            self._turns = threading.Thread(target=self._take_turns, name="turns", daemon=True)
            self._turns.start()

    def ends_with(self, loop: AbstractEventLoop, task: Task[None] | None) -> None:
        """What a cell's thread is busy with, to be cancelled where another fails."""
        self._tasks.append((loop, task))
        if self._ended.is_set() and task is not None:
            task.cancel()

    def over(self) -> None:
        """Wait until every cell has its answers: an engine that ends takes the others' time."""
        self._wait()
        self._end_turns()

    def give_up(self) -> None:
        """Let nobody wait or send on, and stop the engines."""
        self._door.abort()
        for loop, task in self._tasks:
            if task is not None:
                with contextlib.suppress(RuntimeError):  # a loop that has ended
                    loop.call_soon_threadsafe(task.cancel)
        self._end_turns()
        for engine in self._engines:
            engine.stop()

    def _wait(self) -> int:
        try:
            return self._door.wait()
        except threading.BrokenBarrierError:
            raise CompanyLeftError from None

    def _end_turns(self) -> None:
        self._ended.set()
        if self._turns is not None:
            self._turns.join()

    def _take_turns(self) -> None:
        """Deal the engines to the cores at random, each as often; no more run at a time than there are cores for."""
        if not self._computing:
            return
        sets, computing = core_sets(), self._computing
        rng = np.random.default_rng(0)
        try:
            while not self._ended.is_set():
                order = rng.permutation(len(computing))
                for first in range(0, len(order), len(sets)):
                    mine = dict(zip(order[first : first + len(sets)], rng.permutation(len(sets)), strict=False))
                    for engine, pids in enumerate(computing):
                        if engine not in mine:
                            _stop(pids)
                    for engine, place in mine.items():
                        _go_on(computing[engine], sets[place])
                    if self._ended.wait(TURN_S):
                        break
        finally:
            for pids in computing:
                _go_on(pids, set.union(*sets))


def core_sets() -> list[set[int]]:
    """The cores, in sets for one engine each; an InputError where engines cannot take turns on them."""
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("engines take turns on Linux only", source="--at-once", hint="measure without it")
    cores, threads = sorted(os.sched_getaffinity(0)), engine_threads()
    if threads > len(cores):
        hint = "set OMP_NUM_THREADS to no more than the cores"
        raise InputError(f"{threads} threads an engine on {len(cores)} cores", source="--at-once", hint=hint)
    return [set(cores[first : first + threads]) for first in range(0, len(cores) - threads + 1, threads)]


def side_by_side(jobs: Sequence[Callable[[], Found]], company: Company) -> list[Found]:
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
        raise next((error for error in errors if not isinstance(error, CompanyLeftError)), errors[0])
    return [future.result() for future in futures]


def _stop(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # one that has just ended
            os.kill(pid, signal.SIGSTOP)


def _go_on(pids: Sequence[int], cores: set[int]) -> None:
    """Let processes run, with all their threads on these cores."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), cores)
            os.kill(pid, signal.SIGCONT)
