"""Access to an engine's arrays by address, and how kernel functions are compiled.

Numba counts references to an array at each use, which takes longer than the simulation itself. An engine's record
carries the addresses of its arrays instead; the host keeps the arrays alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from lengthwise.compiled import inlined
from lengthwise.simulator.kernel.records import ARRAYS, ENGINE, Record

At = Callable[[Record, int | np.integer[Any]], Record]


def _at(name: str) -> At:
    """Return an intrinsic that gives the record at an index of one of an engine's arrays, by reference."""
    record, size = numba.from_dtype(ARRAYS[name]), ARRAYS[name].itemsize
    field = ENGINE.fields
    offset = 0 if field is None else field[name][1]

    @intrinsic  # type: ignore[untyped-decorator]
    def at(typing_context: Any, engine: Any, index: Any) -> Any:

        def place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            owner, number = arguments
            begin = builder.load(cgutils.get_record_member(builder, owner, offset, context.get_data_type(types.int64)))
            address = builder.add(begin, builder.mul(number, context.get_constant(types.int64, size)))
            return builder.inttoptr(address, context.get_value_type(signature.return_type))

        return record(engine, types.int64), place

    return cast("At", at)


@intrinsic  # type: ignore[untyped-decorator]
def engine_at(typing_context: Any, address: Any) -> Any:
    """Return the record of an engine by its address."""

    def place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return numba.from_dtype(ENGINE)(types.int64), place


@intrinsic  # type: ignore[untyped-decorator]
def copy(typing_context: Any, to: Any, source: Any) -> Any:
    """Copy one record over another of the same type."""

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = context.get_constant(types.int64, signature.args[0].size)
        cgutils.raw_memcpy(builder, *arguments, size, 1)
        return context.get_dummy_value()

    return types.void(to, source), write


request_at = _at("requests")
progress_at = _at("progress")
key_at = _at("keys")  # at (column * stages + stage) * requests + row
predicted_lengths_at = _at("predicted_length")
hash_offset_at = _at("hash_offsets")
hash_at = _at("hashes")
median_at = _at("medians")  # at `prediction_of`
cap_at = _at("caps")
bin_at = _at("bins")
arrival_at = _at("arrivals")
job_at = _at("jobs")  # at `prediction_of`
rank_table_at = _at("rank_tables")
lanes_at = _at("lanes")
groups_at = _at("groups")
target_at = _at("target")
limits_at = _at("limits")
calibration_at = _at("calibration")
by_deadline_at = _at("by_deadline")
row_at = _at("rows")
waiting_at = _at("waiting")
running_at = _at("running")
level_at = _at("levels")
event_at = _at("events")
sample_at = _at("samples")
block_at = _at("blocks")
index_at = _at("index")
table_at = _at("tables")  # at table * positions + position
free_table_at = _at("free_tables")
demand_at = _at("demands")
growth_at = _at("growth")


@inlined
def prediction_of(engine: Record, row: int) -> int:
    """Index of a request's prediction, by whether a late one has arrived, in arrays of [stage, request]."""
    return int(progress_at(engine, row).predicted * engine.requests_size + row)
