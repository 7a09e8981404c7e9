"""The log of an engine's steps: the content and duration of each, as a Parquet file that grows while the engine runs.

Imports nothing of vLLM. `simulator.step_log` has the format and the reader.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.simulator.step_log import COLUMNS, EngineFacts, write_steps

_MAX_ROWS: Final = 1_000_000  # then the log is full; at 50 ms a step, 14 hours
_FLUSH_S: Final = 20.0  # seconds between two writes while it is busy
_IDLE_FLUSH_S: Final = 1.0
_PAUSE: Final = 50.0  # times the duration of a write: so long none follows, because it slows the engine's thread

_log = logging.getLogger(__name__)


class StepContent(NamedTuple):
    """The content of a step, in the order of the columns."""

    prompt_tokens: int
    prompt_pairs: int
    decodes: int
    context_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens computed in the step."""
        return self.prompt_tokens + self.decodes


def step_content(spans: Iterable[tuple[int, int]]) -> StepContent:
    """Return the content of a step from, for each request, the tokens computed before it and in it."""
    prompt = pairs = decodes = context = 0
    for before, new in spans:
        end = before + new
        if new == 1 and before > 0:  # the same distinction as in the simulator
            decodes += 1
            context += end
        else:
            prompt += new
            pairs += end * end - before * before
    return StepContent(prompt, pairs, decodes, context)


@dataclass(slots=True)
class _Open:
    """A step that is scheduled and not finished."""

    scheduled_s: float
    numbers: tuple[float, ...]


def spans(output: Any) -> Iterator[tuple[int, int]]:  # vLLM's SchedulerOutput, by its attributes
    """Yield, for each request in a step of vLLM, the tokens computed before it and the tokens computed in it."""
    for new in output.scheduled_new_reqs:
        yield new.num_computed_tokens, output.num_scheduled_tokens[new.req_id]
    others = output.scheduled_cached_reqs
    for name, computed in zip(others.req_ids, others.num_computed_tokens, strict=True):
        yield computed, output.num_scheduled_tokens[name]


class StepLog:
    """Appends rows to a buffer; a thread writes the whole file each time, so that it is always readable.

    Steps finish in the order in which they are scheduled. A step without tokens is not logged.
    """

    def __init__(self, path: Path, facts: EngineFacts) -> None:
        if not path.parent.is_dir():
            raise InputError("its folder does not exist", source=path, hint=f"make {path.parent} first")
        self._path = path
        self._facts = facts
        self._open: deque[_Open] = deque()
        self._rows = array("d")
        self._sealed: list[NDArray[np.float64]] = []
        self._sealed_rows = 0
        self._ended_s: float | None = None
        self._written_s = time.monotonic()
        self._write_s = 0.0
        self._unwritten = False
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()

    def scheduled(
        self, spans: Iterable[tuple[int, int]], *, waiting: int, running: int, began_s: float, cpu_s: float
    ) -> None:
        """Record a scheduled step: for each request, the tokens computed before it and in it."""
        step = step_content(spans)
        if step.tokens:
            self._open.append(_Open(began_s, (*step, waiting, running, cpu_s)))
        elif not self._open:
            self._ended_s = None  # idle time belongs to no step

    def done(self, *, busy: bool) -> None:
        """Record the end of the oldest open step; `busy`: whether requests remain."""
        step, now = self._open.popleft(), time.time()
        began = step.scheduled_s if self._ended_s is None else self._ended_s
        self._ended_s = now if busy else None
        if self._sealed_rows + len(self._rows) // len(COLUMNS) < _MAX_ROWS:
            self._rows.extend((began, now - began, *step.numbers))
        due = max(_FLUSH_S if busy else _IDLE_FLUSH_S, _PAUSE * self._write_s) - (time.monotonic() - self._written_s)
        if not busy or (due <= 0 and not self._unwritten):
            self._write_aside(max(0.0, due))

    def close(self) -> None:
        """Write the remaining rows."""
        self._closing.set()
        if self._writer is not None:
            self._writer.join()
        self._seal()
        self._write()

    def _write_aside(self, in_s: float) -> None:
        """Write all rows soon, in a thread: an idle engine may be killed without a call to `close`."""
        self._seal()
        self._unwritten = True
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._write_in, args=(in_s,), name="step-log", daemon=True)
            self._writer.start()

    def _write_in(self, seconds: float) -> None:
        while self._unwritten:
            self._closing.wait(seconds)
            self._unwritten = False
            began = time.monotonic()
            self._write()
            self._written_s = time.monotonic()
            self._write_s = self._written_s - began
            seconds = max(_IDLE_FLUSH_S, _PAUSE * self._write_s)  # of what was added meanwhile

    def _seal(self) -> None:
        rows = np.array(self._rows, np.float64).reshape(-1, len(COLUMNS))
        self._sealed.append(rows)
        self._sealed_rows += len(rows)
        self._rows = array("d")
        if self._sealed_rows >= _MAX_ROWS:
            _log.warning("the step log is full: %d rows in %s", self._sealed_rows, self._path)

    def _write(self) -> None:
        try:
            write_steps(self._path, np.concatenate(self._sealed), self._facts)
        except (OSError, InputError) as error:  # a full disk must not stop the engine
            _log.warning("steps cannot be written to %s: %s", self._path, error)
