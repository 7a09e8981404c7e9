"""CASTILLO's rows by three rules for answers that never ended, and what the paper's tables ask about each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.llm_names import resolve_llm
from lengthwise.predictors.prediction import P99
from lengthwise.traffic.scores import moments
from lengthwise.workloads import LengthSamples

Floats = NDArray[np.float64]

LLMS: Final = ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B")
WIDTHS: Final = (50, 100, 200, 500, 1000)
UNSEEN: Final = "Alpaca"
LONGEST: Final = 15_000
"""Tokens: the paper removes entries that exceed them."""

RULES: Final[Mapping[str, str]] = {
    "all": "all rows, all samples",
    "paper": "rows with a sample over 15,000 tokens out, the paper's words",
    "castillo": "degenerate samples out, CASTILLO's rule",
}


@dataclass(frozen=True, eq=False)
class Truth:
    """The rows that a rule keeps, with mean, population std and P99 of their samples in tokens.

    P99 is the 0.99 quantile, interpolated between samples: of ten, nearly the largest. CASTILLO's column
    `output_percentiles` has the same.
    """

    samples: LengthSamples
    mean: Floats
    std: Floats
    p99: Floats

    @classmethod
    def of(cls, samples: LengthSamples, rule: str = "castillo") -> Truth:
        """Apply a rule of RULES."""
        lengths = samples.lengths_matrix()
        counted = samples.clean_mask() if rule == "castillo" else np.ones(lengths.shape, bool)
        kept = counted.any(axis=1)
        if rule == "paper":
            kept &= (lengths <= LONGEST).all(axis=1)
        lengths, counted = lengths[kept], counted[kept]
        mean, std = moments(lengths, counted)
        masked = np.where(counted, lengths, np.nan)
        p99 = np.nanquantile(masked, P99, axis=1) if len(masked) else np.empty(0)
        rows = LengthSamples(samples.table.filter(pa.array(kept)).combine_chunks(), samples.origin)
        return cls(rows, mean, std, np.asarray(p99, np.float64))

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Corpus and prompt id of each row."""
        table = self.samples.table
        return list(zip(table["corpus"].to_pylist(), table["prompt_id"].to_pylist(), strict=True))


def rows_of(llm: str, samples: LengthSamples) -> LengthSamples:
    """All rows of one of LLMS; an InputError where there are none."""
    try:
        return samples.where(llm=resolve_llm(llm, samples.llms))
    except InputError as error:
        raise InputError(
            f"holds no rows of {llm}", source=samples.origin, hint="the tables are about CASTILLO"
        ) from error


def trained_on(rows: LengthSamples) -> LengthSamples:
    """Train and validate rows of the six corpora: Alpaca is never trained on."""
    known = rows.where(corpus=[corpus for corpus in rows.corpora if corpus != UNSEEN])
    return known.where(split=[split for split in known.splits if split != "test"])


def evaluated_parts(rows: LengthSamples) -> list[tuple[int, int, LengthSamples]]:
    """The test rows: number of the class table, of the error table, and rows; Alpaca's with all its splits."""
    known = rows.where(corpus=[corpus for corpus in rows.corpora if corpus != UNSEEN])
    parts = [(2, 4, known.where(split="test"))]
    if UNSEEN in rows.corpora:
        parts.append((3, 5, rows.where(corpus=UNSEEN)))
    return parts


def rows_to_score(samples: LengthSamples) -> LengthSamples:
    """The test rows of every one of LLMS, in the order of `evaluated_parts`."""
    parts = [part.table for llm in LLMS for _, _, part in evaluated_parts(rows_of(llm, samples))]
    return LengthSamples(pa.concat_tables(parts).combine_chunks(), samples.origin)
