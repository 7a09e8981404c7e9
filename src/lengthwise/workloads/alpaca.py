"""Stanford Alpaca's 52,002 instructions with the lengths of their reference answers.

Licensed for non-commercial use (CC-BY-NC-4.0): read from a folder of yours, nothing of it ships here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lengthwise.errors import InputError
from lengthwise.workloads.blocks import BLOCK_TOKENS, text_block_lists
from lengthwise.workloads.data_home import VARIABLE, data_home
from lengthwise.workloads.files import read_parquet_table
from lengthwise.workloads.workload import LeftOut, Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILE = "alpaca52k.parquet"
_COLUMNS = ("instruction", "input", "prompt_tokens", "out_tokens")


def load_alpaca(where: str | Path | None = None) -> Workload:
    """All of Alpaca in its original order as one batch; `redraw` gives it arrivals.

    `where` is the folder that holds alpaca52k.parquet, $LENGTHWISE_DATA/alpaca52k if not given. The prompt is
    the instruction, or instruction, line break and input. Rows with an empty answer are left out and counted.
    """
    path = _folder(where) / _FILE
    table = read_parquet_table(path)
    for field in _COLUMNS:
        if field not in table.column_names:
            raise InputError("missing column", source=path, field=field, hint=f"needed: {', '.join(_COLUMNS)}")
    answered: NDArray[np.bool_] = pc.greater(table["out_tokens"], 0).to_numpy()
    empty = int(len(table) - answered.sum())
    kept = table.filter(pa.array(answered))
    prompts = [
        f"{instruction}\n{given}" if given else instruction
        for instruction, given in zip(kept["instruction"].to_pylist(), kept["input"].to_pylist(), strict=True)
    ]
    tokens = kept["prompt_tokens"].to_numpy()
    return Workload.from_table(
        {
            "arrival_s": np.zeros(len(kept)),
            "input_tokens": tokens,
            "output_tokens": kept["out_tokens"],
            "prompt": prompts,
            "block_hashes": text_block_lists(prompts, tokens),
        },
        name="alpaca52k",
        block_size=BLOCK_TOKENS,
        left_out=(LeftOut("rows with an empty answer", empty),) if empty else (),
        source=path,
    )


def _folder(where: str | Path | None) -> Path:
    if where is not None:
        return Path(where)
    home = data_home()
    if home is None:
        raise InputError(
            "Alpaca does not ship with the package (its licence is non-commercial)",
            hint=f"set {VARIABLE} to a folder that holds alpaca52k/{_FILE}",
        )
    return home / "alpaca52k"
