"""Read and write workloads as files; the format is told by the ending and the first bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lengthwise.errors import InputError
from lengthwise.workloads import mooncake
from lengthwise.workloads.arrivals import spread_ticks
from lengthwise.workloads.atomic import atomic_path
from lengthwise.workloads.files import check_readable, open_text, stem
from lengthwise.workloads.seeds import generator
from lengthwise.workloads.sharegpt import read_sharegpt
from lengthwise.workloads.tabular import AZURE, Parsed, read_csv, read_parquet, write_csv, write_parquet
from lengthwise.workloads.workload import LeftOut, Workload

Format = Literal["parquet", "csv", "azure", "mooncake", "sharegpt"]
FORMATS: tuple[Format, ...] = get_args(Format)

_WRITERS = {".parquet": write_parquet, ".csv": write_csv, ".jsonl": mooncake.write_mooncake}
_UNANSWERED = "requests without an answer (0 output tokens)"


def read_workload(
    path: str | Path,
    *,
    format: Format | None = None,  # noqa: A002  (the field's own word, and the CLI's)
    name: str | None = None,
    block_size: int | None = None,
    jitter_seed: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
    columns: Mapping[str, str] | None = None,
    need_arrivals: bool = True,
) -> Workload:
    """The requests of a file.

    `block_size` overrides the tokens per block hash (Mooncake's hash_ids: 512). `jitter_seed` moves each
    arrival to a random moment of Mooncake's three-second tick. `count_tokens` counts ShareGPT's tokens in
    place of the estimate. `columns` renames columns ({"client": "tenant"}). Without `need_arrivals` a table
    of lengths alone is taken as a batch at time 0.
    Requests with 0 output tokens are left out and counted.
    """
    path = check_readable(path)
    parsed = _parse(path, format or detect_format(path), count_tokens)
    table, size = _with_hash_ids(_renamed(parsed.table, columns or {}), parsed.block_size)
    if "arrival_s" not in table.column_names and not need_arrivals:
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
        raise _as_told(error, field=parsed.own_names.get(error.field or "")) from error
    if not len(workload):
        raise InputError("holds no requests", source=path, hint="a workload needs at least one")
    if jitter_seed is None:
        return workload
    return spread_ticks(workload, mooncake.TICK_S, generator(jitter_seed, "jitter"))


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write Parquet (everything), Mooncake JSON lines or CSV (no block hashes), by the file's ending.

    The file appears whole or not at all.
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        known = ", ".join(_WRITERS)
        raise InputError(f"cannot tell the format from '{path.suffix}'", source=path, hint=f"end it in {known}")
    with atomic_path(path) as temporary:
        writer(workload, temporary)


def detect_format(path: Path) -> Format:
    """The format by ending, and by the first line where the ending leaves it open."""
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
            return mooncake.read_mooncake(path)
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
    return table.rename_columns(names), block_size or mooncake.BLOCK_TOKENS


def _answered(
    table: pa.Table, *, name: str, block_size: int | None, left_out: tuple[LeftOut, ...], source: Path
) -> Workload:
    """The workload without unanswered requests; errors still count rows as the file does."""
    kept = np.arange(len(table))
    if "output_tokens" in table.column_names and pa.types.is_integer(table["output_tokens"].type):
        answered = pc.fill_null(pc.not_equal(table["output_tokens"], 0), True).to_numpy()
        if not answered.all():
            kept = np.flatnonzero(answered)
            left_out = (*left_out, LeftOut(_UNANSWERED, len(table) - len(kept)))
            table = table.take(pa.array(kept))
    try:
        return Workload.from_table(table, name=name, block_size=block_size, left_out=left_out, source=source)
    except InputError as error:
        if error.row is None:
            raise
        raise _as_told(error, row=int(kept[error.row - 1]) + 1) from error


def _as_told(error: InputError, *, row: int | None = None, field: str | None = None) -> InputError:
    """The same error in the file's own words: its count of rows, its names of fields."""
    return InputError(
        error.problem,
        source=error.source,
        row=row or error.row,
        field=field or error.field,
        hint=error.hint,
    )
