"""Workloads as JSON: Mooncake lines (timestamp, input_length, output_length, hash_ids) and ShareGPT conversations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.workloads.blocks import BLOCK_TOKENS, BYTES_PER_TOKEN, text_block_lists
from lengthwise.workloads.files import open_text
from lengthwise.workloads.workload import SCHEMA, LeftOut, Parsed, Workload

MOONCAKE_BLOCK_TOKENS = 512
TICK_S = 3.0
"""Mooncake's published timestamps are multiples of three seconds."""

_EXTRA = ("prompt", "sample_mean", "llm", "max_tokens", "priority", "tenant", "session")
_FILE_SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.float64()),
        pa.field("input_length", pa.int64()),
        pa.field("output_length", pa.int64()),
        pa.field("hash_ids", pa.list_(pa.int64())),
        *(SCHEMA.field(name).with_nullable(True) for name in _EXTRA),
        pa.field("block_size", pa.int64()),
    ]
)
_OWN_NAMES = {
    "arrival_s": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "block_hashes": "hash_ids",
}
_HINTS = {
    "timestamp": "milliseconds from the start, a number",
    "input_length": "a whole number of tokens, at least 1",
    "output_length": "a whole number of tokens, at least 1",
    "hash_ids": "a list of whole numbers, one per block",
}
_READ_BLOCK_BYTES = 16 << 20


def read_mooncake(path: Path) -> Parsed:
    """Read Mooncake's lines; milliseconds become seconds."""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            table = pyarrow.json.read_json(
                stream,
                read_options=pyarrow.json.ReadOptions(block_size=_READ_BLOCK_BYTES),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=_FILE_SCHEMA, unexpected_field_behavior="ignore"
                ),
            )
    except (pa.ArrowInvalid, OSError):
        table = _read_slowly(path)
    _check(table, path)
    sizes = pc.unique(table["block_size"]).drop_null().to_pylist()
    if len(sizes) > 1:
        raise InputError(f"several block sizes: {sizes}", source=path, field="block_size", hint="one for all rows")
    known = bool(sizes) or bool(pc.sum(pc.list_value_length(table["hash_ids"])).as_py())
    columns = {ours: table[_OWN_NAMES.get(ours, ours)] for ours in (*_OWN_NAMES, *_EXTRA)}
    # To the nanosecond, so that decimal seconds survive a round trip.
    columns["arrival_s"] = np.round(columns["arrival_s"].to_numpy() / 1e3, 9)
    if not known:
        del columns["block_hashes"]
    return Parsed(pa.table(columns), block_size=sizes[0] if sizes else MOONCAKE_BLOCK_TOKENS, own_names=_OWN_NAMES)


def write_mooncake(workload: Workload, path: Path) -> None:
    """Write one line per request: Mooncake's four keys first, then the columns that are not empty.

    Arrivals are exact to the nanosecond. A block size other than Mooncake's is written to every line, so that any part
    of the file can be read by itself.
    """
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(f"{json.dumps(record, ensure_ascii=False)}\n" for record in _records(workload))


def _records(workload: Workload) -> Iterator[dict[str, Any]]:
    milliseconds = [round(value, 6) for value in (workload.arrival_s * 1e3).tolist()]
    ids = _dense(workload.block_values).tolist()
    offsets = workload.block_offsets.tolist()
    extra = {name: workload.table[name].to_pylist() for name in _EXTRA if _is_filled(workload, name)}
    if workload.block_size not in (None, MOONCAKE_BLOCK_TOKENS):
        extra["block_size"] = [workload.block_size] * len(workload)
    lengths = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    for row, (input_length, output_length) in enumerate(lengths):
        ms = milliseconds[row]
        record: dict[str, Any] = {
            "timestamp": int(ms) if ms.is_integer() else ms,
            "input_length": input_length,
            "output_length": output_length,
            "hash_ids": ids[offsets[row] : offsets[row + 1]],
        }
        record.update((name, values[row]) for name, values in extra.items() if values[row] is not None)
        yield record


def _is_filled(workload: Workload, name: str) -> bool:
    if name == "priority":
        return bool(workload.priority.any())
    return bool(workload.table[name].null_count < len(workload))


