"""Latency metrics on plain arrays, the same for simulated and measured requests.

TTFT = first token - sent. E2E = finish - sent. TPOT = (finish - first token) / (output tokens - 1), undefined
for one token. Per-token latency = E2E / output tokens. Queueing = started - sent. All in seconds.
A finish of NaN marks a refused request, which is in no mean.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TRUTH: Final = "oracle"
"""The predictor that knows the true lengths."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles (linear between samples), NaN without values."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Spread:
        """Return the spread of the values that are not NaN."""
        present = values[~np.isnan(values)]
        if not len(present):
            return cls(math.nan, math.nan, math.nan, math.nan)
        return cls(float(present.mean()), *(float(p) for p in np.percentile(present, (50, 90, 99))))


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of one run. Throughput is over the makespan: first sent to last finished."""

    requests: int
    refused: int
    preemptions: int
    resubmissions: int
    makespan_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    per_token_s: Spread
    queueing_s: Spread

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON; NaN becomes None."""
        return {name: _plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency limits of a chat: seconds to the first token and per further token."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1

    def __post_init__(self) -> None:
        for name, limit in (("slo-ttft", self.ttft_s), ("slo-tpot", self.tpot_s)):
            if not limit > 0:
                raise InputError(f"a limit of {limit:g} s", field=name, hint="give a number above 0")

    def met(
        self, *, sent: Floats, first_token: Floats, finish: Floats, output_tokens: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether each request was served within both limits; an answer of one token has no TPOT."""
        tpot = time_per_output_token(first_token, finish, output_tokens)
        return np.asarray((first_token - sent <= self.ttft_s) & ((tpot <= self.tpot_s) | (output_tokens == 1)))


def time_per_output_token(first_token: Floats, finish: Floats, output_tokens: NDArray[np.int64]) -> Floats:
    """TPOT of each request; NaN for one token."""
    gaps = np.where(output_tokens > 1, output_tokens - 1, np.nan)
    return np.asarray((finish - first_token) / gaps, np.float64)


def summarise(
    *,
    sent: Floats,
    first_token: Floats,
    finish: Floats,
    output_tokens: NDArray[np.int64],
    started: Floats | None = None,
    preemptions: int = 0,
    resubmissions: int = 0,
) -> Summary:
    """Summarise served requests, simulated or measured; `started` is known only inside an engine."""
    served = ~np.isnan(finish)
    makespan = float(finish[served].max() - sent.min()) if served.any() else math.nan
    seconds = makespan if makespan > 0 else math.nan
    e2e = finish - sent
    return Summary(
        requests=int(served.sum()),
        refused=int((~served).sum()),
        preemptions=preemptions,
        resubmissions=resubmissions,
        makespan_s=makespan,
        requests_per_s=float(served.sum()) / seconds,
        output_tokens_per_s=float(output_tokens[served].sum()) / seconds,
        ttft_s=Spread.of(first_token - sent),
        tpot_s=Spread.of(time_per_output_token(first_token, finish, output_tokens)),
        e2e_s=Spread.of(e2e),
        per_token_s=Spread.of(e2e / output_tokens),
        queueing_s=Spread.of(np.full(len(sent), np.nan) if started is None else started - sent),
    )


def _plain(value: Any) -> Any:  # noqa: ANN401  (numbers and dictionaries of numbers)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
