"""One list of fields gives the row its Arrow schema and its NumPy dtype."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from lengthwise.traffic.rows import RequestRow, row_dtype, row_schema


def test_a_row_that_knows_nothing_but_its_arrival_fits_the_schema() -> None:
    row = RequestRow(arrival_s=1.5)
    table = pa.Table.from_pylist([row._asdict()], schema=row_schema())
    assert table.column_names == list(RequestRow._fields)
    assert RequestRow(**table.to_pylist()[0]) == row


def test_a_projection_has_the_types_of_the_row() -> None:
    schema = row_schema(["request", "arrival_s", "source", "censored"])
    assert schema.types == [pa.int64(), pa.float64(), pa.string(), pa.bool_()]


def test_a_missing_number_is_nan_in_numpy_and_a_text_is_a_number() -> None:
    dtype = row_dtype(["arrival_s", "started_s", "max_tokens", "tenant", "censored"])
    assert [dtype[name].str for name in dtype.names or ()] == ["<f8", "<f8", "<f8", "<i2", "|b1"]
    rows = np.array([(1.0, math.nan, math.nan, 3, True)], dtype)
    assert rows["tenant"].tolist() == [3]
