"""What a workload looks like in a few numbers: rate, burstiness, lengths, repeated prefixes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from lengthwise.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Tokens."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, tokens: NDArray[np.int64]) -> LengthStatistics:
        """The statistics of some lengths; all zero where there are none."""
        if not len(tokens):
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        p50, p90, p99 = np.quantile(tokens, [0.5, 0.9, 0.99])
        return cls(float(tokens.mean()), float(p50), float(p90), float(p99), int(tokens.max()))


@dataclass(frozen=True, slots=True)
class WorkloadStatistics:
    """A workload in a few numbers.

    `rate` is requests per second, None for a batch. `arrival_cv` is the coefficient of variation of the gaps
    (1 for Poisson). `repeated_prefix` is the share of prompt tokens that an unlimited cache would have seen
    before, in order of arrival; None where prefixes are not known.
    """

    requests: int
    duration_s: float
    rate: float | None
    arrival_cv: float | None
    input: LengthStatistics
    output: LengthStatistics
    repeated_prefix: float | None


def describe(workload: Workload) -> WorkloadStatistics:
    """Rate, burstiness, lengths and the repeated share of the prompts."""
    return WorkloadStatistics(
        requests=len(workload),
        duration_s=workload.duration_s,
        rate=workload.rate if workload.has_arrivals else None,
        arrival_cv=_arrival_cv(workload.arrival_s),
        input=LengthStatistics.of(workload.input_tokens),
        output=LengthStatistics.of(workload.output_tokens),
        repeated_prefix=_repeated_prefix(workload),
    )


def _arrival_cv(arrival_s: NDArray[np.float64]) -> float | None:
    gaps = np.diff(arrival_s)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return float(gaps.std() / mean) if mean > 0 else None


def _repeated_prefix(workload: Workload) -> float | None:
    if workload.block_size is None:
        return None
    values, offsets = workload.block_values, workload.block_offsets
    counts = np.diff(offsets)
    new = np.zeros(len(values), bool)
    new[np.unique(values, return_index=True)[1]] = True
    # Only what stands before a prompt's first new block is a repeated prefix. `next_new[i]` is the first new
    # block at or after i, whatever row it is in; cutting it at the end of the row makes it the row's own.
    where_new = np.append(np.flatnonzero(new), len(values))
    next_new = where_new[np.searchsorted(where_new, offsets[:-1])]
    repeated_blocks = np.minimum(next_new, offsets[1:]) - offsets[:-1]
    tokens = np.minimum(repeated_blocks * workload.block_size, workload.input_tokens)
    total = int(workload.input_tokens.sum())
    return float(tokens[counts > 0].sum() / total) if total else math.nan