def _dense(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Renumber the hashes 0, 1, 2, ... in order of first appearance."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _check(table: pa.Table, source: Path) -> None:
    """Check what needs the field names of the file; Workload checks the rest."""
    for name, hint in _HINTS.items():
        column = table[name]
        if column.null_count == len(table):
            if name != "hash_ids":
                raise InputError("missing key", source=source, row=1, field=name, hint=hint)
        elif column.null_count and name != "hash_ids":
            row = column.is_null().to_pylist().index(True) + 1
            raise InputError("missing key", source=source, row=row, field=name, hint=hint)


def _read_slowly(path: Path) -> pa.Table:
    """Read line by line in Python: accepts more than Arrow does, and names the line and key that are wrong."""
    columns: dict[str, list[Any]] = {name: [] for name in _FILE_SCHEMA.names}
    with open_text(path) as stream:
        for row, line in enumerate((line for line in stream if line.strip()), start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                whole = line.endswith("\n")
                hint = "one JSON object per line" if whole else "the file looks truncated"
                raise InputError(f"not JSON: {error.msg}", source=path, row=row, hint=hint) from error
            if not isinstance(record, dict):
                raise InputError("not a JSON object", source=path, row=row, hint="one request per line")
            for field in _FILE_SCHEMA:
                columns[field.name].append(_value(record.get(field.name), field, path, row))
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in _FILE_SCHEMA})


def _value(value: Any, field: pa.Field, path: Path, row: int) -> Any:  # noqa: ANN401
    """Return the value if it has the right type; Arrow would truncate 1.5 tokens to 1."""
    try:
        scalar = pa.scalar(value, field.type)
        if value is None or scalar.as_py() == value:
            return scalar.as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    hint = _HINTS.get(field.name, f"a value of type {field.type}")
    raise InputError(f"{value!r} does not fit", source=path, row=row, field=field.name, hint=hint)


_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
}
_SHAPE = 'each turn is {"from": "human" or "gpt", "value": the text}'
_NO_PAIR = "conversations without a human turn that is answered"
_EMPTY = "turns answered with an empty text"
_UNANSWERED = "human turns without an answer"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without a tokenizer: one per four bytes of UTF-8, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def read_sharegpt(path: Path, count_tokens: Callable[[str], int] | None = None) -> Parsed:
    """Read one request per answered human turn, with the conversation's id as its session."""
    count = count_tokens or estimate_tokens
    columns: dict[str, list[Any]] = {name: [] for name in ("prompt", "input_tokens", "output_tokens", "session")}
    left_out: Counter[str] = Counter()
    for row, (session, turns) in enumerate(_conversations(path), start=1):
        pairs = list(_pairs(turns, path, row, left_out))
        left_out[_NO_PAIR] += not pairs
        for prompt, answer in pairs:
            columns["prompt"].append(prompt)
            columns["input_tokens"].append(count(prompt))
            columns["output_tokens"].append(count(answer))
            columns["session"].append(session)
    if not columns["prompt"]:
        raise InputError("no conversation has a human turn that is answered", source=path, field="conversations")
    columns["arrival_s"] = [0.0] * len(columns["prompt"])
    rules = tuple(LeftOut(rule, rows) for rule, rows in left_out.items() if rows)
    table = pa.table(
        {
            **columns,
            "prompt": pa.array(columns["prompt"], pa.large_string()),
            "block_hashes": text_block_lists(columns["prompt"], np.array(columns["input_tokens"])),
        }
    )
    return Parsed(table, block_size=BLOCK_TOKENS, left_out=rules)


def _pairs(turns: Any, path: Path, row: int, left_out: Counter[str]) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield each answered human turn: the conversation up to it, and the answer."""
    history = ""
    asked = False
    for role, text in _turns(turns, path, row):
        if role == "assistant" and asked:
            if text:
                yield f"{history}assistant:", text
            else:
                left_out[_EMPTY] += 1
        elif role == "user" and asked:
            left_out[_UNANSWERED] += 1
        asked = role == "user" or (asked and role != "assistant")
        history = f"{history}{role}: {text}\n\n"
    left_out[_UNANSWERED] += asked


def _turns(turns: Any, path: Path, row: int) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    if not isinstance(turns, list):
        raise InputError("no list of turns", source=path, row=row, field="conversations", hint=_SHAPE)
    for turn in turns:
        role = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        for field, value in (("from", role), ("value", text)):
            if not isinstance(value, str):
                raise InputError(f"{value!r} is not a text", source=path, row=row, field=field, hint=_SHAPE)
        yield _ROLES.get(str(role), str(role)), str(text)


def _conversations(path: Path) -> Iterator[tuple[str, Any]]:
    with open_text(path) as stream:
        text = stream.read()
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        row = _row_at(text)
        raise InputError(
            f"not JSON: {error.msg}",
            source=path,
            row=row,
            field="conversations",
            hint="the file looks truncated",
        ) from error
    if not isinstance(data, list):
        raise InputError("not a JSON list", source=path, hint="ShareGPT files are a list of conversations")
    for row, entry in enumerate(data, start=1):
        if not isinstance(entry, dict) or "conversations" not in entry:
            raise InputError("missing key", source=path, row=row, field="conversations", hint=_SHAPE)
        yield str(entry.get("id", row)), entry["conversations"]


def _row_at(text: str) -> int:
    """Return the number of the list entry in which the JSON is invalid."""
    decoder = json.JSONDecoder()
    row, at = 1, text.find("[") + 1
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            _, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            return row
        row += 1
