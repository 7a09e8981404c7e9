"""Data sets of answer lengths: CASTILLO, Alpaca-52k, and prompts of many kinds from public repositories.

CASTILLO (Perez-Ramirez, Kostic, Boman, "CASTILLO: Characterizing Response Length Distributions of LLMs", 2025) has ten
sampled answer lengths per prompt and LLM; it comes from a folder, the hub or the packaged slice. Alpaca is a workload,
or length samples with one answer per prompt. The diverse prompts are one Parquet file with a row per answer (prompt,
model, output_tokens, finish, source, licence, kind), read as length samples in groups of sources. A group is what a
judgement leaves out of training at once: sources that share prompts or a task are in one group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import data_folder, data_home, open_text, read_parquet_table, sample
from lengthwise.llm_names import without_quantisation
from lengthwise.prefixes import BLOCK_TOKENS
from lengthwise.workloads.arrivals import daily, gamma, generator, in_rounds, one_of_each_row
from lengthwise.workloads.columns import require_columns, text_block_lists
from lengthwise.workloads.length_samples import LengthSamples
from lengthwise.workloads.workload import LeftOut, Workload

PACKAGED = "packaged sample"
"""The `origin` of the slice that ships with the package."""

SPLITS = ("train", "validate", "test")
_CONFIG = "original"  # of the hub; `LengthSamples.clean_mask` marks its degenerate samples
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LOCAL_FIELDS = {
    "dataset": "corpus",
    "model": "llm",
    "input_size": "input_tokens",
    "output_sizes": "lengths",
    "temp": "temperature",
}
_HUB_FIELDS = {**_LOCAL_FIELDS, "prompt_id": "prompt_id", "prompt_text": "prompt"}


def load_castillo(where: str | Path | None = None, split: str | Collection[str] | None = None) -> LengthSamples:
    """Return CASTILLO's length samples, of all splits or of the given ones.

    `where` is a folder (lengths.parquet and prompts.parquet, or the hub's own layout) or a hub name such as
    "danfperam/castillo". Without it: $LENGTHWISE_DATA/castillo if it exists, else the packaged slice; `origin`
    of the result names it.
    """
    samples = _open(where)
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
        "output_tokens": one_of_each_row(rows.lengths_matrix()[picks], clean[picks], generator(seed, "lengths")),
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


def castillo_day(samples: LengthSamples, llm: str, *, peak_rate: float, seed: int, minutes: float = 0.5) -> Workload:
    """Return a day of CASTILLO's prompts for one LLM, each hour `minutes` long (`arrivals.daily`)."""
    arrival = daily(peak_rate, minutes, generator(seed, "arrivals"))
    if not len(arrival):
        raise InputError(f"no request in a day at {peak_rate:g} per second", field="rate", hint="give a larger rate")
    drawn = castillo_workload(samples, llm, requests=len(arrival), rate=1.0, seed=seed)
    return drawn.replace(arrival_s=arrival)


def _left_out(clean: NDArray[np.bool_]) -> tuple[LeftOut, ...]:
    rules = {
        "degenerate samples (CASTILLO's rule), never drawn as a true length": int((~clean).sum()),
        "prompts of which every sample is degenerate": int((~clean.any(axis=1)).sum()),
    }
    return tuple(LeftOut(rule, rows) for rule, rows in rules.items() if rows)


def _open(where: str | Path | None) -> LengthSamples:
    if where is None:
        home = data_home()
        if home is None or not (home / "castillo").is_dir():
            return LengthSamples.from_table(read_parquet_table(sample("castillo.parquet")), origin=PACKAGED)
        where = home / "castillo"
    folder = Path(where)
    if folder.is_dir():
        return _from_folder(folder, origin=str(folder))
    if _HUB_NAME.fullmatch(str(where)) and not folder.exists():
        return _from_folder(_download(str(where)), origin=str(where))
    raise InputError("no such folder", source=where, hint="give a folder, or a hub name such as danfperam/castillo")


def _from_folder(folder: Path, *, origin: str) -> LengthSamples:
    lengths = folder / "lengths.parquet"
    if lengths.is_file():
        return LengthSamples.from_table(_join(lengths, folder / "prompts.parquet"), origin=origin, source=lengths)
    files = {split: folder / _CONFIG / f"{_CONFIG}_{split}.json" for split in SPLITS}
    parts = [_hub_rows(path, split) for split, path in files.items() if path.is_file()]
    if not parts:
        raise InputError(
            "holds no CASTILLO data",
            source=folder,
            hint=f"expected lengths.parquet and prompts.parquet, or {_CONFIG}/{_CONFIG}_train.json and so on",
        )
    return LengthSamples(pa.concat_tables(part.table for part in parts).combine_chunks(), origin)


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


def _download(name: str) -> Path:
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
            huggingface_hub.snapshot_download(repo_id=name, repo_type="dataset", allow_patterns=[f"{_CONFIG}/*"])
        )
    except OSError as error:  # the hub's errors for a bad name, no network and HTTP are all of this kind
        raise InputError(
            f"cannot be fetched from the hub ({type(error).__name__})",
            source=name,
            hint="check the name and the network, or give a folder with the data",
        ) from error


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


