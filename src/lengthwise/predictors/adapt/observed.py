"""Lengths of one LLM's answers, from what `lengthwise collect` writes or from plain columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.workloads.columns import conform, refuse_where
from lengthwise.workloads.files import check_readable, read_parquet_table
from lengthwise.workloads.length_samples import resolve_llm

LEAST: Final = 20
"""Lengths below which nothing is learned."""
ENOUGH: Final = 50
"""Lengths below which what is learned is shaky."""
LEAST_PROMPTS: Final = 10

_HINTS: Final = {
    "prompt": "the text that was asked",
    "length": "a whole number of tokens, at least 1",
    "lengths": "a list of whole numbers of tokens, each at least 1",
    "capped": "true where the answer was cut off by a limit",
}


@dataclass(frozen=True, eq=False)
class Observed:
    """Distinct prompts, and up to k lengths of the LLM's answers to each."""

    llm: str
    texts: tuple[str, ...]
    lengths: NDArray[np.float64]
    """(prompts, k)"""
    present: NDArray[np.bool_]
    censored: NDArray[np.bool_]
    """The answer was cut off, and is at least that long."""
    origin: str

    @classmethod
    def of(
        cls,
        llm: str,
        texts: Sequence[str],
        lengths: Sequence[int],
        capped: Sequence[bool | None] | None = None,
        *,
        origin: str,
    ) -> Observed:
        """Bring answers to the same prompt together; too few of them are an InputError."""
        by_text: dict[str, list[tuple[int, bool]]] = {}
        cut = [False] * len(lengths) if capped is None else capped
        for text, length, was_cut in zip(texts, lengths, cut, strict=True):
            by_text.setdefault(text, []).append((length, bool(was_cut)))
        if len(lengths) < LEAST or len(by_text) < LEAST_PROMPTS:
            raise InputError(
                f"{len(lengths)} lengths of {len(by_text)} prompts are too few",
                source=origin,
                hint=f"give at least {LEAST} of {LEAST_PROMPTS} prompts; 50 to 500 of as many are what it is made for",
            )
        most = max(len(answers) for answers in by_text.values())
        table = np.zeros((len(by_text), most, 2))
        present = np.zeros((len(by_text), most), bool)
        for row, answers in enumerate(by_text.values()):
            table[row, : len(answers)] = answers
            present[row, : len(answers)] = True
        if (table[..., 1] > 0).sum() > len(lengths) / 2:
            raise InputError("most of the answers were cut off", source=origin, hint="collect them with a higher limit")
        return cls(llm, tuple(by_text), table[..., 0], present, table[..., 1] > 0, origin)

    @property
    def caps(self) -> NDArray[np.float64]:
        """Where a prediction about each prompt ends: where its answers were cut off, else above all lengths."""
        longest = max(DEFAULT_CAP, float(self.lengths.max()))
        return np.where(self.censored.any(axis=1), self.lengths.max(axis=1), longest)

    @property
    def count(self) -> int:
        """Lengths there are."""
        return int(self.present.sum())

    @property
    def cut_off(self) -> int:
        """How many of them are only bounds."""
        return int(self.censored.sum())


def read_observed(path: Path, llm: str | None = None) -> Observed:
    """Read a Parquet, CSV or JSON lines file of `prompt` and `lengths` or `length`, perhaps `capped` and `llm`.

    `llm` names the LLM; of a file with several it chooses one. Without it the file must be of one.
    """
    table = _read(path)
    several = "lengths" in table.column_names
    field, kind = ("lengths", pa.list_(pa.int64())) if several else ("length", pa.int64())
    schema = pa.schema(
        [
            pa.field("prompt", pa.large_string(), nullable=False),
            pa.field(field, kind, nullable=False),
            pa.field("capped", pa.list_(pa.bool_()) if several else pa.bool_()),
            pa.field("llm", pa.string()),
        ]
    )
    rows = conform(table, schema, required=("prompt", field), hints=_HINTS, source=path)
    told = [each if several else [each] for each in rows[field].to_pylist()]
    cut = [
        flags if several and flags is not None else [flags] * len(each)
        for flags, each in zip(rows["capped"].to_pylist(), told, strict=True)
    ]
    _check(rows, field, told, cut, path)
    mine, name = _mine(rows["llm"].to_pylist(), llm, path)
    texts = rows["prompt"].to_pylist()
    flat = [(texts[i], *pair) for i in mine for pair in zip(told[i], cut[i], strict=True)]
    return Observed.of(
        name, [a for a, _, _ in flat], [b for _, b, _ in flat], [c for _, _, c in flat], origin=str(path)
    )


def _read(path: Path) -> Any:  # noqa: ANN401  (pyarrow has no types)
    if path.suffix not in (".csv", ".jsonl", ".ndjson"):
        return read_parquet_table(path)
    check_readable(path)
    try:
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
        return pyarrow.json.read_json(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"cannot be read: {str(error).splitlines()[0]}", source=path) from error


def _check(rows: Any, field: str, told: list[list[int | None]], cut: list[list[bool | None]], path: Path) -> None:  # noqa: ANN401
    bad = np.array([not each or any(x is None or x < 1 for x in each) for each in told], bool)
    refuse_where(bad, rows[field], field=field, wrong="is no length", hint=_HINTS[field], source=path)
    uneven = np.array([len(flags) != len(each) for flags, each in zip(cut, told, strict=True)], bool)
    refuse_where(uneven, rows["capped"], field="capped", wrong="is not as long as lengths", hint=None, source=path)


def _mine(llms: list[str | None], llm: str | None, path: Path) -> tuple[list[int], str]:
    """The rows of one LLM, and its name."""
    names = sorted({name for name in llms if name is not None})
    if len(names) <= 1:
        if llm is None and not names:
            raise InputError("does not say whose lengths these are", source=path, field="llm", hint="give --llm NAME")
        return list(range(len(llms))), names[0] if llm is None else llm
    if llm is None:
        raise InputError(f"holds lengths of {len(names)} LLMs", source=path, field="llm", hint="choose one with --llm")
    name = resolve_llm(llm, names)
    return [row for row, each in enumerate(llms) if each == name], name
