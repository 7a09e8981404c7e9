"""The writer of the traffic log of `lengthwise serve --learn DIR`; `traffic.reader` has format and reader.

A request appends one tuple to a list; a thread writes them as lines once a second. Parts are rotated, and the oldest
are deleted, so that the folder stays within its limit. What the disk does not take is dropped and counted.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from lengthwise.errors import InputError
from lengthwise.gateway.access_log import shortened, write_all
from lengthwise.lengths import LogT
from lengthwise.predictors.service import PredictionTrace
from lengthwise.prefixes import Levels
from lengthwise.traffic.reader import HEADER, MAX_BLOCKS, PARTS, TrafficRow, kept_text, pair, row_json

if TYPE_CHECKING:
    from lengthwise.gateway.completions import Call


_MAX_WAITING: Final = 4096  # rows; further ones are dropped rather than fill the memory
_WRITE_AT: Final = 512  # rows, before the second is over
_AT_ONCE_BYTES: Final = 1 << 18
_EVERY_S: Final = 1.0
_PARTS: Final = 16
_PART_S: Final = 3600.0
_KEY_BYTES: Final = 16


class TrafficLog:
    """Writes rows to parts in a folder, in a thread of its own."""

    def __init__(self, folder: Path, *, keep_prompts: bool, max_bytes: int) -> None:
        """Create the folder and its key where they are missing; InputError if that fails. Written inside `with`."""
        self.keep_prompts = keep_prompts
        self._folder = folder
        self._max_bytes = max_bytes
        self._key = np.frombuffer(_read_key(folder), np.uint64)
        from lengthwise.predictors.keyed_hash import (
            keyed_hashes,
        )  # loads Numba, 60 MB that other gateways need not have

        self._hashes = keyed_hashes
        self._hashes(np.ones(1, np.uint64), self._key)  # compiled now, not in a request
        self._rows: deque[TrafficRow] = deque()
        self._wake = threading.Event()
        self._ending = False
        self._file: int | None = None
        self._part_until = 0.0
        self._written = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="traffic-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join()

    def keyed(self, levels: Levels) -> Levels:
        """Return what prefix memory identifies a request by, under the folder's key."""
        return Levels(self._hashes(levels.blocks, self._key), self._hashes(levels.names, self._key))

    def add(self, call: Call, trace: PredictionTrace, total_s: float) -> None:
        """Log a request that has ended."""
        self.put(self._row(call, trace, total_s))

    def put(self, row: TrafficRow) -> None:
        """Log a row."""
        if len(self._rows) >= _MAX_WAITING:
            self._dropped += 1
            return
        self._rows.append(row)
        if len(self._rows) == _WRITE_AT:
            self._wake.set()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the log."""
        yield CounterMetricFamily("lengthwise_traffic_log_rows", "Rows written to the traffic log.", self._written)
        text = "Rows of the traffic log that were dropped because the disk is too slow or full."
        yield CounterMetricFamily("lengthwise_traffic_log_dropped", text, self._dropped)

    def _row(self, call: Call, trace: PredictionTrace, total_s: float) -> TrafficRow:
        job, measure, levels = call.job, call.measure, trace.levels
        tokens, cut = (measure.length if call.body.one_answer else None) or (None, False)
        left = "error" if call.failed else "cancelled" if cut or not measure.done else None
        used = job.prediction if isinstance(job.prediction, LogT) else None
        return TrafficRow(
            time=round(time.time() - total_s, 3),
            request_id=shortened(call.request_id.decode("latin-1")) or "",
            tenant=call.tenant,
            model=shortened(call.body.llm) or "",
            engine=call.engine,
            input_tokens=job.prompt_tokens if measure.prompt_tokens is None else measure.prompt_tokens,
            max_tokens=job.max_tokens,
            names="" if levels is None else levels.names.tobytes().hex(),
            blocks="" if levels is None else levels.blocks[:MAX_BLOCKS].tobytes().hex(),
            predictor=trace.predictor,
            source=call.source,
            prediction=pair(trace.prediction or used),
            predicted=pair(trace.text),
            history=pair(trace.history) or (0.0, 0.0),
            output_tokens=tokens,
            censored=cut,
            finish_reason=measure.finish_reason or (left if job.started is not None else "error"),
            wait_s=None if job.started is None else round(job.started - job.arrival, 4),
            first_byte_s=None if call.first_byte_s is None else round(call.first_byte_s, 4),
            total_s=round(total_s, 4),
            text=kept_text(call.body.text()) if self.keep_prompts and call.body.readable else None,
        )

    def _run(self) -> None:
        ended = False
        while not ended:
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            ended = self._ending  # before the rows are taken, so that none added earlier is left
            rows = [self._rows.popleft() for _ in range(len(self._rows))]
            if rows:
                self._write(rows)
        self._close()

    def _write(self, rows: list[TrafficRow]) -> None:
        part_bytes = self._max_bytes // _PARTS
        lines, size = [], 0
        for number, row in enumerate(rows, start=1):
            lines.append(row_json(row).encode())
            size += len(lines[-1])
            if size < min(_AT_ONCE_BYTES, part_bytes) and number < len(rows):
                continue
            try:
                file = self._open()
                write_all(file, b"".join(lines))
                self._written += len(lines)
                if os.fstat(file).st_size >= part_bytes:
                    self._close()
            except OSError:
                self._dropped += len(lines)
                self._close()  # the next row begins a new part: an incomplete line is always the last
            lines, size = [], 0

    def _open(self) -> int:
        if self._file is not None and time.monotonic() > self._part_until:
            self._close()
        if self._file is None:
            self._prune()
            name = f"traffic-{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}.jsonl"
            self._file = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._part_until = time.monotonic() + _PART_S
            write_all(self._file, (json.dumps(HEADER) + "\n").encode())
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _prune(self) -> None:
        """Delete the parts that were written to least recently, until one more fits."""
        parts = sorted(((path.stat(), path) for path in self._folder.glob(PARTS)), key=lambda each: each[0].st_mtime)
        size = sum(stat.st_size for stat, _ in parts) + self._max_bytes // _PARTS
        for stat, path in parts:
            if size <= self._max_bytes:
                break
            path.unlink(missing_ok=True)  # another process may have deleted it
            size -= stat.st_size


def _read_key(folder: Path) -> bytes:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "key"
        if not path.exists():
            new = folder / f"key.{os.getpid()}"
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            write_all(file, os.urandom(_KEY_BYTES))
            os.close(file)
            try:
                os.link(new, path)  # of several gateways on one folder one makes it
            except FileExistsError:
                pass
            finally:
                new.unlink()
        key = path.read_bytes()
    except OSError as error:
        raise InputError(f"the traffic log cannot be written: {error.strerror}", source=folder) from error
    if len(key) != _KEY_BYTES:
        raise InputError("is not the key of a traffic log", source=path, hint="delete it: hashes begin anew")
    return key
