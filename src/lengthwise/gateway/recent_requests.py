"""The requests of the last hour as numbers: lengths, predictions and times, without any text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.types import Call
from lengthwise.policies.registry import limits_kept
from lengthwise.traffic.rows import LIMITS, latencies, row_dtype

Rows = NDArray[np.void]

HOUR_S: Final = 3600.0
SOURCES: Final = ("prior", "history", "predictor", "hint")
_MAX_NAMES: Final = 256
_OTHERS: Final = "others"
_MAX_UNWRITTEN: Final = 256
FIELDS: Final = (
    "request",
    "arrival_s",
    "started_s",
    "first_token_s",
    "finished_s",
    "input_tokens",
    "output_tokens",
    "max_tokens",
    "mu",
    "sigma",
    "policy",
    "tenant",
    "source",
    "censored",
    "engine",
    *LIMITS,
)
"""Fields of `RequestRow`, of requests that were answered; times by the dispatcher's clock, `max_tokens` the cap.
Limits are the request's, else the policy's."""
ROW: Final = row_dtype(FIELDS)
_NO_LIMITS: Final = (math.nan,) * len(LIMITS)


class Names:
    """Numbers for names, the same for the same name; at most 256, further names share the last number."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of a name."""
        found = self._numbers.get(name)
        if found is None:
            if len(self.names) >= _MAX_NAMES - 1:
                name = _OTHERS
            found = self._numbers.setdefault(name, len(self.names))
            if found == len(self.names):
                self.names.append(name)
        return found


class RecentRequests:
    """A ring of finished requests: those of the last hour, at most `most`."""

    def __init__(self, dispatcher: Dispatcher, most: int = 50_000) -> None:
        self.policies = Names()
        self.tenants = Names()
        self.engines = Names()
        self.added = 0
        """Finished requests since the start."""
        self.failed = 0
        """Requests that ended in an error."""
        self._dispatcher = dispatcher
        self._ring = np.zeros(most, ROW)
        self._unwritten: list[tuple[float, ...]] = []  # the last rows: writing many at once takes a tenth of the time
        self._policy: tuple[object, int, dict[str, float]] = (None, 0, {})

    def add(self, call: Call) -> None:
        """Record a request that has ended; one without an answer is only counted."""
        job, tokens = call.job, call.meter.tokens
        self.failed += call.failed
        if call.failed or tokens is None or job.started is None:
            return
        length, number = call.meter.length, self.policy_number
        limits = {**self._policy[2], **job.limits} if self._policy[2] or job.has_limits else {}
        prompt = call.meter.prompt_tokens
        row = (
            int(job.id),
            job.arrival,
            job.started,
            math.nan if call.ttft_s is None else job.started + call.ttft_s,
            self._dispatcher.clock(),
            job.prompt_tokens if prompt is None else prompt,
            tokens,
            job.cap,
            job.mu,
            job.sigma,
            number,
            self.tenants.number(call.tenant),
            SOURCES.index(call.source),
            length is not None and length[1],
            self.engines.number(call.engine or ""),
            *([limits.get(name, math.nan) for name in LIMITS] if limits else _NO_LIMITS),
        )
        self._unwritten.append(row)
        self.added += 1
        if len(self._unwritten) >= _MAX_UNWRITTEN:
            self._write()

    def _write(self) -> None:
        rows, self._unwritten = np.array(self._unwritten, ROW), []
        self._ring[np.arange(self.added - len(rows), self.added) % len(self._ring)] = rows

    @property
    def policy_number(self) -> int:
        """The number of the policy in force."""
        policy = self._dispatcher.policy
        if self._policy[0] is not policy:  # a wrapper makes its name anew at each reading
            self._policy = policy, self.policies.number(policy.name), limits_kept(policy)
        return self._policy[1]

    def last(self, count: int) -> Rows:
        """Return the last `count` rows that are not older than an hour, the oldest first."""
        self._write()
        count = min(count, self.added, len(self._ring))
        end = self.added % len(self._ring)
        begin = end - count
        rows: Rows = self._ring[begin:end] if begin >= 0 else np.concatenate([self._ring[begin:], self._ring[:end]])
        return rows[rows["finished_s"] >= self._dispatcher.clock() - HOUR_S]


def latency_series(rows: Rows, bucket_s: float) -> Iterator[list[Any]]:
    """Yield the figures of each bucket, policy and tenant.

    [bucket, policy, tenant, n, mean and P99 of TTFT, of E2E and of per-token latency, requests with limits, those of
    them within all their limits]. A bucket holds the requests that ended in it; an answer in one piece has its end as
    its first token.
    """
    if not len(rows):
        return
    buckets = (rows["finished_s"] // bucket_s).astype(np.int64)
    order = np.lexsort((rows["tenant"], rows["policy"], buckets))
    rows, buckets = rows[order], buckets[order]
    found = latencies(
        arrival_s=rows["arrival_s"],
        first_token_s=np.where(np.isnan(rows["first_token_s"]), rows["finished_s"], rows["first_token_s"]),
        finished_s=rows["finished_s"],
        output_tokens=np.maximum(1, rows["output_tokens"]),
    )
    values = np.stack([found[name] for name in ("ttft_s", "e2e_s", "per_token_s")])
    given = np.stack([rows[name] for name in LIMITS])
    limited = ~np.isnan(given).all(axis=0)
    late = (np.stack([found[latency] for latency in LIMITS.values()]) > given).any(axis=0)
    counts = np.stack([limited, limited & ~late])
    keys = np.stack([buckets, rows["policy"], rows["tenant"]])
    starts = np.flatnonzero(np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        part = values[:, start:end]
        both = np.stack([part.mean(axis=1), np.percentile(part, 99, axis=1)], axis=1)
        figures = (float(f"{value:.4g}") for value in both.ravel())
        yield [*keys[:, start].tolist(), int(end - start), *figures, *counts[:, start:end].sum(axis=1).tolist()]
