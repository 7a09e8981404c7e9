"""Measured load on an endpoint as a verdict, tables, JSON and one HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lengthwise.client.client import without_credentials
from lengthwise.client.load import LoadReport
from lengthwise.reports.latency_figures import figures
from lengthwise.reports.page import Document, Origin
from lengthwise.reports.runs import NAMES, ReportedRun
from lengthwise.reports.tables import Table, seconds, share
from lengthwise.reports.verdict import Verdict, on_load
from lengthwise.simulator.metrics import LatencyLimits


@dataclass(frozen=True)
class ReplayReport:
    """One load, or one for each rate, judged by latency limits."""

    source: str
    loads: Sequence[LoadReport]
    slo: LatencyLimits

    @property
    def verdict(self) -> Verdict:
        """Failures and goodput in words."""
        return on_load(self.loads, self.slo)

    def facts(self, load: LoadReport) -> dict[str, Any]:
        """Return the facts about one load, for JSON."""
        summary = load.summary()
        return {
            "rate": load.rate,
            "url": without_credentials(load.plan.url),
            "model": load.model,
            "requests": load.requests,
            "sent": len(load.samples),
            "served": summary.requests,
            "failed": load.failed,
            "errors": load.errors,
            "lengths_differ": None if load.plan.free else load.lengths_differ,
            "interrupted": load.interrupted,
            "stopped": load.stopped,
            "late_s": load.late_s,
            "makespan_s": summary.makespan_s,
            "requests_per_s": summary.requests_per_s,
            "output_tokens_per_s": summary.output_tokens_per_s,
            "within_slo": load.within(self.slo),
            "goodput_per_s": load.goodput(self.slo),
            **{metric: getattr(summary, metric) for metric in NAMES},
            "itl_s": load.itl_s,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON: the facts of the only load, or those of every rate."""
        found = [self.facts(each) for each in self.loads]
        return {
            "verdict": str(self.verdict),
            "workload": self.source,
            "slo": self.slo,
            **(found[0] if len(found) == 1 else {"rates": found}),
            "runs": [run.to_dict() for run in self.runs],
        }

    @property
    def runs(self) -> list[ReportedRun]:
        """Every load that served a request, as a report shows it."""
        return [
            ReportedRun(
                load.model,
                offered=_offered(load),
                load=load.rate if load.rate is not None and math.isfinite(load.rate) else math.nan,
                latency={metric: asdict(getattr(load.summary(), metric)) for metric in NAMES},
                profile=load.summary().profile,
            )
            for load in self.loads
            if load.served
        ]

    def tables(self) -> list[Table]:
        """Return the latencies of one load, or a row for each rate; what failed is in the notes."""
        if len(self.loads) > 1:
            return [self._rates()]
        load = self.loads[0]
        summary = load.summary()
        spreads = {name: getattr(summary, metric) for metric, name in NAMES.items()} | {"ITL": load.itl_s}
        rows = [[name, *(seconds(each) for each in (s.mean, s.p50, s.p90, s.p99))] for name, s in spreads.items()]
        notes = [
            f"{summary.requests:,} of {load.requests:,} served in {summary.makespan_s:.1f} s by {load.model}",
            f"{summary.requests_per_s:.3g} requests/s, {summary.output_tokens_per_s:.4g} output tokens/s",
            f"goodput {load.goodput(self.slo):.3g} requests/s: {share(load.within(self.slo))} within {self.slo}",
        ]
        return [Table("Latency", ["", "mean", "p50", "p90", "p99"], rows, [*notes, *_problems(load)])]

    def _rates(self) -> Table:
        rows = []
        for load in self.loads:
            summary = load.summary()
            rows.append(
                [
                    _offered(load),
                    f"{summary.requests_per_s:.3g}",
                    f"{summary.output_tokens_per_s:.4g}",
                    share(load.failed),
                    share(load.within(self.slo)),
                    f"{load.goodput(self.slo):.3g}",
                    *(seconds(each) for each in (summary.ttft_s.mean, summary.ttft_s.p99)),
                    *(seconds(each) for each in (load.itl_s.p99, summary.e2e_s.mean, summary.e2e_s.p99)),
                ]
            )
        columns = ["offered", "served/s", "tokens/s", "failed", "in SLO", "goodput/s"]
        columns += ["TTFT mean", "TTFT p99", "ITL p99", "E2E mean", "E2E p99"]
        notes = [f"SLO: {self.slo}.", *(text for load in self.loads for text in _problems(load))]
        return Table(f"{self.loads[0].model}, rate by rate", columns, rows, notes)

    def document(self, origin: Origin) -> Document:
        """Return the document."""
        title = f"{self.source} sent to {self.loads[0].plan.url}"
        known = {"origin": origin, **self.to_dict()}
        return Document(title, self.tables(), known, self.verdict, lambda: figures(self.runs), origin)


def _offered(load: LoadReport) -> str:
    if load.rate is None:
        return "its own arrivals"
    return "all at once" if math.isinf(load.rate) else f"{load.rate:.3g}/s"


def _problems(load: LoadReport) -> list[str]:
    notes = []
    if load.errors:
        notes.append("failed: " + ", ".join(f"{n:,} {kind}" for kind, n in load.errors.items()))
    if not load.plan.free and load.lengths_differ:
        notes.append(f"{load.lengths_differ:,} answers do not have the requested length")
    if load.interrupted or load.stopped:
        notes.append(f"stopped after {len(load.samples):,} were sent; unfinished requests are not counted")
    return notes
