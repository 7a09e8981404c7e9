"""One list of fields gives the row its Arrow schema and its NumPy dtype."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pyarrow as pa

from lengthwise.bench.store import SCHEMA
from lengthwise.client.collect import Answer
from lengthwise.client.load import Sample
from lengthwise.gateway.recent_requests import ROW
from lengthwise.simulator import Outcome
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


def test_every_record_of_a_request_is_a_projection_of_the_row() -> None:
    """A record has fields of the row under its names, and columns that say what only it knows."""
    own = {
        Sample: {"due_s", "asked_tokens", "error", "gaps_s"},
        Answer: {"prompt", "sample"},
        Outcome: {"engines", "trace", "accelerated", "handover", "session"},
    }
    for record, columns in own.items():
        assert {field.name for field in dataclasses.fields(record)} - columns <= set(RequestRow._fields), record
    assert set(SCHEMA.names) - {"kind", "block", "place", "copy", "prompt", "due_s"} <= set(RequestRow._fields)
    assert set(ROW.names or ()) <= set(RequestRow._fields)
