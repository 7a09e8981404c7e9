"""`Workload`: requests in order of arrival, as an immutable Arrow table with a content hash."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.traffic.rows import LIMITS
from lengthwise.workloads.columns import conform, refuse_where


def fingerprint(table: pa.Table, *, salt: str = "") -> str:
    """Return the first 16 hex digits of a SHA-256 over names, types and every cell; nulls differ from zeros."""
    digest = hashlib.sha256(salt.encode())
    for column in table.schema:
        digest.update(f"\0{column.name}\0{column.type}\0{len(table)}\0".encode())
        for part in _parts(table[column.name].combine_chunks()):
            digest.update(part)
    return digest.hexdigest()[:16]


def _parts(array: pa.Array) -> Iterator[bytes | memoryview]:
    """Yield byte strings that identify the array."""
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
        # Adding zero turns -0.0 into 0.0, which it equals.
        yield (pc.fill_null(array, 0).to_numpy() + 0).tobytes()


def _text(array: pa.LargeStringArray) -> memoryview:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[[array.offset, array.offset + len(array)]]
    return memoryview(data or b"")[ends[0] : ends[1]]


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Statistics of lengths, in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, tokens: NDArray[np.int64]) -> LengthStatistics:
        """Return the statistics of lengths; zeros without any."""
        if not len(tokens):
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        p50, p90, p99 = np.quantile(tokens, [0.5, 0.9, 0.99])
        return cls(float(tokens.mean()), float(p50), float(p90), float(p99), int(tokens.max()))


@dataclass(frozen=True, slots=True)
class WorkloadStatistics:
    """Summary of a workload.

    `rate` is requests per second, None for a batch. `arrival_cv` is the coefficient of variation of the gaps
    (1 for Poisson). `repeated_prefix` is the share of prompt tokens that an unlimited prefix cache
    would hold, in order of arrival; None where prefixes are not known.
    """

    requests: int
    duration_s: float
    rate: float | None
    arrival_cv: float | None
    input: LengthStatistics
    output: LengthStatistics
    repeated_prefix: float | None


def _arrival_cv(arrival_s: NDArray[np.float64]) -> float | None:
    gaps = np.diff(arrival_s)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return float(gaps.std() / mean) if mean > 0 else None


def _repeated_prefix(workload: Workload) -> float | None:
    if workload.block_size is None:
        return None
    values, offsets = workload.block_values, workload.block_offsets
    counts = np.diff(offsets)
    new = np.zeros(len(values), bool)
    new[np.unique(values, return_index=True)[1]] = True
    # Only the blocks before a prompt's first new block are a repeated prefix. `next_new[i]` is the first new
    # block at or after i, in any row; the minimum with the end of the row limits it to the row.
    where_new = np.append(np.flatnonzero(new), len(values))
    next_new = where_new[np.searchsorted(where_new, offsets[:-1])]
    repeated_blocks = np.minimum(next_new, offsets[1:]) - offsets[:-1]
    tokens = np.minimum(repeated_blocks * workload.block_size, workload.input_tokens)
    total = int(workload.input_tokens.sum())
    return float(tokens[counts > 0].sum() / total) if total else math.nan


SCHEMA = pa.schema(
    [
        pa.field("arrival_s", pa.float64(), nullable=False),
        pa.field("input_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("block_hashes", pa.list_(pa.uint64())),
        # Long conversations exceed the 2 GiB limit of a plain string column.
        pa.field("prompt", pa.large_string()),
        pa.field("sample_mean", pa.float64()),
        pa.field("llm", pa.string()),
        pa.field("max_tokens", pa.int64()),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("tenant", pa.string()),
        pa.field("session", pa.string()),
        pa.field("template", pa.string()),
        pa.field("think_s", pa.float64()),
        pa.field("request_class", pa.string()),
        pa.field("ttft_limit_s", pa.float64()),
        pa.field("per_token_limit_s", pa.float64()),
        pa.field("e2e_limit_s", pa.float64()),
    ]
)
_NOT_HASHED_EMPTY = (
    "template",
    "think_s",
    "request_class",
    *LIMITS,
)  # so that workloads without them keep the content hash that they had

_REQUIRED = ("arrival_s", "input_tokens", "output_tokens")
HINTS = {
    "arrival_s": "seconds from the start of the workload, a finite number of at least 0, never falling",
    "input_tokens": "a whole number of tokens, at least 1",
    "output_tokens": "a whole number of tokens, at least 1",
    "block_hashes": "a list of whole numbers from 0 to 2^64 - 1, one per block of the prompt",
    "sample_mean": "a finite number of tokens above 0, or nothing",
    "max_tokens": "a whole number of tokens, at least 1, or nothing",
    "priority": "a whole number, lower runs first, 0 by default",
    "think_s": "seconds after the answer to the session's turn before, a finite number of at least 0, or nothing",
    **dict.fromkeys(LIMITS, "seconds from the arrival, a finite number above 0, or nothing for no limit"),
}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of the source that are not in the workload, and the rule that left them out."""

    rule: str
    rows: int


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests sorted by arrival. Build one with `from_table`, which checks every cell once.

    `block_size` is the number of tokens a block hash stands for, None where no prefixes are known. A request with
    `think_s` arrives so many seconds after the answer to the turn before, the row above of its tenant and session, and
    not before its `arrival_s`: a closed loop. Where there is no such row it arrives at `arrival_s`.
    Two workloads are equal when their requests and block size are; name and provenance do not count.
    """

    table: pa.Table
    name: str
    block_size: int | None = None
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def from_table(
        cls,
        table: pa.Table | Mapping[str, Any],
        *,
        name: str,
        block_size: int | None = None,
        left_out: tuple[LeftOut, ...] = (),
        source: str | Path | None = None,
    ) -> Self:
        """Validate a table or a mapping of columns; an InputError names the first bad row."""
        raw = table if isinstance(table, pa.Table) else pa.table(dict(table))
        source = name if source is None else source
        requests = conform(raw, SCHEMA, required=_REQUIRED, hints=HINTS, source=source)
        requests = requests.set_column(
            SCHEMA.get_field_index("priority"),
            SCHEMA.field("priority"),
            pc.fill_null(requests["priority"], 0),
        )
        _check_arrivals(requests, source)
        _check_numbers(requests, source)
        _check_sessions(requests, source)
        _check_blocks(requests, block_size, source)
        has_blocks = requests["block_hashes"].null_count < len(requests)
        return cls(requests, name, block_size if has_blocks else None, left_out)

    def __repr__(self) -> str:
        return f"Workload({self.name!r}, {len(self):,} requests)"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Workload):
            return NotImplemented
        return self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    @cached_property
    def arrival_s(self) -> NDArray[np.float64]:
        """Seconds from the start of the workload, sorted."""
        return self._numbers("arrival_s")

    @cached_property
    def input_tokens(self) -> NDArray[np.int64]:
        """Tokens of the prompt."""
        return self._numbers("input_tokens")

    @cached_property
    def output_tokens(self) -> NDArray[np.int64]:
        """True length of the answer; not visible to policies."""
        return self._numbers("output_tokens")

    @cached_property
    def priority(self) -> NDArray[np.int32]:
        """Lower runs first, as in vLLM."""
        return self._numbers("priority")

    @cached_property
    def sample_mean(self) -> NDArray[np.float64]:
        """Mean of the prompt's clean samples; NaN where unknown."""
        return cast("NDArray[np.float64]", pc.fill_null(self.table["sample_mean"], math.nan).to_numpy())

    def limit(self, name: str) -> NDArray[np.float64]:
        """Return one of the columns `LIMITS`, in seconds; infinite where a request has no limit."""
        return cast("NDArray[np.float64]", pc.fill_null(self.table[name], math.inf).to_numpy())

    @property
    def has_limits(self) -> bool:
        """Whether any request has a latency limit of its own."""
        return any(self.table[name].null_count < len(self) for name in LIMITS)

    @cached_property
    def session_numbers(self) -> NDArray[np.int64]:
        """The number of each request's session, in order of their first requests; -1 for a request without one.

        Sessions of the same name that belong to different tenants are different ones.
        """
        names, tenants = (self.table[name].to_pylist() for name in ("session", "tenant"))
        known: dict[tuple[str | None, str], int] = {}
        numbers = [
            -1 if name is None else known.setdefault((tenant, name), len(known))
            for tenant, name in zip(tenants, names, strict=True)
        ]
        return np.array(numbers, np.int64)

    @property
    def has_think_times(self) -> bool:
        """Whether any request waits for the answer to an earlier turn: a closed loop."""
        return bool(self.table["think_s"].null_count < len(self))

    @cached_property
    def think_s(self) -> NDArray[np.float64]:
        """Seconds from the answer to the turn before until the request arrives; NaN where it waits for no answer."""
        return cast("NDArray[np.float64]", pc.fill_null(self.table["think_s"], math.nan).to_numpy())

    @cached_property
    def next_turn(self) -> NDArray[np.int64]:
        """The row of the request that waits for the answer to this one; -1: none does."""
        following = np.full(len(self), -1, np.int64)
        last: dict[int, int] = {}
        waits = ~np.isnan(self.think_s)
        for row, session in enumerate(self.session_numbers.tolist()):
            if session >= 0:
                before = last.get(session)
                if before is not None and waits[row]:
                    following[before] = row
                last[session] = row
        return following

    @cached_property
    def block_offsets(self) -> NDArray[np.int64]:
        """Row i's hashes are `block_values[block_offsets[i]:block_offsets[i + 1]]`."""
        counts = pc.fill_null(pc.list_value_length(self.table["block_hashes"]), 0).to_numpy()
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @cached_property
    def block_values(self) -> NDArray[np.uint64]:
        """All block hashes end to end."""
        flat = self.table["block_hashes"].combine_chunks().flatten()
        return cast("NDArray[np.uint64]", flat.to_numpy(zero_copy_only=False))

    def blocks(self, row: int) -> NDArray[np.uint64]:
        """Return the block hashes of one request; empty where none are known."""
        return self.block_values[self.block_offsets[row] : self.block_offsets[row + 1]]

    @property
    def has_blocks(self) -> bool:
        """Whether any request has block hashes."""
        return self.block_size is not None

    @property
    def has_arrivals(self) -> bool:
        """False if all requests arrive at the same time: a list of lengths, or an offline batch."""
        return self.duration_s > 0

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate(self) -> float:
        """Requests per second, counted over the gaps between arrivals; infinite for a batch."""
        return (len(self) - 1) / self.duration_s if self.has_arrivals else math.inf

    @cached_property
    def content_hash(self) -> str:
        """Digest of all cells, 16 hex digits; independent of the name and of the chunking of the table."""
        empty = [name for name in _NOT_HASHED_EMPTY if self.table[name].null_count == len(self)]
        return fingerprint(self.table.drop_columns(empty), salt=f"block_size={self.block_size}")

    def describe(self) -> WorkloadStatistics:
        """Return rate, burstiness, lengths and the repeated share of the prompts."""
        return WorkloadStatistics(
            requests=len(self),
            duration_s=self.duration_s,
            rate=self.rate if self.has_arrivals else None,
            arrival_cv=_arrival_cv(self.arrival_s),
            input=LengthStatistics.of(self.input_tokens),
            output=LengthStatistics.of(self.output_tokens),
            repeated_prefix=_repeated_prefix(self),
        )

    def head(self, n: int) -> Workload:
        """Return the first n requests."""
        return Workload.from_table(
            self.table.slice(0, n), name=self.name, block_size=self.block_size, left_out=self.left_out
        )

    def take(self, rows: NDArray[np.int64], **columns: Any) -> Workload:
        """Return these rows in this order, with `columns` replaced: reordering usually means new arrivals."""
        return self._with(self.table.take(pa.array(rows)), columns)

    def replace(self, **columns: Any) -> Workload:
        """Return the same requests with other columns (arrays or one value for all) or another `block_size`."""
        return self._with(self.table, columns)

    def limited_to(self, max_tokens: int | None) -> Workload:
        """Return the same requests with `max_tokens` limited, which truncates true lengths; None changes nothing."""
        if max_tokens is None:
            return self
        return self.replace(max_tokens=max_tokens, output_tokens=np.minimum(self.output_tokens, max(1, max_tokens)))

    def _with(self, table: pa.Table, columns: dict[str, Any]) -> Workload:
        block_size = columns.pop("block_size", self.block_size)
        for name, values in columns.items():
            if name not in SCHEMA.names:
                known = ", ".join(SCHEMA.names)
                raise InputError("no such column", source=self.name, field=name, hint=f"known: {known}")
            field = SCHEMA.field(name)
            column = _as_column(values, len(table), field.type)
            table = table.set_column(SCHEMA.get_field_index(name), name, column)
        return Workload.from_table(table, name=self.name, block_size=block_size, left_out=self.left_out)

    def _numbers(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = self.table[name].to_numpy()
        values.setflags(write=False)
        return values


def _as_column(values: Any, n: int, kind: pa.DataType) -> Any:
    """Return an array unchanged (its type is checked later), and a scalar or None as a column."""
    if values is None or isinstance(values, (str, int, float)):
        return pa.repeat(pa.scalar(values, kind), n)
    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)


