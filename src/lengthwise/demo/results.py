"""What a race shows: live figures of a side, and the verdict on the requests that both sides have answered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.client.load import Sample
from lengthwise.demo.traffic import TRUE, RaceTraffic
from lengthwise.intervals import Ratio, over_requests, share_change
from lengthwise.reports.page import Document
from lengthwise.reports.runs import NAMES, ReportedRun
from lengthwise.reports.tables import Table, seconds, share
from lengthwise.reports.verdict import Verdict, on_policies
from lengthwise.simulator.grid import BASELINE, COMPARED, figure_name
from lengthwise.simulator.metrics import TRUTH, LatencyLimits, summarise
from lengthwise.traffic.rows import latencies

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]

WITHIN_S: Final = 2.0
"""To the first token: the limit of which the share is shown."""
COMMANDS: Final = (
    "lengthwise serve --engine http://YOUR-ENGINE:8000 --observe --log traffic",
    "lengthwise report traffic",
    "lengthwise demo --from traffic",
    "lengthwise serve --engine http://YOUR-ENGINE:8000",
)
"""Commands from the demo to an engine of the user: log, estimate, watch, serve."""

_MIN_REQUESTS: Final = 20
_RECENT_S: Final = 10.0
_LATE_S: Final = 0.5  # by which the machine may be behind without a note
_TABLE: Final = {
    "TTFT p50": ("ttft_s", "p50"),
    "TTFT p99": ("ttft_s", "p99"),
    "E2E mean": ("e2e_s", "mean"),
    "E2E p99": ("e2e_s", "p99"),
    "per token": ("per_token_s", "mean"),
}


def race_document(
    traffic: RaceTraffic,
    samples: Sequence[Sequence[Sample]],
    *,
    policy: str,
    predictor: str,
    loads: Sequence[float],
    late_s: float,
    notes: Sequence[str] = (),
) -> Document:
    """Return the verdict, a table and the facts, of the requests that both sides have answered."""
    columns = _answered(samples)
    n = len(columns[0]["request"])
    if n < _MIN_REQUESTS:
        verdict = Verdict(f"{n} requests are too few for a verdict: let the race run for longer.")
        return Document("Demo", [], {"verdict": str(verdict), "requests": n, "next": COMMANDS}, verdict)
    low, high = min(loads), max(loads)
    offered = f"load {low:.2f}" if low == high else f"load {low:.2f} to {high:.2f}"
    met = [_within(each) for each in columns]
    runs = _runs(columns, met, policy, TRUTH if predictor == TRUE else predictor, offered)
    verdict = on_policies(runs)
    short = traffic.thirds[columns[0]["request"] % len(traffic)] == 0
    shares = [[float(each.mean()), float(each[short].mean())] for each in met]
    facts = {
        "verdict": str(verdict),
        "requests": n,
        "loads": loads,
        "capacity_per_s": traffic.capacity_per_s,
        "fleet": str(traffic.fleet),
        "workload": traffic.origin,
        "limit_s": WITHIN_S,
        "within": [all_ for all_, _ in shares],
        "shortest_third_within": [short for _, short in shares],
        "runs": [run.to_dict() for run in runs],
        "late_s": late_s,
        "next": COMMANDS,
    }
    rows = [
        [run.label, *map(share, each), *(seconds(run.latency[metric][name]) for metric, name in _TABLE.values())]
        for run, each in zip(runs, shares, strict=True)
    ]
    slots = f"{traffic.fleet} of {traffic.fleet.slots} slots"
    within = f"in {WITHIN_S:g} s"
    explained = [
        f"{n:,} requests to both, {offered}: {traffic.origin}.",
        f"On {slots}, simulated in real time behind two gateways.",
        f"{within}: first token within {WITHIN_S:g} s of sending, of all and of the third with the shortest answers.",
        *notes,
    ]
    if late_s > _LATE_S:
        explained.append(f"This machine was up to {late_s:.1f} s behind: times are too long on both sides.")
    return Document("Demo", [Table("", ["", within, "shortest third", *_TABLE], rows, explained)], facts, verdict)


def _answered(samples: Sequence[Sequence[Sample]]) -> list[Columns]:
    """Return the columns of the requests that both sides have answered, by arrival."""
    sides = [{each.request: each for each in side if not math.isnan(each.finished_s)} for side in samples]
    both = sorted(sides[0].keys() & sides[1].keys())
    names = ("arrival_s", "first_token_s", "finished_s", "output_tokens")
    return [
        {
            "request": np.array(both, np.int64),
            **{name: np.array([getattr(side[number], name) for number in both]) for name in names},
        }
        for side in sides
    ]


def _runs(
    columns: Sequence[Columns], met: Sequence[NDArray[np.bool_]], policy: str, predictor: str, offered: str
) -> list[ReportedRun]:
    times: list[dict[str, Any]] = [
        {name: values for name, values in each.items() if name != "request"} for each in columns
    ]
    base, ours = (latencies(**each) for each in times)
    runs = []
    for place, (name, source) in enumerate(((BASELINE, None), (policy, predictor))):
        summary = summarise(**times[place])
        ratios = {
            figure_name(metric, statistic): _ratio(ours[metric], base[metric], statistic) if place else Ratio(1, 1, 1)
            for metric, statistic in COMPARED
        }
        latency = {metric: asdict(getattr(summary, metric)) for metric in NAMES}
        runs.append(
            ReportedRun(
                name,
                source,
                offered=offered,
                latency=latency,
                over_fcfs=ratios,
                profile=summary.profile,
                within=share_change([met[place]], [met[0]]),
                slo=str(LatencyLimits(ttft_s=WITHIN_S, tpot_s=math.inf)),
                reference=not place,
            )
        )
    return runs


def _ratio(ours: Floats, base: Floats, statistic: str) -> Ratio:
    quantile = None if statistic == "mean" else float(statistic.removeprefix("p")) / 100
    return over_requests(ours, base, quantile, seed=0)


def _within(columns: Columns) -> NDArray[np.bool_]:
    return np.asarray(columns["first_token_s"] - columns["arrival_s"] <= WITHIN_S)


def _columns(samples: Sequence[Sample]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return sent, first token, finished and tokens of requests that have not failed."""
    table = [(s.arrival_s, s.first_token_s, s.finished_s, s.asked_tokens) for s in samples if s.error is None]
    found = np.array(table, np.float64).reshape(-1, 4)
    return found[:, 0], found[:, 1], found[:, 2], found[:, 3]


