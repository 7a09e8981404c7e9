"""Results by the content of what they came from: a file each, whole or not at all, so that two sweeps may share."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import lengthwise
from lengthwise.workloads import Workload
from lengthwise.workloads.files import atomic_path

_DECIDES: Final = ("lengths", "policies", "predictors", "routers", "simulator", "workloads")
"""The rooms whose code decides what comes of a simulation."""


class Cache:
    """Results in a folder; one that cannot be read counts as missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """What is known, if anything."""
        try:
            found = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Keep it; whoever else keeps the same at this moment keeps the same bytes."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(result, sort_keys=True), encoding="utf-8")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def content_key(**parts: object) -> str:
    """One name for all that a result depends on; parts are JSON or have a repr that says everything."""
    return sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()


def workload_digest(workload: Workload) -> str:
    """Of all columns, whatever file they came from."""
    sink = pa.BufferOutputStream()
    table = workload.table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sha256(sink.getvalue()).hexdigest()


@cache
def file_digest(path: Path) -> str:
    """Of a file's bytes."""
    return sha256(path.read_bytes()).hexdigest()


@cache
def code_version() -> str:
    """The package's version, and a digest of the code that decides outcomes: a change there makes all anew."""
    root = Path(lengthwise.__file__).parent
    digest = sha256()
    for file in sorted(file for room in _DECIDES for file in (root / room).rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return f"{lengthwise.__version__}+{digest.hexdigest()[:16]}"
