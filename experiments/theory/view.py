"""Formula beside simulation, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.theory.study import Finding
from lengthwise.reports.tables import Table


def table(findings: Sequence[Finding]) -> Table:
    """One row per claim; times in mean services."""
    rows = [
        [
            found.claim.name,
            found.claim.queue.sizes,
            found.claim.queue.predictions,
            f"{found.claim.expected:.4f}",
            f"{found.mean:.4f}",
            f"± {found.half_width:.4f}",
            f"{found.error:+.2%}",
            f"{found.runs} x {found.jobs:,}",
        ]
        for found in findings
    ]
    rate = findings[0].claim.queue.rate if findings else float("nan")
    columns = ("order", "sizes", "predictions", "formula", "simulated", "95 %", "off by", "jobs")
    notes = [
        "mean response time in mean services; interval of the mean over independent runs (Student's t)",
        "preempting orders: FCFS and SJF on the same jobs serve as control variates",
        "± 0 where an order is one of these two, job for job",
    ]
    return Table(f"One server at load {rate:g}: theory beside the simulator", columns, rows, notes=notes)


def facts(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """The same for JSON."""
    return [
        {
            "order": found.claim.name,
            "policy": found.claim.policy.name,
            "sizes": found.claim.queue.sizes,
            "predictions": found.claim.queue.predictions,
            "load": found.claim.queue.rate,
            "formula": found.claim.expected,
            "simulated": found.mean,
            "half_width_95": found.half_width,
            "off_by": found.error,
            "runs": found.runs,
            "jobs": found.jobs,
        }
        for found in findings
    ]
