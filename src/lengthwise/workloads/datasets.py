"""Alpaca-52k: a workload, and length samples with one answer per prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.workloads.blocks import BLOCK_TOKENS, text_block_lists
from lengthwise.workloads.columns import require_columns
from lengthwise.workloads.files import data_folder, read_parquet_table
from lengthwise.workloads.length_samples import LengthSamples
from lengthwise.workloads.workload import LeftOut, Workload

ALPACA: Final = "alpaca52k"
"""Name of the corpus in length samples and of the source in training settings."""
ALPACA_LLM: Final = "openai/text-davinci-003"
"""The model that wrote the reference answers."""
_FILE = "alpaca52k.parquet"
_COLUMNS = ("instruction", "input", "prompt_tokens", "out_tokens")


def load_alpaca(where: str | Path | None = None) -> Workload:
    """Return all of Alpaca in its original order as one batch; `redraw` draws arrivals for it.

    `where` is the folder that holds alpaca52k.parquet, $LENGTHWISE_DATA/alpaca52k if not given. The prompt is
    the instruction, or instruction, line break and input. Rows with an empty answer are left out and counted.
    """
    path, rows, empty = _answered(where)
    prompts = _prompts(rows)
    tokens = rows["prompt_tokens"].to_numpy()
    return Workload.from_table(
        {
            "arrival_s": np.zeros(len(rows)),
            "input_tokens": tokens,
            "output_tokens": rows["out_tokens"],
            "prompt": prompts,
            "block_hashes": text_block_lists(prompts, tokens),
        },
        name=ALPACA,
        block_size=BLOCK_TOKENS,
        left_out=(LeftOut("rows with an empty answer", empty),) if empty else (),
        source=path,
    )


def load_alpaca_lengths(where: str | Path | None = None, *, test: float = 0.2, seed: int = 1) -> LengthSamples:
    """Return all of Alpaca as length samples: one LLM, one answer per prompt, a random share as split `test`.

    Rows with an empty answer are left out. A prompt's id is its number in the original order.
    """
    path, rows, _ = _answered(where)
    samples = LengthSamples.from_table(
        {
            "corpus": [ALPACA] * len(rows),
            "prompt_id": rows["idx"].cast(pa.string()),
            "llm": [ALPACA_LLM] * len(rows),
            "input_tokens": pc.max_element_wise(rows["prompt_tokens"], 1),
            "lengths": [[length] for length in rows["out_tokens"].to_pylist()],
            "prompt": _prompts(rows),
        },
        origin=str(path),
    )
    parts = samples.split_by_prompt({"test": test, "train": 1.0 - test}, seed)
    tables = [
        part.table.set_column(part.table.schema.get_field_index("split"), "split", pa.array([name] * len(part)))
        for name, part in parts.items()
    ]
    return LengthSamples(pa.concat_tables(tables).combine_chunks(), samples.origin)


def _answered(where: str | Path | None) -> tuple[Path, pa.Table, int]:
    """Return the file, its rows with an answer, and the number of rows without one."""
    absent = "Alpaca does not ship with the package (its licence is non-commercial)"
    path = data_folder(ALPACA, where, absent) / _FILE
    table = read_parquet_table(path)
    require_columns(table, _COLUMNS, path)
    if "idx" not in table.column_names:
        table = table.append_column("idx", pa.array(np.arange(len(table))))
    answered: NDArray[np.bool_] = pc.greater(table["out_tokens"], 0).to_numpy()
    return path, table.filter(pa.array(answered)), int(len(table) - answered.sum())


def _prompts(rows: pa.Table) -> list[str]:
    pairs = zip(rows["instruction"].to_pylist(), rows["input"].to_pylist(), strict=True)
    return [f"{instruction}\n{given}" if given else instruction for instruction, given in pairs]