def live_figures(samples: Sequence[Sample], thirds: NDArray[np.int64], now: float) -> dict[str, Any]:
    """Return the figures of a side; a request that has waited for longer than the limit counts by its wait so far."""
    ok = np.array([each.error is None for each in samples], bool)
    sent, first, finished, tokens = _columns(samples)
    ttft = np.where(np.isnan(first), now - sent, first - sent)
    known = ~np.isnan(first) | (ttft > WITHIN_S)
    met = ttft <= WITHIN_S
    short = known & (thirds[ok] == 0)
    ended = ~np.isnan(finished)
    return {
        "sent": len(samples),
        "answered": int(ended.sum()),
        "failed": int((~ok).sum()),
        "within": _mean(met[known]),
        "short": _mean(met[short]),
        "ttft": [_quantile(ttft[known], q) for q in (0.5, 0.99)],
        "per_token": _mean((finished[ended] - sent[ended]) / tokens[ended]),
        "e2e": _mean(finished[ended] - sent[ended]),
    }


def recent_latency(samples: Sequence[Sample], now: float) -> Iterator[float | None]:
    """Yield median TTFT and mean per-token latency of what arrived in the last seconds."""
    sent, first, finished, tokens = _columns(samples[-2000:])
    seen, ended = first > now - _RECENT_S, finished > now - _RECENT_S
    yield _quantile((first - sent)[seen], 0.5)
    yield _mean(((finished - sent) / tokens)[ended])


def decode_rate(samples: Sequence[Sample]) -> float:
    """Return the tokens per second of a running answer: the median of the latest."""
    _, first, finished, tokens = _columns(samples[-200:])
    ended = (finished > first) & (tokens > 1)
    return float(np.median((tokens[ended] - 1) / (finished - first)[ended])) if ended.any() else 70.0


def _mean(values: NDArray[Any]) -> float | None:
    return round(float(values.mean()), 4) if len(values) else None


def _quantile(values: Floats, q: float) -> float | None:
    return round(float(np.quantile(values, q)), 4) if len(values) else None
