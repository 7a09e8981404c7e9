"""Two data sets beside CASTILLO: Alpaca-52k, and lengths of answers to prompts of many kinds from public repositories.

Alpaca is a workload, or length samples with one answer per prompt. The diverse prompts are one Parquet file with a row
per answer (prompt, model, output_tokens, finish, source, licence, kind), read as length samples in groups of sources. A
group is what a judgement leaves out of training at once: sources that share prompts or a task are in one group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.llm_names import without_quantisation
from lengthwise.workloads.blocks import BLOCK_TOKENS, text_block_lists
from lengthwise.workloads.columns import require_columns
from lengthwise.workloads.files import data_folder, read_parquet_table
from lengthwise.workloads.length_samples import LengthSamples
from lengthwise.workloads.workload import LeftOut, Workload

ALPACA: Final = "alpaca52k"
"""Name of the corpus in length samples and of the source in training settings."""
ALPACA_LLM: Final = "openai/text-davinci-003"
"""The model that wrote the reference answers."""
_ALPACA_FILE = "alpaca52k.parquet"
_ALPACA_COLUMNS = ("instruction", "input", "prompt_tokens", "out_tokens")


def load_alpaca(where: str | Path | None = None) -> Workload:
    """Return all of Alpaca in its original order as one batch; `redraw` draws arrivals for it.

    `where` is the folder that holds alpaca52k.parquet, $LENGTHWISE_DATA/alpaca52k if not given. The prompt is
    the instruction, or instruction, line break and input. Rows with an empty answer are left out and counted.
    """
    path, rows, empty = _answered(where)
    prompts = _alpaca_prompts(rows)
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
            "prompt": _alpaca_prompts(rows),
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
    path = data_folder(ALPACA, where, absent) / _ALPACA_FILE
    table = read_parquet_table(path)
    require_columns(table, _ALPACA_COLUMNS, path)
    if "idx" not in table.column_names:
        table = table.append_column("idx", pa.array(np.arange(len(table))))
    answered: NDArray[np.bool_] = pc.greater(table["out_tokens"], 0).to_numpy()
    return path, table.filter(pa.array(answered)), int(len(table) - answered.sum())


def _alpaca_prompts(rows: pa.Table) -> list[str]:
    pairs = zip(rows["instruction"].to_pylist(), rows["input"].to_pylist(), strict=True)
    return [f"{instruction}\n{given}" if given else instruction for instruction, given in pairs]


GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "ifeval": (
        "shisa-ai/M-IFEval", "deepseek-ai/DeepSeek-LLM (IFEval answers)", "google-research/google-research (IFEval)",
    ),
    "mt-bench": (
        "lightblue-tech/multilingual-mt-bench", "shisa-ai/ja-mt-bench-harness", "Stability-AI/FastChat",
        "ku-nlp/ja-vicuna-qa-benchmark", "yuzu-ai/japanese-llm-ranking",
    ),
    "chat": (
        "Open-Assistant/oasst-model-eval", "Re-Align/just-eval", "dustalov/llmfao (llmonitor benchmark)",
        "cimo-labs/cje (arena_sample)", "allenai/noncompliance (CoCoNot)",
    ),
    "chinese": ("ymcui/Chinese-LLaMA-Alpaca-3",),
    "zero-eval": ("WildEval/ZeroEval", "deepseek-ai/DeepSeek-Math-V2"),
    "mmlu-pro": ("TIGER-AI-Lab/MMLU-Pro",),
    "riddles": ("cpldcpu/MisguidedAttention", "fairydreaming/farel-bench", "EQ-bench/EQ-Bench"),
    "code": ("the-crypt-keeper/can-ai-code",),
    "gpteacher": ("teknium1/GPTeacher",),
    "writing": ("vivek3141/ghostbuster-data", "EQ-bench/longform-writing-bench"),
    "agent": ("sierra-research/tau-bench",),
}  # fmt: skip
"""Sources by group, the group that keeps a prompt of several groups first."""
UNCLEAR_LICENCE: Final = ("cimo-labs/cje (arena_sample)", "allenai/noncompliance (CoCoNot)")
"""Sources whose prompts carry licences of their own: for judging, not for a model that ships."""
CASTILLO_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "castillo-code": ("Apps", "BigCodeBench", "DS1000", "Mbpp"),
    "castillo-chat": ("DollyDataset", "ShareGPT"),
}
_GROUP_OF: Final = {source: group for group, sources in GROUPS.items() for source in sources}
_DIVERSE_COLUMNS: Final = ("prompt", "model", "output_tokens", "finish", "source", "licence", "maybe_hidden_reasoning")
_SPACE: Final = re.compile(r"\s+")


def load_diverse(
    where: str | Path | None = None, *, known_llms: Collection[str] = (), ships: bool = False
) -> LengthSamples:
    """Return one row per prompt and LLM, with the group as the corpus; `finish` "length" is a capped sample.

    `where` is the folder that holds lengths.parquet, $LENGTHWISE_DATA/diverse if not given. Names of LLMs are
    normalised, to that of `known_llms` where it is the same LLM. A prompt of several groups stays in the first one.
    Answers with hidden reasoning are left out: their length is not known. With `ships`, sources of unclear licence are
    left out.
    """
    path = _diverse_file(where)
    table = read_parquet_table(path)
    require_columns(table, _DIVERSE_COLUMNS, path)
    unknown = sorted(set(pc.unique(table["source"]).to_pylist()) - set(_GROUP_OF))
    if unknown:
        raise InputError(
            f"source '{unknown[0]}' is in no group", source=path, hint="add it to workloads/datasets.GROUPS"
        )
    order = {group: number for number, group in enumerate(GROUPS)}
    names = {normalise_llm(name): name for name in known_llms}
    prompts: dict[str, tuple[str, str]] = {}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    records = [row for row in table.select(list(_DIVERSE_COLUMNS)).to_pylist() if _usable(row, ships)]
    for row in sorted(records, key=lambda row: order[_GROUP_OF[row["source"]]]):
        text, group = row["prompt"], _GROUP_OF[row["source"]]
        first = prompts.setdefault(prompt_key(text), (group, str(len(prompts))))
        if first[0] != group:
            continue
        llm = normalise_llm(row["model"])
        found = rows.setdefault((first[1], llm), {
            "corpus": group, "split": "train", "prompt_id": first[1], "llm": names.get(llm, llm),
            "input_tokens": max(1, len(text) // 4), "prompt": text, "lengths": [], "capped": [],
        })  # fmt: skip
        found["lengths"].append(int(row["output_tokens"]))
        found["capped"].append(row["finish"] == "length")
    columns = {name: [row[name] for row in rows.values()] for name in next(iter(rows.values()), {})}
    return LengthSamples.from_table(columns, origin=str(path))


def diverse_licences(where: str | Path | None = None, *, ships: bool = False) -> dict[str, str]:
    """Return the licence of each source."""
    table = read_parquet_table(_diverse_file(where))
    found = dict(zip(table["source"].to_pylist(), table["licence"].to_pylist(), strict=True))
    return {source: found[source] for source in sorted(found) if not (ships and source in UNCLEAR_LICENCE)}


def normalise_llm(name: str) -> str:
    """Return the name by which rows of different sources are of the same LLM."""
    short = without_quantisation(name)
    return short.removesuffix("-turbo") if "instruct" in short else short or name


def prompt_key(text: str) -> str:
    """Return the text by which two prompts count as the same: without case and spacing."""
    return _SPACE.sub(" ", text).strip().lower()


def _usable(row: Mapping[str, Any], ships: bool) -> bool:
    if ships and row["source"] in UNCLEAR_LICENCE:
        return False
    return bool(row["output_tokens"] and row["output_tokens"] >= 1 and not row["maybe_hidden_reasoning"])


def _diverse_file(where: str | Path | None) -> Path:
    return data_folder("diverse", where, "the lengths of diverse prompts do not ship") / "lengths.parquet"
