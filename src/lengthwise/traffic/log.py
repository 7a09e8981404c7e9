"""The traffic log of `lengthwise serve --log DIR`: its format and its writer; `traffic.reader` reads it.

DIR holds parts `traffic-TIME-PID.jsonl`: a header line, then JSON objects that name their kind: a `request` when it
ends (`RequestRow` without its nulls), an `engine` when its load changes, a `predictor` when the gateway stops. Lines
are written whole; a part that a crash cut short lacks its last line. `key` (mode 600) is the key of the hashes: without
it the parts do not tell whether a guessed text occurred. A row has no prompt and no API key; where prompts are kept,
its `text` is what a predictor reads of the prompt, of a long one the first and the last 10,000 characters.

A request appends one tuple to a list; a thread writes them as lines once a second. Parts are rotated, and the oldest
are deleted, so that the folder stays within its limit. What the disk does not take is dropped and counted.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
from pydantic_core import to_json

from lengthwise.errors import InputError
from lengthwise.files import append_whole, write_all
from lengthwise.prefixes import Scopes
from lengthwise.traffic.rows import RequestRow

FORMAT: Final = 2
HEADER: Final = {"kind": "lengthwise traffic", "format": FORMAT}
PARTS: Final = "traffic-*.jsonl"
PREDICTOR_NAME: Final = "predictor.lw"
"""The model file beside the parts that `serve --watch` uses, and `adapt --from` writes unless another is named."""
MAX_BLOCKS: Final = 64
"""Blocks of a prompt's beginning that are logged."""
KEPT_CHARACTERS: Final = 10_000
"""Of the beginning and of the end of a prompt; what predictors read."""

_MAX_WAITING: Final = 4096  # records; further ones are dropped rather than fill the memory
_WRITE_AT: Final = 512  # records, before the second is over
_AT_ONCE_BYTES: Final = 1 << 18
_EVERY_S: Final = 1.0
_PARTS: Final = 16
_PART_S: Final = 3600.0
_KEY_BYTES: Final = 16


class EngineReading(NamedTuple):
    """What an engine reports of itself at a time; None for what it does not report."""

    at_s: float
    """Seconds since 1970."""
    engine: str
    running: int | None = None
    waiting: int | None = None
    kv_tokens: int | None = None
    """Size of its KV memory."""
    block_size: int | None = None
    kv_use: float | None = None
    """Share of its KV memory in use."""


class PredictorCounts(NamedTuple):
    """Counts of a gateway's predictor, from its start to its end."""

    asked: int
    answered: int
    failed: int
    dropped: int
    cpu_s: float
    mean_age_s: float
    """Mean time from a request to its prediction."""


Record = RequestRow | EngineReading | PredictorCounts
KINDS: Final[dict[str, type[Record]]] = {"request": RequestRow, "engine": EngineReading, "predictor": PredictorCounts}
_NAMES: Final = {kind: name for name, kind in KINDS.items()}
_DEFAULTS: Final = {kind: kind._field_defaults for kind in KINDS.values()}


def line_of(record: Record) -> str:
    """Return a record as one line; fields that have their default are left out."""
    kind = type(record)
    defaults = _DEFAULTS[kind]
    given = {"kind": _NAMES[kind]} | {
        name: value
        for name, value in zip(kind._fields, record, strict=True)
        if value is not None and (name not in defaults or value != defaults[name])
    }
    try:
        return to_json(given).decode() + "\n"  # half the CPU time of `json`
    except ValueError:  # half of a surrogate pair, which a client may send
        return json.dumps(given) + "\n"


def kept_text(text: str) -> str:
    """Return what is logged of a prompt."""
    return text if len(text) <= 2 * KEPT_CHARACTERS else f"{text[:KEPT_CHARACTERS]}\n{text[-KEPT_CHARACTERS:]}"


class TrafficLog:
    """Writes records to parts in a folder, in a thread of its own."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """Create the folder and its key where they are missing; InputError if that fails. Written inside `with`."""
        self.written = self.dropped = 0
        """Records."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._key = np.frombuffer(_read_key(folder), np.uint64)
        from lengthwise.traffic.keyed_hash import keyed_hashes  # loads Numba, 60 MB that other gateways need not have

        self._hashes = keyed_hashes
        self._hashes(np.ones(1, np.uint64), self._key)  # compiled now, not in a request
        self._records: deque[Record] = deque()
        self._wake = threading.Event()
        self._ending = False
        self._file: int | None = None
        self._part_until = 0.0
        self._thread = threading.Thread(target=self._run, name="traffic-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        self._wake.set()
        self._thread.join()

    def keyed(self, scopes: Scopes) -> Scopes:
        """Return what prefix memory identifies a request by, under the folder's key."""
        return Scopes(self._hashes(scopes.blocks, self._key), self._hashes(scopes.names, self._key))

    def add(self, record: Record) -> None:
        """Log a record."""
        if len(self._records) >= _MAX_WAITING:
            self.dropped += 1
            return
        self._records.append(record)
        if len(self._records) == _WRITE_AT:
            self._wake.set()

    def _run(self) -> None:
        ended = False
        while not ended:
            self._wake.wait(_EVERY_S)
            self._wake.clear()
            ended = self._ending  # before the records are taken, so that none added earlier is left
            records = [self._records.popleft() for _ in range(len(self._records))]
            if records:
                self._write(records)
        self._close()

    def _write(self, records: list[Record]) -> None:
        part_bytes = self._max_bytes // _PARTS
        lines, size = [], 0
        for number, record in enumerate(records, start=1):
            lines.append(line_of(record).encode())
            size += len(lines[-1])
            if size < min(_AT_ONCE_BYTES, part_bytes) and number < len(records):
                continue
            try:
                file = self._open()
                append_whole(file, b"".join(lines))
                self.written += len(lines)
                if os.fstat(file).st_size >= part_bytes:
                    self._close()
            except OSError:
                self.dropped += len(lines)
            lines, size = [], 0

    def _open(self) -> int:
        if self._file is not None and time.monotonic() > self._part_until:
            self._close()
        if self._file is None:
            self._prune()
            path = self._folder / f"traffic-{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{os.getpid()}.jsonl"
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                write_all(file, (json.dumps(HEADER) + "\n").encode())
            except OSError:  # a full disk takes a new file each second, but no byte
                os.close(file)
                path.unlink()
                raise
            self._file, self._part_until = file, time.monotonic() + _PART_S
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
            try:
                write_all(file, os.urandom(_KEY_BYTES))
                os.link(new, path)  # of several gateways on one folder one makes it
            except FileExistsError:
                pass
            finally:
                os.close(file)
                new.unlink()
        key = path.read_bytes()
    except OSError as error:
        raise InputError(f"the traffic log cannot be written: {error.strerror}", source=folder) from error
    if len(key) != _KEY_BYTES:
        raise InputError("is not the key of a traffic log", source=path, hint="delete it: hashes begin anew")
    return key
