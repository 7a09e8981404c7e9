"""Requests from Parquet and CSV: our own columns, or those of Azure's public traces."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.workloads.columns import cast_column, refuse_twice
from lengthwise.workloads.files import open_text, read_parquet_table
from lengthwise.workloads.workload import SCHEMA, LeftOut, Workload

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""Columns of the Azure LLM inference traces (2023 and 2024)."""

_METADATA = b"lengthwise.workload"
_AZURE_TIME = "a time such as 2023-11-16 18:15:46.6805900"
_IN_CSV = [field for field in SCHEMA if field.name != "block_hashes"]
_TYPES = {field.name: field.type for field in _IN_CSV} | dict(
    zip(AZURE, (pa.string(), pa.int64(), pa.int64()), strict=True)
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Columns as a file has them, not yet checked; None where the file does not say."""

    table: pa.Table
    name: str | None = None
    block_size: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    own_names: Mapping[str, str] = field(default_factory=dict)
    """What the file calls our columns, for errors about it."""


def read_parquet(path: Path) -> Parsed:
    """A Parquet file, ours (name, block size and rows left out are kept inside) or anybody's."""
    table = read_parquet_table(path)
    kept = json.loads((table.schema.metadata or {}).get(_METADATA, b"{}"))
    left_out = tuple(LeftOut(**entry) for entry in kept.pop("left_out", ()))
    azure = _from_azure(table, path)
    return azure if azure is not None else Parsed(table, left_out=left_out, **kept)


def write_parquet(workload: Workload, path: Path) -> None:
    """All columns, with name, block size and rows left out in the schema's metadata."""
    kept = {
        "name": workload.name,
        "block_size": workload.block_size,
        "left_out": [{"rule": entry.rule, "rows": entry.rows} for entry in workload.left_out],
    }
    table = workload.table.replace_schema_metadata({_METADATA: json.dumps(kept).encode()})
    pq.write_table(table, path, compression="zstd")


def read_csv(path: Path) -> Parsed:
    """A CSV file with a header; Arrow's reader, and where that stumbles a slow one that can say why."""
    with open_text(path) as stream:
        header = next(csv.reader(stream), [])
    refuse_twice(header, path)
    wanted = [name for name in header if name in _TYPES]
    try:
        table = pyarrow.csv.read_csv(
            path,
            # Only prompts hold line breaks, and looking out for them costs a third of the time.
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values="prompt" in wanted),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: _TYPES[name] for name in wanted},
                include_columns=wanted,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, OSError):
        table = _read_csv_slowly(path)
    table = table if wanted else pa.table({name: [] for name in header})
    azure = _from_azure(table, path)
    return azure if azure is not None else Parsed(table)


def write_csv(workload: Workload, path: Path) -> None:
    """The columns that hold something. Block hashes do not go into CSV: it has no lists."""
    table = workload.table.drop_columns(["block_hashes"])
    empty = [name for name in table.column_names if table[name].null_count == len(table)]
    if not workload.priority.any():
        empty.append("priority")
    pyarrow.csv.write_csv(table.drop_columns(empty), path)


def _from_azure(table: pa.Table, source: Path) -> Parsed | None:
    """Azure's columns under our names, times as seconds since the first; None for any other table."""
    if not set(AZURE) <= set(table.column_names):
        return None
    time, context, generated = (table[name] for name in AZURE)
    columns = {"arrival_s": _seconds(time, source), "input_tokens": context, "output_tokens": generated}
    return Parsed(pa.table(columns), own_names=dict(zip(columns, AZURE, strict=True)))


def _seconds(time: pa.ChunkedArray, source: Path) -> NDArray[np.float64]:
    if time.null_count:
        row = time.is_null().to_pylist().index(True) + 1
        raise InputError("has no value", source=source, row=row, field=AZURE[0], hint=_AZURE_TIME)
    # The traces of 2024 write a time zone, those of 2023 do not; Arrow wants to know beforehand.
    zoned = pa.types.is_string(time.type) and len(time) and time[0].as_py().endswith(("Z", "+00:00"))
    as_time = pa.field(AZURE[0], pa.timestamp("ns", tz="UTC" if zoned else None))
    stamps = cast_column(time, as_time, hint=_AZURE_TIME, source=source)
    nanoseconds = stamps.cast(pa.int64()).to_numpy()
    seconds: NDArray[np.float64] = (nanoseconds - nanoseconds[:1]) / 1e9
    return seconds


def _read_csv_slowly(path: Path) -> pa.Table:
    with open_text(path) as stream:
        rows = csv.reader(stream)
        header = next(rows)
        columns: dict[str, list[Any]] = {name: [] for name in header if name in _TYPES}
        try:
            for row, cells in enumerate(filter(None, rows), start=1):
                for name, cell in zip(header, _whole_row(cells, header, path, row), strict=True):
                    if name in columns:
                        columns[name].append(_cell(cell, name, path, row))
        except csv.Error as error:
            raise InputError(f"is not CSV: {error}", source=path, row=rows.line_num - 1) from error
    return pa.table({name: pa.array(values, _TYPES[name]) for name, values in columns.items()})


def _whole_row(cells: list[str], header: list[str], path: Path, row: int) -> list[str]:
    if len(cells) == len(header):
        return cells
    raise InputError(
        f"{len(cells)} fields where the header has {len(header)}",
        source=path,
        row=row,
        field=header[min(len(cells), len(header) - 1)],
        hint="the file looks truncated or the row is broken",
    )


def _cell(cell: str, name: str, path: Path, row: int) -> str | float | int | None:
    kind = _TYPES[name]
    if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        return cell or None
    if not cell.strip():
        return None
    try:
        number = float(cell)
    except ValueError:
        number = np.nan
    whole = pa.types.is_integer(kind)
    if np.isnan(number) or (whole and not number.is_integer()):
        needed = "a whole number" if whole else "a number"
        raise InputError(f"{cell!r} is not {needed}", source=path, row=row, field=name, hint="mend the row")
    return int(number) if whole else number