def _check_arrivals(table: pa.Table, source: str | Path) -> None:
    column = table["arrival_s"]
    arrival = column.to_numpy()
    for bad, wrong, hint in (
        (~np.isfinite(arrival), "is not a time", HINTS["arrival_s"]),
        (_falls(arrival), "is before the arrival of the row above", "sort the requests by arrival"),
        (arrival < 0, "is before the start", HINTS["arrival_s"]),
    ):
        refuse_where(bad, column, field="arrival_s", wrong=wrong, hint=hint, source=source)


def _falls(arrival: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.concatenate([[False], arrival[1:] < arrival[:-1]])


def _check_numbers(table: pa.Table, source: str | Path) -> None:
    for name in ("input_tokens", "output_tokens", "max_tokens"):
        column = table[name]
        bad = pc.fill_null(pc.less(column, 1), False).to_numpy()
        refuse_where(bad, column, field=name, wrong="is below 1", hint=HINTS[name], source=source)
    for name, wrong in (("sample_mean", "is no mean"), *((limit, "is no limit") for limit in LIMITS)):
        column = table[name]
        fine = pc.and_(pc.is_finite(column), pc.greater(column, 0.0))
        bad = ~pc.fill_null(fine, True).to_numpy()
        refuse_where(bad, column, field=name, wrong=wrong, hint=HINTS[name], source=source)


def _check_sessions(table: pa.Table, source: str | Path) -> None:
    column = table["think_s"]
    fine = pc.and_(pc.is_finite(column), pc.greater_equal(column, 0.0))
    bad = ~pc.fill_null(fine, True).to_numpy()
    refuse_where(bad, column, field="think_s", wrong="is no think time", hint=HINTS["think_s"], source=source)
    alone = pc.and_(pc.is_valid(column), pc.is_null(table["session"])).to_numpy()
    hint = "name the session whose answer it waits for, or leave think_s out"
    refuse_where(alone, column, field="think_s", wrong="without a session", hint=hint, source=source)


def _check_blocks(table: pa.Table, block_size: int | None, source: str | Path) -> None:
    column = table["block_hashes"]
    if column.null_count == len(table):
        return
    if block_size is None or block_size < 1:
        raise InputError(
            f"a block size of {block_size} tokens",
            source=source,
            field="block_hashes",
            hint="give the tokens per block hash (Mooncake: 512, Lengthwise: 64)",
        )
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    most = -(-table["input_tokens"].to_numpy() // block_size)
    refuse_where(
        counts > most,
        pc.list_value_length(column),
        field="block_hashes",
        wrong=f"blocks of {block_size} tokens are more than the prompt has",
        hint="at most input_tokens / block size, rounded up",
        source=source,
    )


@dataclass(frozen=True, slots=True)
class Parsed:
    """Columns of a file before validation; None where the file does not specify a value."""

    table: pa.Table
    name: str | None = None
    block_size: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Names of our columns in the file, for error messages."""
