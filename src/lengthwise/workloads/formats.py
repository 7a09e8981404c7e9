"""Read and write workloads as Parquet, CSV, Mooncake JSON lines and ShareGPT.

The format follows from the file's ending and, where that is ambiguous, from its first line.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import atomic_path, check_readable, open_text, read_parquet_table, stem
from lengthwise.prefixes import BLOCK_TOKENS, BYTES_PER_TOKEN
from lengthwise.traffic.rows import LIMITS
from lengthwise.workloads.arrivals import generator, spread_ticks
from lengthwise.workloads.columns import cast_column, refuse_null, refuse_twice, text_block_lists
from lengthwise.workloads.workload import HINTS, SCHEMA, LeftOut, Parsed, Workload

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""Columns of the Azure LLM inference traces (2023 and 2024)."""

_METADATA = b"lengthwise.workload"
_AZURE_TIME = "a time such as 2023-11-16 18:15:46.6805900"
_IN_CSV = [field for field in SCHEMA if field.name != "block_hashes"]
_TYPES = {field.name: field.type for field in _IN_CSV} | dict(
    zip(AZURE, (pa.string(), pa.int64(), pa.int64()), strict=True)
)


def read_parquet(path: Path) -> Parsed:
    """Read a Parquet file; one written by Lengthwise also has name, block size and rows left out."""
    table = read_parquet_table(path)
    metadata = json.loads((table.schema.metadata or {}).get(_METADATA, b"{}"))
    left_out = tuple(LeftOut(**entry) for entry in metadata.pop("left_out", ()))
    azure = _from_azure(table, path)
    return azure if azure is not None else Parsed(table, left_out=left_out, **metadata)


def write_parquet(workload: Workload, path: Path) -> None:
    """Write all columns, with name, block size and rows left out in the schema's metadata."""
    metadata = {
        "name": workload.name,
        "block_size": workload.block_size,
        "left_out": [{"rule": entry.rule, "rows": entry.rows} for entry in workload.left_out],
    }
    table = workload.table.replace_schema_metadata({_METADATA: json.dumps(metadata).encode()})
    pq.write_table(table, path, compression="zstd")


