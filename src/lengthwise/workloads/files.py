"""Read and write files: text, gzip and Parquet, atomic writes, Arrow tables brought to a schema, the data folder."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TextIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lengthwise.errors import InputError

VARIABLE = "LENGTHWISE_DATA"


def data_home() -> Path | None:
    """The folder LENGTHWISE_DATA names, None where the variable is not set."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    home = Path(given).expanduser()
    if not home.is_dir():
        raise InputError("is not a folder", source=f"{VARIABLE}={given}", hint="name the folder that holds the data")
    return home


def sample(name: str) -> Path:
    """A file of the samples that ship with the package (see samples/CREDITS.md)."""
    return Path(str(resources.files("lengthwise.workloads") / "samples" / name))


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
    """Open a text file, plain or gzipped; read errors become InputError."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
            yield cast("TextIO", stream)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError("is truncated: the gzip stream breaks off", source=path, hint="fetch it again") from error
    except UnicodeDecodeError as error:
        raise InputError(
            "is not UTF-8 text", source=path, hint="save it as UTF-8, or name its --from format"
        ) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=path) from error


def read_parquet_table(path: str | Path) -> pa.Table:
    """Read a Parquet file; raises InputError if it is truncated or not Parquet."""
    path = check_readable(path)
    try:
        return pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            "is not a complete Parquet file", source=path, hint="it is truncated or has the wrong ending"
        ) from error


def stem(path: Path) -> str:
    """The file's name without its endings."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


@contextmanager
def atomic_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `target`; it replaces the target only when the block succeeds."""
    target = Path(target)
    if target.is_dir():
        raise InputError("is a folder", source=target, hint="name a file to write")
    if not target.parent.is_dir():
        raise InputError("its folder does not exist", source=target, hint=f"make {target.parent} first")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=target) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files for their owner only; a data file follows the usual mask.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


Source = str | Path | None


def conform(
    table: pa.Table,
    schema: pa.Schema,
    *,
    required: Collection[str],
    hints: Mapping[str, str],
    source: Source = None,
) -> pa.Table:
    """The schema's columns in its order and types, in one chunk; absent optional ones become null.

    Other columns are dropped.
    """
    refuse_twice([name for name in table.column_names if name in schema.names], source)
    _require(table, required, hints, source)
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        column = table.column(field.name)
        if field.name in required and column.null_count:
            row = first_row(pc.is_null(column).to_numpy())
            raise InputError("has no value", source=source, row=row, field=field.name, hint=hints.get(field.name))
        columns.append(cast_column(column, field, hint=hints.get(field.name), source=source))
    return pa.table(columns, schema=schema)


def refuse_twice(names: Sequence[str], source: Source) -> None:
    """Raise InputError for a duplicate column."""
    for name in names:
        if names.count(name) > 1:
            raise InputError("is a duplicate column", source=source, field=name, hint="keep one of the columns")


def first_row(bad: NDArray[np.bool_]) -> int | None:
    """The first true position, counted from 1."""
    return int(np.argmax(bad)) + 1 if bad.any() else None


def refuse_where(
    bad: NDArray[np.bool_],
    column: pa.ChunkedArray,
    *,
    field: str,
    wrong: str,
    hint: str | None,
    source: Source,
) -> None:
    """Raise an InputError for the first row where `bad` is true; `wrong` follows the value in the message."""
    row = first_row(bad)
    if row is not None:
        value = column[row - 1].as_py()
        raise InputError(f"{value!r} {wrong}", source=source, row=row, field=field, hint=hint)


def _require(table: pa.Table, required: Collection[str], hints: Mapping[str, str], source: Source) -> None:
    missing = [name for name in required if name not in table.column_names]
    if missing:
        found = ", ".join(table.column_names) or "none"
        raise InputError(
            f"missing column (columns found: {found})",
            source=source,
            field=missing[0],
            hint=f"needed: {missing[0]}, {hints[missing[0]]}" if missing[0] in hints else None,
        )


def cast_column(column: pa.ChunkedArray, field: pa.Field, *, hint: str | None, source: Source) -> pa.Array:
    """The column in the field's type, in one chunk; the first value that does not fit is named."""
    try:
        cast = column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = _first_uncastable(column, field.type)
        problem = (
            f"a column of {column.type} where {field.type} is needed"
            if row is None
            else f"{column[row - 1].as_py()!r} does not fit"
        )
        raise InputError(problem, source=source, row=row, field=field.name, hint=hint) from error
    return cast.combine_chunks() if isinstance(cast, pa.ChunkedArray) else cast


def _first_uncastable(column: pa.ChunkedArray, to: pa.DataType) -> int | None:
    """Return the row at which the cast fails, for the error message. Slow."""
    for row, value in enumerate(column, start=1):
        try:
            value.cast(to)
        except pa.ArrowNotImplementedError:
            return None
        except pa.ArrowInvalid:
            return row
    return None
