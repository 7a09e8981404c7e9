"""Open text (plain or gzipped) and Parquet, and say plainly when a file cannot be read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lengthwise.errors import InputError


def check_readable(path: str | Path) -> Path:
    """The path, if it is a file with something in it."""
    path = Path(path)
    if path.is_dir():
        raise InputError("is a folder", source=path, hint="name a file in it")
    if not path.exists():
        raise InputError("no such file", source=path)
    if path.stat().st_size == 0:
        raise InputError("is empty", source=path, hint="something must be in it")
    return path


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file's text; whatever goes wrong while it is read becomes an InputError that says so."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield cast("TextIO", stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError("is not whole: the gzip stream breaks off", source=path, hint="fetch it again") from error
    except UnicodeDecodeError as error:
        raise InputError(
            "is not UTF-8 text", source=path, hint="save it as UTF-8, or name its --from format"
        ) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from error


def read_parquet_table(path: str | Path) -> pa.Table:
    """All of one Parquet file, or an InputError that says it is not whole."""
    path = check_readable(path)
    try:
        return pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            "is not a whole Parquet file", source=path, hint="it is truncated or has the wrong ending"
        ) from error


def stem(path: Path) -> str:
    """The file's name without its endings."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]