def read_csv(path: Path) -> Parsed:
    """Read a CSV file with a header with Arrow; on failure, read it again row by row to name the bad cell."""
    with open_text(path) as stream:
        header = next(csv.reader(stream), [])
    refuse_twice(header, path)
    wanted = [name for name in header if name in _TYPES]
    try:
        table = pyarrow.csv.read_csv(
            path,
            # Only prompts contain line breaks, and checking for them takes a third of the time.
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
    """Write the columns that are not empty, without block hashes: CSV has no lists."""
    table = workload.table.drop_columns(["block_hashes"])
    empty = [name for name in table.column_names if table[name].null_count == len(table)]
    if not workload.priority.any():
        empty.append("priority")
    pyarrow.csv.write_csv(table.drop_columns(empty), path)


def _from_azure(table: pa.Table, source: Path) -> Parsed | None:
    """Convert a table with Azure's columns, times to seconds since the first; None for any other table."""
    if not set(AZURE) <= set(table.column_names):
        return None
    time, context, generated = (table[name] for name in AZURE)
    columns = {"arrival_s": _seconds(time, source), "input_tokens": context, "output_tokens": generated}
    return Parsed(pa.table(columns), own_names=dict(zip(columns, AZURE, strict=True)))


def _seconds(time: pa.ChunkedArray, source: Path) -> NDArray[np.float64]:
    refuse_null(time, field=AZURE[0], hint=_AZURE_TIME, source=source)
    # The traces of 2024 write a time zone, those of 2023 do not; Arrow needs the format in advance.
    zoned = pa.types.is_string(time.type) and len(time) and time[0].as_py().endswith(("Z", "+00:00"))
    as_time = pa.field(AZURE[0], pa.timestamp("ns", tz="UTC" if zoned else None))
    stamps = cast_column(time, as_time, hint=_AZURE_TIME, source=source)
    nanoseconds = stamps.cast(pa.int64()).to_numpy()
    seconds: NDArray[np.float64] = (nanoseconds - nanoseconds[:1]) / 1e9
    return seconds


def _read_csv_slowly(path: Path) -> pa.Table:
    """Read row by row in Python: accepts 1.0 as a whole number, and names the row and field that are wrong."""
    with open_text(path) as stream:
        rows = csv.reader(stream)
        header = next(rows)
        fields = [pa.field(name, _TYPES.get(name, pa.null())) for name in header]
        columns: dict[str, list[Any]] = {name: [] for name in header if name in _TYPES}
        try:
            for row, cells in enumerate(filter(None, rows), start=1):
                if len(cells) != len(header):
                    raise InputError(
                        f"{len(cells)} fields where the header has {len(header)}",
                        source=path,
                        row=row,
                        field=header[min(len(cells), len(header) - 1)],
                        hint="the file looks truncated or the row is broken",
                    )
                for field, cell in zip(fields, cells, strict=True):
                    if field.name in columns:
                        columns[field.name].append(_value(_number(cell, field.type), field, path, row))
        except csv.Error as error:
            raise InputError(f"is not CSV: {error}", source=path, row=rows.line_num - 1) from error
    return pa.table({name: pa.array(values, _TYPES[name]) for name, values in columns.items()})


def _number(cell: str, kind: pa.DataType) -> str | float | None:
    """Return a cell as a number if its column has numbers, and None if it is empty."""
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return cell or None
    try:
        return float(cell) if cell.strip() else None
    except ValueError:
        return cell


def _value(value: Any, field: pa.Field, path: Path, row: int) -> Any:
    """Return the value if it has the right type; Arrow would truncate 1.5 tokens to 1."""
    try:
        scalar = pa.scalar(value, field.type)
        if value is None or scalar.as_py() == value:
            return scalar.as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    hint = {**HINTS, **_MOONCAKE_HINTS}.get(field.name, f"a value of type {field.type}")
    raise InputError(f"{value!r} does not fit", source=path, row=row, field=field.name, hint=hint)


MOONCAKE_BLOCK_TOKENS = 512
TICK_S = 3.0
"""Mooncake's published timestamps are multiples of three seconds."""

_MOONCAKE_EXTRA = (
    *(
        "prompt",
        "sample_mean",
        "llm",
        "max_tokens",
        "priority",
        "tenant",
        "session",
        "template",
        "think_s",
        "request_class",
    ),
    *LIMITS,
)
_MOONCAKE_SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.float64()),
        pa.field("input_length", pa.int64()),
        pa.field("output_length", pa.int64()),
        pa.field("hash_ids", pa.list_(pa.int64())),
        *(SCHEMA.field(name).with_nullable(True) for name in _MOONCAKE_EXTRA),
        pa.field("block_size", pa.int64()),
    ]
)
_MOONCAKE_NAMES = {
    "arrival_s": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "block_hashes": "hash_ids",
}
_MOONCAKE_HINTS = {
    "timestamp": "milliseconds from the start, a number",
    "input_length": HINTS["input_tokens"],
    "output_length": HINTS["output_tokens"],
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
                    explicit_schema=_MOONCAKE_SCHEMA, unexpected_field_behavior="ignore"
                ),
            )
    except (pa.ArrowInvalid, OSError):
        table = _read_lines_slowly(path)
    for name in ("timestamp", "input_length", "output_length"):  # by their names in the file; Workload checks the rest
        refuse_null(table[name], field=name, hint=_MOONCAKE_HINTS[name], source=path, wrong="missing key")
    sizes = pc.unique(table["block_size"]).drop_null().to_pylist()
    if len(sizes) > 1:
        raise InputError(f"several block sizes: {sizes}", source=path, field="block_size", hint="one for all rows")
    known = bool(sizes) or bool(pc.sum(pc.list_value_length(table["hash_ids"])).as_py())
    columns = {ours: table[_MOONCAKE_NAMES.get(ours, ours)] for ours in (*_MOONCAKE_NAMES, *_MOONCAKE_EXTRA)}
    # To the nanosecond, so that decimal seconds survive a round trip.
    columns["arrival_s"] = np.round(columns["arrival_s"].to_numpy() / 1e3, 9)
    if not known:
        del columns["block_hashes"]
    return Parsed(pa.table(columns), block_size=sizes[0] if sizes else MOONCAKE_BLOCK_TOKENS, own_names=_MOONCAKE_NAMES)


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
    extra = {name: workload.table[name].to_pylist() for name in _MOONCAKE_EXTRA if _is_filled(workload, name)}
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