def load_alpaca_lengths(where: str | Path | None = None) -> LengthSamples:
    """Return all of Alpaca as length samples: one LLM, one answer per prompt, a random fifth as split `test`.

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
    parts = samples.split_by_prompt({"test": 0.2, "train": 0.8}, seed=1)
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
    ),
    "open-ended": ("lmarena/arena-hard-auto (arena-bench-v1)", "lmarena/arena-hard-auto (v2.0)"),
    "arena": ("cimo-labs/cje (arena_sample)",),
    "noncompliance": ("allenai/noncompliance (CoCoNot)",),
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
_DIVERSE_FILES: Final = ("lengths.parquet", "open_ended.parquet")
"""The second one is optional; its answers of reasoning LLMs count the visible answer."""
_DIVERSE_COLUMNS: Final = ("prompt", "model", "output_tokens", "finish", "source", "licence")
_DIVERSE_TYPES: Final = (pa.string(), pa.string(), pa.int64(), pa.string(), pa.string(), pa.string())
_HIDDEN: Final = "maybe_hidden_reasoning"


def load_diverse(
    where: str | Path | None = None, *, known_llms: Collection[str] = (), ships: bool = False
) -> LengthSamples:
    """Return one row per prompt and LLM, with the group as the corpus; `finish` "length" is a capped sample.

    `where` is the folder that holds lengths.parquet and, optionally, open_ended.parquet; $LENGTHWISE_DATA/diverse if
    not given. Names of LLMs are normalised, to that of `known_llms` where it is the same LLM. A prompt of several
    groups stays in the first one. Answers with hidden reasoning are left out: their length is not known. With `ships`,
    sources of unclear licence are left out.
    """
    path, table = _diverse_table(where)
    unknown = sorted(set(pc.unique(table["source"]).to_pylist()) - set(_GROUP_OF))
    if unknown:
        raise InputError(
            f"source '{unknown[0]}' is in no group", source=path, hint="add it to workloads/datasets.GROUPS"
        )
    order = {group: number for number, group in enumerate(GROUPS)}
    names = {normalise_llm(name): name for name in known_llms}
    prompts: dict[str, tuple[str, str]] = {}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    records = [row for row in table.to_pylist() if _usable(row, ships)]
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
    _, table = _diverse_table(where)
    found = dict(zip(table["source"].to_pylist(), table["licence"].to_pylist(), strict=True))
    return {source: found[source] for source in sorted(found) if not (ships and source in UNCLEAR_LICENCE)}


def normalise_llm(name: str) -> str:
    """Return the name by which rows of different sources are of the same LLM."""
    short = without_quantisation(name)
    return short.removesuffix("-turbo") if "instruct" in short else short or name


def prompt_key(text: str) -> str:
    """Return the text by which two prompts count as the same: without case and spacing."""
    return " ".join(text.split()).lower()


def _usable(row: Mapping[str, Any], ships: bool) -> bool:
    if ships and row["source"] in UNCLEAR_LICENCE:
        return False
    return bool(row["output_tokens"] and row["output_tokens"] >= 1 and not row[_HIDDEN])


def _diverse_table(where: str | Path | None) -> tuple[Path, pa.Table]:
    """Return the first file and the rows of all files; a file without the column has no hidden reasoning."""
    folder = data_folder("diverse", where, "the lengths of diverse prompts do not ship")
    parts: list[pa.Table] = []
    for name in _DIVERSE_FILES:
        path = folder / name
        if parts and not path.is_file():
            continue
        table = read_parquet_table(path)
        require_columns(table, _DIVERSE_COLUMNS, path)
        hidden = table[_HIDDEN] if _HIDDEN in table.column_names else pa.repeat(False, len(table))
        columns = [table[column].cast(kind) for column, kind in zip(_DIVERSE_COLUMNS, _DIVERSE_TYPES, strict=True)]
        parts.append(pa.table([*columns, hidden], [*_DIVERSE_COLUMNS, _HIDDEN]))
    return folder / _DIVERSE_FILES[0], pa.concat_tables(parts)
