"""CASTILLO's network fine-tuned end to end on the three Llamas together: what `scripts/gpu_papers.py` trained.

One encoder reads up to 512 tokens of a prompt (head and tail of a longer one); a head takes its vectors and the LLM's.
The kept columns are named as those of `training.py`, with the network in the first place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.castillo.rows import LLMS, UNSEEN
from experiments.castillo.training import KEPT
from experiments.kept_rows import add_rows
from lengthwise.errors import InputError
from lengthwise.files import atomic_path

ROWS: Final = "finetuned.parquet"
ABOUT: Final = "finetuned.json"
CONFIG: Final = Path(__file__).parent.parent.parent / "configs" / "papers.yaml"
NETWORKS: Final[Mapping[str, str]] = {
    "own": "MiniLM frozen, 128 tokens",
    "minilm": "MiniLM fine-tuned, 512 tokens",
    "minilm-anonymous": "MiniLM fine-tuned, LLM hidden",
    "minilm-single": "MiniLM fine-tuned, for this width only",
    "mpnet": "MPNet fine-tuned, 512 tokens",
    "mpnet-anonymous": "MPNet fine-tuned, LLM hidden",
}
"""First part of a kept column's name: what the tables call it."""
_HEADS: Final = ("classes", "squared", "absolute")


def network(settings: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """Return the key in NETWORKS of a training."""
    single = "-single" if len(tasks) == 1 else ""
    return str(settings["network"]) + single + ("" if settings["identity"] else "-anonymous")


def columns(about: Mapping[str, Any], predicted: NDArray[Any]) -> dict[str, NDArray[np.int16]]:
    """Return the columns of one training, (prompts, LLMs) each: classes, or tokens."""
    settings, tasks = about["settings"], about["of"]
    first, seed = network(settings, tasks), settings["seed"]
    found = {}
    for place, task in enumerate(tasks):
        name = f"{first}/castillo/{task}/{seed}"
        if settings["head"] != "classes":
            name = f"{first}/castillo/{settings['head']}/0/{seed}/{task}"
        found[name] = np.rint(predicted[..., place]).astype(np.int16)
    return found


def rows_table(results: Sequence[Mapping[str, Any]], arrays: Mapping[str, NDArray[Any]], about: pa.Table) -> pa.Table:
    """Return one row per LLM and prompt of `arrays`; `about` has corpus, split and id of every prompt of the pack."""
    prompts = arrays["prompts"]
    which = about.take(pa.array(prompts)).select(["corpus", "split", "prompt_id"])
    scored = np.array([row["split"] == "test" or row["corpus"] == UNSEEN for row in which.to_pylist()])
    mine = [each for each in results if each["settings"]["head"] in _HEADS]
    if not mine:
        raise InputError("has no network of CASTILLO's paper", source="results.json")
    found: dict[str, list[NDArray[Any]]] = {}
    for each in mine:
        for name, values in columns(each, arrays[each["name"]]).items():
            by_llm = [values[scored, _place(llm, each["llms"])] for llm in LLMS]
            found[name] = [np.concatenate(by_llm)]
    kept = which.filter(pa.array(scored))
    keys = {name: kept[name].to_pylist() * len(LLMS) for name in ("corpus", "prompt_id")}
    llms = [llm for llm in LLMS for _ in range(len(kept))]
    return pa.table({"llm": llms, **keys, **{name: np.concatenate(parts) for name, parts in found.items()}})


def _place(llm: str, names: Sequence[str]) -> int:
    return next(number for number, name in enumerate(names) if llm in name)


def keep(outputs: Path, out: Path = KEPT) -> str:
    """Add the rows and, for each training, settings, curves and scores to those kept; say what was written.

    A training that is kept already is replaced by the new one of its name.
    """
    from lengthwise.training.data import PromptTable, load_samples
    from lengthwise.training.encoder.config import read_config

    results = json.loads((outputs / "results.json").read_text())
    with np.load(outputs / "predictions.npz") as archive:
        arrays = dict(archive)
    table = rows_table(results, arrays, PromptTable.of(load_samples(read_config(CONFIG).data)).about)
    kept: dict[str, Any] = {}
    if (out / ABOUT).is_file():
        table = add_rows(pq.read_table(out / ROWS), table, ("llm", "corpus", "prompt_id"))
        kept = {each["name"]: each for each in json.loads((out / ABOUT).read_text())}
    with atomic_path(out / ROWS) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=19)
    kept |= {each["name"]: {name: each[name] for name in ("name", "settings", "curves", "scores")} for each in results}
    (out / ABOUT).write_text(json.dumps(list(kept.values())) + "\n")
    return f"{out / ROWS}: {len(table):,} rows of {len(table.column_names) - 3} columns"
