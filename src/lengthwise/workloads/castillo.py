"""CASTILLO: ten sampled answer lengths per prompt and LLM, from a folder, the hub or the packaged slice.

Perez-Ramirez, Kostic, Boman, "CASTILLO: Characterizing Response Length Distributions of LLMs", 2025.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.workloads.arrivals import gamma, generator, in_rounds
from lengthwise.workloads.blocks import BLOCK_TOKENS, text_block_lists
from lengthwise.workloads.columns import require_columns
from lengthwise.workloads.files import data_home, open_text, read_parquet_table, sample
from lengthwise.workloads.length_samples import LengthSamples
from lengthwise.workloads.workload import LeftOut, Workload

PACKAGED = "packaged sample"
"""The `origin` of the slice that ships with the package."""

CONFIGS = ("sanitized", "original", "degenerate")
SPLITS = ("train", "validate", "test")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOCAL_FIELDS = {
    "dataset": "corpus",
    "model": "llm",
    "input_size": "input_tokens",
    "output_sizes": "lengths",
    "temp": "temperature",
}
_HUB_FIELDS = {**_LOCAL_FIELDS, "prompt_id": "prompt_id", "prompt_text": "prompt"}


def load_castillo(
    where: str | Path | None = None, config: str = "original", split: str | Collection[str] | None = None
) -> LengthSamples:
    """Return CASTILLO's length samples, of all splits or of the given ones.

    `where` is a folder (lengths.parquet and prompts.parquet, or the hub's own layout) or a hub name such as
    "danfperam/castillo". Without it: $LENGTHWISE_DATA/castillo if it exists, else the packaged slice; `origin`
    of the result names it.
    """
    if config not in CONFIGS:
        raise InputError(f"CASTILLO has no config '{config}'", hint=f"one of: {', '.join(CONFIGS)}")
    samples = _open(where, config)
    return samples if split is None else samples.where(split=split)


def castillo_workload(
    samples: LengthSamples,
    llm: str,
    *,
    requests: int,
    rate: float,
    seed: int,
    cv: float = 1.0,
    max_tokens: int | None = None,
) -> Workload:
    """Return requests with CASTILLO's prompts for one LLM; each true length is one of the prompt's clean samples.

    Prompts are drawn in random order, and again in another order when there are more requests than prompts.
    Order, lengths and arrivals each have their own stream of the seed. `max_tokens` cuts the lengths.
    """
    if requests < 1:
        raise InputError(f"{requests} requests", field="requests", hint="give at least 1")
    rows = samples.where(llm=llm)
    clean = rows.clean_mask()
    usable = np.flatnonzero(clean.any(axis=1))
    if not len(usable):
        raise InputError(f"no prompt of {llm} has a clean sample", source=samples.origin, field="lengths")
    picks = usable[in_rounds(len(usable), requests, generator(seed, "prompts"))]
    picked = rows.table.take(pa.array(picks))
    columns: dict[str, Any] = {
        "arrival_s": gamma(requests, rate, cv, generator(seed, "arrivals")),
        "input_tokens": picked["input_tokens"],
        "output_tokens": _one_clean_sample(rows.lengths_matrix()[picks], clean[picks], generator(seed, "lengths")),
        "sample_mean": rows.clean_mean()[picks],
        "prompt": picked["prompt"],
        "llm": picked["llm"],
    }
    if picked["prompt"].null_count == 0:
        texts, tokens = picked["prompt"].to_pylist(), picked["input_tokens"].to_numpy()
        columns["block_hashes"] = text_block_lists(texts, tokens)
    return Workload.from_table(
        columns,
        name=f"castillo {rows.llms[0]}",
        block_size=BLOCK_TOKENS,
        left_out=_left_out(clean),
        source=samples.origin,
    ).limited_to(max_tokens)


def _one_clean_sample(
    lengths: NDArray[np.int64], clean: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw one clean sample of each row, uniformly."""
    rank = np.where(clean, rng.random(clean.shape), np.inf)
    return np.take_along_axis(lengths, rank.argmin(axis=1)[:, None], axis=1)[:, 0]


def _left_out(clean: NDArray[np.bool_]) -> tuple[LeftOut, ...]:
    rules = {
        "degenerate samples (CASTILLO's rule), never drawn as a true length": int((~clean).sum()),
        "prompts of which every sample is degenerate": int((~clean.any(axis=1)).sum()),
    }
    return tuple(LeftOut(rule, rows) for rule, rows in rules.items() if rows)


def _open(where: str | Path | None, config: str) -> LengthSamples:
    if where is None:
        home = data_home()
        if home is None or not (home / "castillo").is_dir():
            _only_original(config, PACKAGED)
            return LengthSamples.from_table(read_parquet_table(sample("castillo.parquet")), origin=PACKAGED)
        where = home / "castillo"
    folder = Path(where)
    if folder.is_dir():
        return _from_folder(folder, config, origin=str(folder))
    if _HUB_NAME.fullmatch(str(where)) and not folder.exists():
        return _from_folder(_download(str(where), config), config, origin=str(where))
    raise InputError("no such folder", source=where, hint="give a folder, or a hub name such as danfperam/castillo")


def _from_folder(folder: Path, config: str, *, origin: str) -> LengthSamples:
    lengths = folder / "lengths.parquet"
    if lengths.is_file():
        _only_original(config, folder)
        return LengthSamples.from_table(_join(lengths, folder / "prompts.parquet"), origin=origin, source=lengths)
    parts = [
        _hub_rows(folder / config / f"{config}_{split}.json", split)
        for split in SPLITS
        if (folder / config / f"{config}_{split}.json").is_file()
    ]
    if not parts:
        raise InputError(
            "holds no CASTILLO data",
            source=folder,
            hint=f"expected lengths.parquet and prompts.parquet, or {config}/{config}_train.json and so on",
        )
    return LengthSamples(pa.concat_tables(part.table for part in parts).combine_chunks(), origin)


def _only_original(config: str, source: str | Path) -> None:
    if config != "original":
        raise InputError(
            f"holds config original only, not {config}",
            source=source,
            hint="LengthSamples.clean_mask() marks the degenerate samples",
        )


def _join(lengths: Path, prompts: Path) -> pa.Table:
    """Return the rows of `lengths` in their order, with the texts of `prompts`."""
    rows = read_parquet_table(lengths)
    texts = read_parquet_table(prompts)
    where = pc.index_in(_prompt_key(rows, lengths), value_set=_prompt_key(texts, prompts).combine_chunks())
    table = rows.append_column("prompt", texts["prompt"].take(where))
    return table.rename_columns([_LOCAL_FIELDS.get(name, name) for name in table.column_names])


def _prompt_key(table: pa.Table, source: Path) -> pa.ChunkedArray:
    require_columns(table, ("dataset", "prompt_id"), source)
    dataset, prompt_id = (table[field].cast(pa.string()) for field in ("dataset", "prompt_id"))
    return pc.binary_join_element_wise(dataset, prompt_id, "\n")


def _hub_rows(path: Path, split: str) -> LengthSamples:
    columns: dict[str, list[Any]] = {name: [] for name in _HUB_FIELDS.values()}
    for row, record in enumerate(_records(path), start=1):
        for field, name in _HUB_FIELDS.items():
            if not isinstance(record, dict):
                raise InputError("not a record", source=path, row=row, hint="an object with CASTILLO's keys")
            if field not in record and name not in ("prompt", "temperature"):
                raise InputError("missing key", source=path, row=row, field=field)
            columns[name].append(record.get(field))
    columns["split"] = [split] * len(columns["llm"])
    return LengthSamples.from_table(columns, origin=str(path))


def _records(path: Path) -> list[dict[str, Any]]:
    """Read the records of a JSON array or of JSON lines."""
    with open_text(path) as stream:
        text = stream.read().strip()
    # Not splitlines: prompts contain other characters that it treats as line ends.
    pieces = [text] if text.startswith("[") else text.split("\n")
    records: list[Any] = []
    for row, piece in enumerate(pieces, start=1):
        try:
            value = json.loads(piece)
        except json.JSONDecodeError as error:
            raise InputError(
                f"not JSON: {error.msg}",
                source=path,
                row=row if len(pieces) > 1 else None,
                hint="a list, or one record per line; the file looks truncated",
            ) from error
        records.extend(value if isinstance(value, list) else [value])
    return records


def _download(name: str, config: str) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError(
            "is no folder here, and hub names need a package",
            source=name,
            hint="pip install huggingface-hub, or give a folder",
        ) from error
    try:
        return Path(
            huggingface_hub.snapshot_download(repo_id=name, repo_type="dataset", allow_patterns=[f"{config}/*"])
        )
    except OSError as error:  # the hub's errors for a bad name, no network and HTTP are all of this kind
        raise InputError(
            f"cannot be fetched from the hub ({type(error).__name__})",
            source=name,
            hint="check the name and the network, or give a folder with the data",
        ) from error
