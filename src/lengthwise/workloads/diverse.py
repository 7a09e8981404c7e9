"""Lengths of answers to prompts of many kinds, from public repositories, as length samples in groups of sources.

One Parquet file with a row per answer: prompt, model, output_tokens, finish, source, licence, kind. A group of sources
is what a judgement leaves out of training at once: sources that share prompts or a task are in one group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from lengthwise.errors import InputError
from lengthwise.predictors.llm_names import without_quantisation
from lengthwise.workloads.columns import require_columns
from lengthwise.workloads.files import data_folder, read_parquet_table
from lengthwise.workloads.length_samples import LengthSamples

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
_COLUMNS: Final = ("prompt", "model", "output_tokens", "finish", "source", "licence", "maybe_hidden_reasoning")
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
    path = _file(where)
    table = read_parquet_table(path)
    require_columns(table, _COLUMNS, path)
    unknown = sorted(set(pc.unique(table["source"]).to_pylist()) - set(_GROUP_OF))
    if unknown:
        raise InputError(
            f"source '{unknown[0]}' is in no group", source=path, hint="add it to workloads/diverse.GROUPS"
        )
    order = {group: number for number, group in enumerate(GROUPS)}
    names = {normalise_llm(name): name for name in known_llms}
    prompts: dict[str, tuple[str, str]] = {}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    records = [row for row in table.select(list(_COLUMNS)).to_pylist() if _usable(row, ships)]
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
    table = read_parquet_table(_file(where))
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


def _file(where: str | Path | None) -> Path:
    return data_folder("diverse", where, "the lengths of diverse prompts do not ship") / "lengths.parquet"
