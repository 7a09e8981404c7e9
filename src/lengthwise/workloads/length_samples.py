"""`LengthSamples`: prompts x LLMs, each with the lengths of several sampled answers (the shape of CASTILLO)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.files import atomic_path, read_parquet_table
from lengthwise.llm_names import resolve_llm
from lengthwise.workloads.columns import conform, refuse_where

SCHEMA = pa.schema(
    [
        pa.field("corpus", pa.string(), nullable=False),
        pa.field("split", pa.string()),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("llm", pa.string(), nullable=False),
        pa.field("input_tokens", pa.int64(), nullable=False),
        pa.field("lengths", pa.list_(pa.int64()), nullable=False),
        pa.field("capped", pa.list_(pa.bool_()), nullable=False),
        pa.field("prompt", pa.string()),
        pa.field("temperature", pa.float64()),
    ]
)
_REQUIRED = tuple(field.name for field in SCHEMA if not field.nullable)
_HINTS = {
    "input_tokens": "a whole number of tokens, at least 1",
    "lengths": "a list of whole numbers of tokens, each at least 1",
    "capped": "a list of true (cut off by the limit) and false, as long as lengths",
}

# CASTILLO's rule for answers that never ended or ran away (its limit is 15,000 tokens).
NEVER_ENDED = 14_999
_RAN_AWAY = 8_499
_RAN_AWAY_STD_OVER_MEAN = 2.0


def clean_samples(lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """False for degenerate samples by CASTILLO's rule, and for 0, where a row (rows, samples) has no sample.

    Degenerate: length >= 14,999, or length > 8,499 where std > 2 * mean over the row's samples
    (population std, as in upstream's own output_std).
    """
    present = lengths > 0
    count = present.sum(axis=1, keepdims=True)
    mean = lengths.sum(axis=1, keepdims=True) / count
    spread = np.sqrt((np.where(present, lengths - mean, 0.0) ** 2).sum(axis=1, keepdims=True) / count)
    runaway = (lengths > _RAN_AWAY) & (spread > _RAN_AWAY_STD_OVER_MEAN * mean)
    return np.asarray(present & (lengths < NEVER_ENDED) & ~runaway)


@dataclass(frozen=True, eq=False)
class LengthSamples:
    """One row per prompt and LLM. Build one with `from_table` or `read`.

    `capped` marks samples cut off by a limit: right-censored, the answer is at least that long.
    `origin` names the source of the rows.
    """

    table: pa.Table
    origin: str

    @classmethod
    def from_table(cls, table: pa.Table | Mapping[str, Any], *, origin: str, source: str | Path | None = None) -> Self:
        """Validate a table; without a column `capped` no sample is capped."""
        raw = table if isinstance(table, pa.Table) else pa.table(dict(table))
        source = origin if source is None else source
        if "capped" not in raw.column_names and "lengths" in raw.column_names:
            raw = raw.append_column("capped", _nowhere(raw["lengths"]))
        rows = conform(raw, SCHEMA, required=_REQUIRED, hints=_HINTS, source=source)
        _check(rows, source)
        return cls(rows, origin)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file of `write`."""
        return cls.from_table(read_parquet_table(path), origin=str(path))

    def write(self, path: str | Path) -> None:
        """Write one Parquet file atomically."""
        with atomic_path(path) as temporary:
            pq.write_table(self.table, temporary, compression="zstd", compression_level=9)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @cached_property
    def llms(self) -> tuple[str, ...]:
        """Names of the LLMs, sorted."""
        return self._distinct("llm")

    @cached_property
    def corpora(self) -> tuple[str, ...]:
        """Names of the corpora, sorted."""
        return self._distinct("corpus")

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, sorted."""
        return self._distinct("split")

    def lengths_matrix(self) -> NDArray[np.int64]:
        """Lengths as (rows, samples); an InputError where rows have different numbers of samples."""
        return cast("NDArray[np.int64]", self._matrix("lengths"))

    def capped_matrix(self) -> NDArray[np.bool_]:
        """Which samples are right-censored, as (rows, samples)."""
        return cast("NDArray[np.bool_]", self._matrix("capped"))

    def clean_mask(self) -> NDArray[np.bool_]:
        """False for degenerate samples by CASTILLO's rule (`clean_samples`), as (rows, samples)."""
        lengths = self.lengths_matrix()
        return clean_samples(lengths) if lengths.size else np.ones(lengths.shape, bool)

    def clean_mean(self) -> NDArray[np.float64]:
        """Mean of each row's clean samples; NaN for a row without any."""
        clean = self.clean_mask()
        count = clean.sum(axis=1)
        total = np.where(clean, self.lengths_matrix(), 0).sum(axis=1)
        mean: NDArray[np.float64] = np.full(len(self), math.nan)
        np.divide(total, count, out=mean, where=count > 0)
        return mean

    def where(
        self,
        *,
        llm: str | Collection[str] | None = None,
        corpus: str | Collection[str] | None = None,
        split: str | Collection[str] | None = None,
    ) -> LengthSamples:
        """Return the rows of these LLMs, corpora and splits. An unknown name is an InputError."""
        keep = np.ones(len(self), bool)
        if llm is not None:
            keep &= self._is_in("llm", [resolve_llm(name, self.llms) for name in _several(llm)])
        for field, known, wanted in (("corpus", self.corpora, corpus), ("split", self.splits, split)):
            if wanted is not None:
                keep &= self._is_in(field, [_known(name, known, field) for name in _several(wanted)])
        return self._rows(keep)

    def split_by_prompt(self, fractions: Mapping[str, float], seed: int) -> dict[str, LengthSamples]:
        """Split at random so that all rows of one prompt, over all LLMs, fall on the same side.

        The split of a prompt is a hash of the seed and its id: it does not move when prompts are added or LLMs
        left out. Shares of prompts are therefore the fractions up to chance.
        """
        if any(share <= 0 for share in fractions.values()) or not math.isclose(sum(fractions.values()), 1.0):
            raise InputError(
                f"fractions {dict(fractions)} sum to {sum(fractions.values()):g}",
                hint="give positive fractions that sum to 1",
            )
        edges = np.cumsum(list(fractions.values()))[:-1]
        place = np.searchsorted(edges, self._prompt_uniforms(seed), side="right")
        return {name: self._rows(place == i) for i, name in enumerate(fractions)}

    def prompt_numbers(self) -> NDArray[np.int64]:
        """A number per row, equal for all rows of a prompt; ids are unique inside a corpus only."""
        columns = (self.table[name].to_pylist() for name in ("corpus", "prompt_id"))
        keys = np.array(["\n".join(key) for key in zip(*columns, strict=True)])
        return np.unique(keys, return_inverse=True)[1]

    def draw_prompts(self, count: int, seed: int) -> LengthSamples:
        """Return all rows of `count` prompts drawn at random, or of all prompts if there are fewer."""
        prompt = self.prompt_numbers()
        drawn = np.random.default_rng(seed).permutation(np.unique(prompt))[:count]
        return self._rows(np.isin(prompt, drawn))

    def _prompt_uniforms(self, seed: int) -> NDArray[np.float64]:
        """A number in [0, 1) per row, the same for every row of one prompt."""
        key = pc.binary_join_element_wise(self.table["corpus"], self.table["prompt_id"], "\n")
        encoded = key.combine_chunks().dictionary_encode()
        start = seed & (2**64 - 1)
        digests = [xxhash.xxh3_64_intdigest(text, start) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
        uniforms = np.array(digests, np.uint64) / 2.0**64
        return cast("NDArray[np.float64]", uniforms[encoded.indices.to_numpy()])

    def _rows(self, keep: NDArray[np.bool_]) -> LengthSamples:
        return LengthSamples(self.table.filter(pa.array(keep)).combine_chunks(), self.origin)

    def _is_in(self, field: str, values: list[str]) -> NDArray[np.bool_]:
        inside = pc.is_in(self.table[field], value_set=pa.array(values, pa.string()))
        return cast("NDArray[np.bool_]", inside.to_numpy())

    def _distinct(self, field: str) -> tuple[str, ...]:
        return tuple(sorted(value for value in pc.unique(self.table[field]).to_pylist() if value is not None))

    def _matrix(self, field: str) -> NDArray[Any]:
        counts = pc.list_value_length(self.table["lengths"]).to_numpy()
        k = int(counts[0]) if len(counts) else 0
        refuse_where(
            counts != k,
            pc.list_value_length(self.table["lengths"]),
            field="lengths",
            wrong=f"samples where row 1 has {k}",
            hint="as a matrix every row needs the same number of samples",
            source=self.origin,
        )
        flat = self.table[field].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return cast("NDArray[Any]", flat.reshape(len(counts), k))


def _nowhere(lengths: pa.ChunkedArray) -> pa.Array:
    """Return lists of False in the shape of the lengths."""
    lists = lengths.combine_chunks()
    flags = pa.array(np.zeros(len(lists.flatten()), bool))
    offsets = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy())])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flags)


