"""The access log: one JSON line per request, without prompts, answers or keys.

A line has fields of `traffic.rows.RequestRow`, and `method` and `path`.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from starlette.types import Message, Scope, Send

from lengthwise.errors import InputError
from lengthwise.files import write_all
from lengthwise.gateway.config import GatewayConfig

RECORD: Final = "lengthwise.record"
"""Where a request's scope holds its record."""

_log = logging.getLogger(__name__)
_STDOUT: Final = "-"
_MAX_WAITING: Final = 1 << 16  # lines; further ones are dropped rather than delay requests
_END_S: Final = 2.0  # for the lines that wait when the gateway stops
_MAX_CHARACTERS: Final = 200  # of a text that the client chooses


class AccessLog:
    """Writes records to a file, in a thread of its own: a slow disk delays no request.

    Lines are appended by whole writes, so that several processes may share the file.
    """

    def __init__(self, target: str) -> None:
        """Open the file (`-` is standard output); InputError if that fails. Lines are written inside `with`."""
        self._target = target
        self._file = _open(target)
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._dropped = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_lines, name="access-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(queue.Full):
            self._lines.put(None, timeout=_END_S)
        self._thread.join(_END_S)  # not forever: standard output may be a pipe that nothing reads
        if self._thread.is_alive():
            _log.warning("%s takes no more lines: the access log ends without its last ones", self._target)
        elif self._target != _STDOUT:
            os.close(self._file)

    @contextmanager
    def record(self, scope: Scope) -> Iterator[dict[str, Any]]:
        """Yield the record of a request, to be filled in; it is written at the end."""
        began, arrival_s = time.perf_counter(), time.time()
        record: dict[str, Any] = {
            "arrival_s": round(arrival_s, 4),
            "request_id": None,
            "tenant": None,
            "method": scope["method"],
            "path": scope["path"][:_MAX_CHARACTERS],
            "status": None,  # stays None if the client left before its answer
        }
        try:
            yield record
        finally:
            record["finished_s"] = round(arrival_s + time.perf_counter() - began, 4)
            self._put(record)

    def use(self, _: GatewayConfig) -> None:
        """Open the file again: it may have been moved away by a rotation."""
        if self._target != _STDOUT:
            opened = _open(self._target)
            with self._lock:
                os.close(self._file)
                self._file = opened

    def collect(self) -> Iterator[Metric]:
        """Return the metric of dropped lines."""
        text = "Lines of the access log that were dropped because the disk is too slow or full."
        yield CounterMetricFamily("lengthwise_access_log_dropped", text, self._dropped)

    def _put(self, record: dict[str, Any]) -> None:
        try:
            self._lines.put_nowait(json.dumps(record, separators=(",", ":")) + "\n")
        except queue.Full:
            self._dropped += 1

    def _write_lines(self) -> None:
        ended = False
        while not ended:
            lines = [self._lines.get()]
            while len(lines) < _MAX_WAITING:
                try:
                    lines.append(self._lines.get_nowait())
                except queue.Empty:
                    break
            ended = lines[-1] is None
            whole = [line for line in lines if line is not None]
            try:
                with self._lock:
                    write_all(self._file, "".join(whole).encode())
            except OSError:
                self._dropped += len(whole)


def noting(send: Send, record: dict[str, Any]) -> Send:
    """Return `send`, which also notes the status and the request id of the answer."""

    async def send_and_note(message: Message) -> None:
        if message["type"] == "http.response.start":
            record["status"] = message["status"]
            ids = [value for name, value in message["headers"] if name == b"x-request-id"]
            record["request_id"] = shortened(ids[0].decode("latin-1")) if ids else None
        await send(message)

    return send_and_note


def shortened(text: str | None) -> str | None:
    """Return a text that a client chooses, as far as it is logged."""
    return None if text is None else text[:_MAX_CHARACTERS]


def _open(target: str) -> int:
    if target == _STDOUT:
        return sys.stdout.fileno()
    try:
        return os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise InputError(
            f"the access log cannot be written: {error.strerror}", source=target, hint="choose another --access-log"
        ) from error
