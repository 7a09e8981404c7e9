"""Random workloads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lengthwise.traffic.rows import LIMITS
from lengthwise.workloads import Workload

BLOCK = 16

# Texts that a file can hold: no lone surrogates, and no NUL, which CSV readers refuse.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=12)
uint64 = st.integers(0, 2**64 - 1)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    input_tokens = draw(st.integers(1, 200))
    return {
        "input_tokens": input_tokens,
        "output_tokens": draw(st.integers(1, 10_000)),
        "block_hashes": draw(st.lists(uint64, max_size=input_tokens // BLOCK)),
        "prompt": draw(st.none() | texts),
        "sample_mean": draw(st.none() | st.floats(0.5, 1e4)),
        "llm": draw(st.none() | texts),
        "max_tokens": draw(st.none() | st.integers(1, 10_000)),
        "priority": draw(st.integers(-3, 3)),
        "tenant": draw(st.none() | texts),
        "session": draw(st.none() | texts),
        "template": draw(st.none() | texts),
        "request_class": draw(st.none() | texts),
        **{name: draw(st.none() | st.floats(1e-3, 1e5)) for name in LIMITS},
    }


@st.composite
def workloads(draw: st.DrawFn, *, blocks: bool = True) -> Workload:
    rows = draw(st.lists(requests(), min_size=1, max_size=8))
    arrivals = sorted(draw(st.lists(st.floats(0, 1e5), min_size=len(rows), max_size=len(rows))))
    table = pa.table(
        {
            "arrival_s": arrivals,
            "block_hashes": pa.array([row.pop("block_hashes") for row in rows], pa.list_(pa.uint64())),
            **{name: pa.array([row[name] for row in rows], _TYPES.get(name)) for name in rows[0]},
        }
    )
    if not blocks:
        table = table.drop_columns(["block_hashes"])
    return Workload.from_table(table, name="random", block_size=BLOCK)


_TYPES = {
    "prompt": pa.string(),
    "sample_mean": pa.float64(),
    "llm": pa.string(),
    "max_tokens": pa.int64(),
    "tenant": pa.string(),
    "session": pa.string(),
    "template": pa.string(),
    "request_class": pa.string(),
    **dict.fromkeys(LIMITS, pa.float64()),
}