def _check(table: pa.Table, source: str | Path) -> None:
    inputs = table["input_tokens"]
    refuse_where(
        inputs.to_numpy() < 1,
        inputs,
        field="input_tokens",
        wrong="is below 1",
        hint=_HINTS["input_tokens"],
        source=source,
    )
    lengths = table["lengths"].combine_chunks()
    counts = pc.list_value_length(lengths).to_numpy()
    refuse_where(counts < 1, lengths, field="lengths", wrong="holds no sample", hint=_HINTS["lengths"], source=source)
    flat = pc.fill_null(lengths.flatten(), 0).to_numpy()
    short = np.zeros(len(table), bool)
    short[np.repeat(np.arange(len(table)), counts)[flat < 1]] = True
    refuse_where(short, lengths, field="lengths", wrong="has a length below 1", hint=_HINTS["lengths"], source=source)
    flags = table["capped"].combine_chunks()
    uneven = pc.list_value_length(flags).to_numpy() != counts
    refuse_where(uneven, flags, field="capped", wrong="is not as long as lengths", hint=_HINTS["capped"], source=source)


def _several(value: str | Collection[str]) -> Collection[str]:
    return [value] if isinstance(value, str) else value


def _known(name: str, known: tuple[str, ...], field: str) -> str:
    for candidate in known:
        if candidate.lower() == name.lower():
            return candidate
    raise InputError(f"'{name}' is not known", field=field, hint=f"known: {', '.join(known) or 'none'}")
