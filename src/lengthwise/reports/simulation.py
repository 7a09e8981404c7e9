"""Policies side by side on one workload: absolute latency, and each as a multiple of FCFS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from lengthwise.reports.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lengthwise.simulator import Summary

BASELINE: Final = "fcfs"
_COLUMNS: Final = (
    "policy",
    "TTFT mean",
    "TTFT p99",
    "TPOT mean",
    "E2E mean",
    "x FCFS",
    "E2E p99",
    "x FCFS",
    "per token mean",
    "x FCFS",
    "requests/s",
    "tokens/s",
    "preempted",
    "refused",
)


def ratios_to_fcfs(summaries: Mapping[str, Summary], policy: str) -> dict[str, float]:
    """This policy's latency over FCFS's, below 1 is better; NaN where FCFS was not run."""
    ours, base = summaries[policy], summaries.get(BASELINE)
    pairs = {
        "e2e_mean": (ours.e2e_s.mean, math.nan if base is None else base.e2e_s.mean),
        "e2e_p99": (ours.e2e_s.p99, math.nan if base is None else base.e2e_s.p99),
        "per_token_mean": (ours.per_token_s.mean, math.nan if base is None else base.per_token_s.mean),
    }
    return {name: mine / theirs if theirs > 0 else math.nan for name, (mine, theirs) in pairs.items()}


def policy_table(summaries: Mapping[str, Summary], *, title: str, notes: Sequence[str] = ()) -> Table:
    """One row per policy."""
    rows = [_row(policy, summary, ratios_to_fcfs(summaries, policy)) for policy, summary in summaries.items()]
    return Table(title, _COLUMNS, rows, notes=notes)


def _row(policy: str, summary: Summary, ratios: Mapping[str, float]) -> list[str]:
    return [
        policy,
        seconds(summary.ttft_s.mean),
        seconds(summary.ttft_s.p99),
        seconds(summary.tpot_s.mean),
        seconds(summary.e2e_s.mean),
        times(ratios["e2e_mean"]),
        seconds(summary.e2e_s.p99),
        times(ratios["e2e_p99"]),
        seconds(summary.per_token_s.mean),
        times(ratios["per_token_mean"]),
        f"{summary.requests_per_s:,.2f}",
        f"{summary.output_tokens_per_s:,.0f}",
        f"{summary.preemptions:,}",
        f"{summary.refused:,}",
    ]


def seconds(value: float) -> str:
    """A duration in the unit that reads best."""
    if math.isnan(value):
        return "–"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:,.2f} s"


def times(ratio: float) -> str:
    """A multiple."""
    return "–" if math.isnan(ratio) else f"{ratio:.3f}"
