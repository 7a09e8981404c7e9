"""A content hash of an Arrow table that does not see how the table is cut into chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def fingerprint(table: pa.Table, *, salt: str = "") -> str:
    """First 16 hex digits of a SHA-256 over names, types and every cell, nulls told from zeros."""
    digest = hashlib.sha256(salt.encode())
    for field in table.schema:
        digest.update(f"\0{field.name}\0{field.type}\0{len(table)}\0".encode())
        for part in _parts(table[field.name].combine_chunks()):
            digest.update(part)
    return digest.hexdigest()[:16]


def _parts(array: pa.Array) -> Iterator[bytes | memoryview]:
    """Byte strings that together say the array and nothing but the array."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    yield np.packbits(pc.is_valid(array).to_numpy(zero_copy_only=False)).tobytes()
    if array.null_count == len(array):
        return
    if pa.types.is_list(array.type):
        yield pc.fill_null(pc.list_value_length(array), 0).to_numpy().tobytes()
        yield from _parts(array.flatten())
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        filled = pc.fill_null(array.cast(pa.large_string()), "")
        yield pc.binary_length(filled).to_numpy().tobytes()
        yield _text(filled)
    else:
        # Adding zero makes -0.0 and 0.0, which are equal, one and the same.
        yield (pc.fill_null(array, 0).to_numpy() + 0).tobytes()


def _text(array: pa.LargeStringArray) -> memoryview:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[[array.offset, array.offset + len(array)]]
    return memoryview(data or b"")[ends[0] : ends[1]]
