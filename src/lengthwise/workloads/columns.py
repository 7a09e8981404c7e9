"""Arrow columns: bring a table to a schema, naming the first cell that does not fit, and block hashes as lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.prefixes import BLOCK_TOKENS, hash_text, rechain

Source = str | Path | None


def conform(
    table: pa.Table,
    schema: pa.Schema,
    *,
    required: Collection[str],
    hints: Mapping[str, str],
    source: Source = None,
) -> pa.Table:
    """Return the schema's columns in its order and types, in one chunk; absent optional ones become null.

    Other columns are dropped.
    """
    refuse_twice([name for name in table.column_names if name in schema.names], source)
    require_columns(table, required, source, hints)
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(len(table), field.type))
            continue
        column = table.column(field.name)
        if field.name in required:
            refuse_null(column, field=field.name, hint=hints.get(field.name), source=source)
        columns.append(cast_column(column, field, hint=hints.get(field.name), source=source))
    return pa.table(columns, schema=schema)


def refuse_twice(names: Sequence[str], source: Source) -> None:
    """Raise InputError for a duplicate column."""
    for name in names:
        if names.count(name) > 1:
            raise InputError("is a duplicate column", source=source, field=name, hint="keep one of the columns")


def first_row(bad: NDArray[np.bool_]) -> int | None:
    """Return the index of the first true value, counted from 1."""
    return int(np.argmax(bad)) + 1 if bad.any() else None


def refuse_null(
    column: pa.ChunkedArray, *, field: str, hint: str | None, source: Source, wrong: str = "has no value"
) -> None:
    """Raise an InputError for the first row without a value."""
    if column.null_count:
        row = first_row(pc.is_null(column).to_numpy())
        raise InputError(wrong, source=source, row=row, field=field, hint=hint)


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


def require_columns(
    table: pa.Table, required: Collection[str], source: Source, hints: Mapping[str, str] | None = None
) -> None:
    """Raise InputError for the first column that is missing."""
    missing = next((name for name in required if name not in table.column_names), None)
    if missing is not None:
        found, hint = ", ".join(table.column_names) or "none", (hints or {}).get(missing)
        needed = ", ".join(required) if hint is None else f"{missing}, {hint}"
        raise InputError(
            f"missing column (columns found: {found})", source=source, field=missing, hint=f"needed: {needed}"
        )


def cast_column(column: pa.ChunkedArray, field: pa.Field, *, hint: str | None, source: Source) -> pa.Array:
    """Cast a column to the field's type, in one chunk; an InputError names the first value that does not fit."""
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


def stream_block_lists(stream_ids: NDArray[np.integer], counts: NDArray[np.integer]) -> pa.ListArray:
    """Return one list per request: the first `counts[i]` blocks of stream `stream_ids[i]`.

    Streams stand in for conversations whose text is not recorded: prompts of the same stream share their beginning,
    two streams share nothing.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    values = rechain(within.astype(np.uint64), np.repeat(stream_ids, counts).astype(np.uint64))
    return block_lists(values, counts)


def block_lists(values: NDArray[np.uint64], counts: NDArray[np.integer]) -> pa.ListArray:
    """Split a flat array of hashes into one list per request."""
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, pa.uint64()))


def text_block_lists(texts: Sequence[str], input_tokens: NDArray[np.integer]) -> pa.ListArray:
    """Return `hash_text` of each prompt, as blocks of BLOCK_TOKENS tokens.

    Where a text has more bytes per token than the usual four, its last blocks would lie beyond its tokens;
    they are dropped, so that no prompt has more cached tokens than tokens.
    """
    hashes = [hash_text(text)[: n // BLOCK_TOKENS] for text, n in zip(texts, input_tokens, strict=True)]
    counts = np.array([len(row) for row in hashes], np.int64)
    return block_lists(np.concatenate([np.empty(0, np.uint64), *hashes]), counts)
