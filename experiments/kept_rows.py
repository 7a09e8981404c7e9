"""Adding the rows of a measurement to those that are kept of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def add_rows(kept: pa.Table, new: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return every row and column of both tables; where both have a value of a row, the new one counts.

    `keys` name a row, at most once in each table.
    """
    rows_of_tables = [list(zip(*(table[key].to_pylist() for key in keys), strict=True)) for table in (kept, new)]
    every = list(dict.fromkeys(row for rows in rows_of_tables for row in rows))
    aligned = []
    for table, rows in zip((kept, new), rows_of_tables, strict=True):
        place = {row: at for at, row in enumerate(rows)}
        aligned.append(table.take(pa.array([place.get(row) for row in every], pa.int64())))
    columns = {}
    for name in dict.fromkeys([*kept.column_names, *new.column_names]):
        parts = [table[name] for table in reversed(aligned) if name in table.column_names]
        columns[name] = pc.coalesce(*parts) if len(parts) > 1 else parts[0]
    return pa.table(columns)