def _read_lines_slowly(path: Path) -> pa.Table:
    """Read line by line in Python: accepts more than Arrow does, and names the line and key that are wrong."""
    columns: dict[str, list[Any]] = {name: [] for name in _MOONCAKE_SCHEMA.names}
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
            for field in _MOONCAKE_SCHEMA:
                columns[field.name].append(_value(record.get(field.name), field, path, row))
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in _MOONCAKE_SCHEMA})


_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
}
_SHAREGPT_SHAPE = 'each turn is {"from": "human" or "gpt", "value": the text}'
_NO_PAIR = "conversations without a human turn that is answered"
_EMPTY = "turns answered with an empty text"
_NO_ANSWER = "human turns without an answer"


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


def _pairs(turns: Any, path: Path, row: int, left_out: Counter[str]) -> Iterator[tuple[str, str]]:
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
            left_out[_NO_ANSWER] += 1
        asked = role == "user" or (asked and role != "assistant")
        history = f"{history}{role}: {text}\n\n"
    left_out[_NO_ANSWER] += asked


def _turns(turns: Any, path: Path, row: int) -> Iterator[tuple[str, str]]:
    if not isinstance(turns, list):
        raise InputError("no list of turns", source=path, row=row, field="conversations", hint=_SHAREGPT_SHAPE)
    for turn in turns:
        role = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        for field, value in (("from", role), ("value", text)):
            if not isinstance(value, str):
                raise InputError(f"{value!r} is not a text", source=path, row=row, field=field, hint=_SHAREGPT_SHAPE)
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
            raise InputError("missing key", source=path, row=row, field="conversations", hint=_SHAREGPT_SHAPE)
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


Format = Literal["parquet", "csv", "azure", "mooncake", "sharegpt"]
FORMATS: tuple[Format, ...] = get_args(Format)

_WRITERS = {".parquet": write_parquet, ".csv": write_csv, ".jsonl": write_mooncake}
_UNANSWERED = "requests without an answer (0 output tokens)"


def read_workload(
    path: str | Path,
    *,
    format: Format | None = None,  # noqa: A002  (the name of the CLI option)
    name: str | None = None,
    block_size: int | None = None,
    jitter_seed: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
    columns: Mapping[str, str] | None = None,
    need_arrivals: bool = True,
) -> Workload:
    """Read the requests of a file.

    `block_size` overrides the tokens per block hash (Mooncake's hash_ids: 512). `jitter_seed` moves each
    arrival to a random moment of Mooncake's three-second tick. `count_tokens` counts ShareGPT's tokens in
    place of the estimate. `columns` renames columns ({"client": "tenant"}). Without `need_arrivals` a table
    of lengths alone is taken as a batch at time 0.
    Requests with 0 output tokens are left out and counted.
    """
    path = check_readable(path)
    parsed = _parse(path, format or detect_format(path), count_tokens)
    table, size = _with_hash_ids(_renamed(parsed.table, columns or {}), parsed.block_size)
    if "arrival_s" not in table.column_names and "input_tokens" in table.column_names and not need_arrivals:
        table = table.append_column("arrival_s", pa.array(np.zeros(len(table))))
    try:
        workload = _answered(
            table,
            name=name or parsed.name or stem(path),
            block_size=block_size or size,
            left_out=parsed.left_out,
            source=path,
        )
    except InputError as error:
        raise _in_file_terms(error, field=parsed.own_names.get(error.field or "")) from error
    if not len(workload):
        raise InputError("holds no requests", source=path, hint="a workload needs at least one")
    if jitter_seed is None:
        return workload
    return spread_ticks(workload, TICK_S, generator(jitter_seed, "jitter"))


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write Parquet (everything), Mooncake JSON lines or CSV (no block hashes), by the file's ending.

    The write is atomic.
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        known = ", ".join(_WRITERS)
        raise InputError(f"cannot infer the format from '{path.suffix}'", source=path, hint=f"end it in {known}")
    with atomic_path(path) as temporary:
        writer(workload, temporary)


