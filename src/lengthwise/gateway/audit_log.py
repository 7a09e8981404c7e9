"""The audit log: one JSON line for each change by the admin API or a reload, without prompts or keys."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from starlette.types import Scope

from lengthwise.errors import InputError
from lengthwise.files import write_all
from lengthwise.gateway.config import GatewayConfig

CHANGE: Final = "lengthwise.change"
"""Where the scope of a request that changes something holds its record."""

_log = logging.getLogger(__name__)
_MAX_CHARACTERS: Final = 200  # of a text that the client chooses


class AuditLog:
    """Appends records to a file, each before the request ends: changes are rare, and none may be lost."""

    def __init__(self, target: str) -> None:
        """Open the file; InputError if that fails."""
        self._target = target
        self._file = _open(target)

    @contextmanager
    def change(self, scope: Scope, who: str) -> Iterator[dict[str, Any]]:
        """Yield the record of a request that changes something; handlers add `what`. It is written at the end."""
        client = scope.get("client")
        record: dict[str, Any] = {
            "time_s": round(time.time(), 3),
            "who": who,
            "from": None if client is None else client[0],
            "action": f"{scope['method']} {scope['path'][:_MAX_CHARACTERS]}",
            "what": {},
            "status": None,
        }
        try:
            yield record
        finally:
            self.write(record)

    def use(self, _: GatewayConfig) -> None:
        """Open the file again: it may have been moved away by a rotation."""
        opened = _open(self._target)
        os.close(self._file)
        self._file = opened

    def reloaded(self, changed: Mapping[str, Any]) -> None:
        """Write the names of the settings that a reload has changed."""
        record = {"time_s": round(time.time(), 3), "who": "SIGHUP", "from": None, "action": "reload"}
        self.write({**record, "what": changed, "status": None})

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record; if the disk is full, it goes to the process's log."""
        line = json.dumps(record, separators=(",", ":"))
        try:
            write_all(self._file, (line + "\n").encode())
            os.fsync(self._file)
        except OSError as error:
            _log.error("the audit log cannot be written (%s): %s", error.strerror, line)


def note(scope: Scope, **what: str | None) -> None:
    """Add to the record of a request what it changes."""
    record = scope.get(CHANGE)
    if record is not None:
        record["what"].update({name: None if text is None else text[:_MAX_CHARACTERS] for name, text in what.items()})


def _open(target: str) -> int:
    try:
        return os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(
            f"the audit log cannot be written: {error.strerror}", source=target, hint="choose another --audit-log"
        ) from error
