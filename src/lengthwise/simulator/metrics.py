"""Latency metrics on plain arrays, the same for simulated and measured requests.

Latencies are those of `traffic.rows.latencies`; queueing = started - arrival. All in seconds. A request whose
`finished_s` is NaN was refused and is in no mean. Where a client measures, the arrival is the time of sending.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.traffic.rows import latencies

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


_TENTHS: Final = 10
_WINDOWS: Final = 60


@dataclass(frozen=True, slots=True)
class LatencyProfile:
    """Latency by output length and over time, in a few numbers: what reports draw.

    Requests are in ten groups of equal size by output length, and in 60 windows of equal length by the time of sending.
    """

    tokens: tuple[float, ...]
    """Median output tokens of each tenth, the shortest first."""
    e2e_s: tuple[float, ...]
    """Mean E2E of each tenth."""
    time_s: tuple[float, ...]
    """End of each window, in seconds after the first request was sent."""
    waiting: tuple[float, ...]
    """Requests without their first token at that time."""
    window_e2e_s: tuple[float, ...]
    """Mean E2E of the requests sent in each window; NaN where none was sent."""

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> LatencyProfile:
        """Return the profile from JSON, in which NaN is null."""
        names = (each.name for each in fields(cls))
        return cls(*(tuple(math.nan if value is None else float(value) for value in content[name]) for name in names))

    @classmethod
    def of(
        cls, *, arrival_s: Floats, first_token_s: Floats, finished_s: Floats, output_tokens: NDArray[np.int64]
    ) -> LatencyProfile:
        """Return the profile of the requests that were served."""
        served = ~np.isnan(finished_s)
        columns = (arrival_s, first_token_s, finished_s, output_tokens)
        sent, first_token, finish, tokens = (each[served] for each in columns)
        if not len(sent):
            return cls((), (), (), (), ())
        e2e = finish - sent
        tenths = [part for part in np.array_split(np.argsort(tokens, kind="stable"), _TENTHS) if len(part)]
        begin = float(sent.min())
        ends = np.linspace(begin, float(finish.max()), _WINDOWS + 1)[1:]
        # An answer that was not streamed has no first token: its request waits until the end.
        first = np.where(np.isnan(first_token), finish, first_token)
        waiting = np.searchsorted(np.sort(sent), ends, "right") - np.searchsorted(np.sort(first), ends, "right")
        window = np.searchsorted(ends, sent, "left")
        counts, sums = (np.bincount(window, weights, _WINDOWS) for weights in (None, e2e))
        means = np.divide(sums, counts, out=np.full(_WINDOWS, np.nan), where=counts > 0)
        return cls(
            tuple(float(np.median(tokens[part])) for part in tenths),
            tuple(float(e2e[part].mean()) for part in tenths),
            tuple((ends - begin).tolist()),
            tuple(waiting.astype(float).tolist()),
            tuple(means.tolist()),
        )


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
    profile: LatencyProfile
    sessions: int = 0
    """Sessions of which every request was served."""
    session_s: Spread = Spread(math.nan, math.nan, math.nan, math.nan)
    """From the first arrival of a session to its last answer, think times included."""

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON; NaN becomes None."""
        return {name: _plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class LatencyLimits:
    """Latency limits in seconds; infinite: no limit.

    To the first token, per further token (TPOT), to the last token (E2E), and of E2E per output token.
    """

    ttft_s: float = 2.0
    tpot_s: float = 0.1
    e2e_s: float = math.inf
    per_token_s: float = math.inf

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if not limit > 0:
                option = f"slo-{name.removesuffix('_s').replace('_', '-')}"
                raise InputError(f"a limit of {limit:g} s", field=option, hint="give a number above 0")

    @classmethod
    def given(cls, ttft_s: float | None, tpot_s: float | None, e2e_s: float | None, per_token_s: float | None) -> Self:
        """Return limits of which None is no limit."""
        return cls(*(math.inf if limit is None else limit for limit in (ttft_s, tpot_s, e2e_s, per_token_s)))

    def met(
        self, *, output_tokens: NDArray[np.int64], own: Mapping[str, Floats] | None = None, **times: Floats
    ) -> NDArray[np.bool_]:
        """Whether each request was served within all limits, by the arguments of `latencies`.

        `own`: limits of single requests by the names of latencies, which replace these where they are finite. An answer
        of one token has no TPOT.
        """
        found = latencies(output_tokens=output_tokens, **times)
        found["tpot_s"] = np.where(output_tokens == 1, 0.0, found["tpot_s"])
        in_time = np.ones(len(output_tokens), np.bool_)
        for name, limit in asdict(self).items():
            given = (own or {}).get(name, np.array(math.inf))
            in_time &= found[name] <= np.where(np.isinf(given), limit, given)
        return in_time

    def __str__(self) -> str:
        limits = (
            ("TTFT", self.ttft_s),
            ("TPOT", self.tpot_s),
            ("E2E", self.e2e_s),
            ("E2E per token", self.per_token_s),
        )
        stated = ", ".join(f"{name} at most {limit:g} s" for name, limit in limits if math.isfinite(limit))
        return stated or "their own limits"


def load_kept(loads: Sequence[float], shares: Sequence[float], level: float) -> float:
    """Return the highest load up to which a share of at least `level` is attained, linear between the loads simulated.

    NaN if the lowest load does not attain it; the highest load if all do: then it is a lower bound.
    """
    order = np.argsort(loads)
    x, y = np.asarray(loads, float)[order], np.asarray(shares, float)[order]
    if not y[0] >= level:
        return math.nan
    below = np.flatnonzero(~(y >= level))
    if not len(below):
        return float(x[-1])
    at = int(below[0])
    return float(x[at - 1] + (x[at] - x[at - 1]) * (y[at - 1] - level) / (y[at - 1] - y[at]))


def summarise(
    *,
    arrival_s: Floats,
    first_token_s: Floats,
    finished_s: Floats,
    output_tokens: NDArray[np.int64],
    started_s: Floats | None = None,
    preemptions: int = 0,
    resubmissions: int = 0,
    session_s: Floats | None = None,
) -> Summary:
    """Summarise served requests, simulated or measured; `started_s` is known only inside an engine.

    `session_s`: the time of each session, NaN where a request of it was refused.
    """
    times_of_sessions = np.empty(0) if session_s is None else session_s
    served = ~np.isnan(finished_s)
    makespan = float(finished_s[served].max() - arrival_s.min()) if served.any() else math.nan
    seconds = makespan if makespan > 0 else math.nan
    times: dict[str, Any] = {
        "arrival_s": arrival_s,
        "first_token_s": first_token_s,
        "finished_s": finished_s,
        "output_tokens": output_tokens,
    }
    return Summary(
        requests=int(served.sum()),
        refused=int((~served).sum()),
        preemptions=preemptions,
        resubmissions=resubmissions,
        makespan_s=makespan,
        requests_per_s=float(served.sum()) / seconds,
        output_tokens_per_s=float(output_tokens[served].sum()) / seconds,
        **{name: Spread.of(values) for name, values in latencies(**times).items()},
        queueing_s=Spread.of(np.full(len(arrival_s), np.nan) if started_s is None else started_s - arrival_s),
        profile=LatencyProfile.of(**times),
        sessions=int((~np.isnan(times_of_sessions)).sum()),
        session_s=Spread.of(times_of_sessions),
    )


def _plain(value: Any) -> Any:  # numbers and dictionaries of numbers
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