def detect_format(path: Path) -> Format:
    """Return the format by the file's ending, or by the first line if the ending is ambiguous."""
    with path.open("rb") as stream:
        if stream.read(4) == b"PAR1" or path.suffix == ".parquet":
            return "parquet"
    with open_text(path) as text:
        first = text.read(4096).lstrip()
    if first.startswith("["):
        return "sharegpt"
    if first.startswith("{"):
        return "mooncake"
    header = first.split("\n", 1)[0].strip()
    if "," in header:
        return "azure" if header.split(",")[0] == AZURE[0] else "csv"
    known = ", ".join(FORMATS)
    raise InputError("is in no format known here", source=path, hint=f"one of: {known} (named with --from)")


def _parse(path: Path, format: Format, count_tokens: Callable[[str], int] | None) -> Parsed:  # noqa: A002
    match format:
        case "parquet":
            return read_parquet(path)
        case "csv" | "azure":
            return read_csv(path)
        case "mooncake":
            return read_mooncake(path)
        case "sharegpt":
            return read_sharegpt(path, count_tokens)
        case _:
            raise InputError(f"format '{format}' is not known", source=path, hint=f"one of: {', '.join(FORMATS)}")


def _renamed(table: pa.Table, names: Mapping[str, str]) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def _with_hash_ids(table: pa.Table, block_size: int | None) -> tuple[pa.Table, int | None]:
    """Mooncake's hash_ids in a plain table are block hashes of Mooncake's block size."""
    if "hash_ids" not in table.column_names or "block_hashes" in table.column_names:
        return table, block_size
    names = ["block_hashes" if name == "hash_ids" else name for name in table.column_names]
    return table.rename_columns(names), block_size or MOONCAKE_BLOCK_TOKENS


def _answered(
    table: pa.Table, *, name: str, block_size: int | None, left_out: tuple[LeftOut, ...], source: Path
) -> Workload:
    """Return the workload without unanswered requests; errors name rows by their number in the file."""
    rows = np.arange(len(table))
    if "output_tokens" in table.column_names and pa.types.is_integer(table["output_tokens"].type):
        answered = pc.fill_null(pc.not_equal(table["output_tokens"], 0), True).to_numpy()
        if not answered.all():
            rows = np.flatnonzero(answered)
            left_out = (*left_out, LeftOut(_UNANSWERED, len(table) - len(rows)))
            table = table.take(pa.array(rows))
    try:
        return Workload.from_table(table, name=name, block_size=block_size, left_out=left_out, source=source)
    except InputError as error:
        if error.row is None:
            raise
        raise _in_file_terms(error, row=int(rows[error.row - 1]) + 1) from error


def _in_file_terms(error: InputError, *, row: int | None = None, field: str | None = None) -> InputError:
    """Return the error with the row number and field name of the file."""
    return InputError(
        error.problem,
        source=error.source,
        row=row or error.row,
        field=field or error.field,
        hint=error.hint,
    )
