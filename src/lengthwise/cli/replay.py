"""`lengthwise replay`: send a workload to an OpenAI endpoint as open-loop load and measure latency."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lengthwise.cli.output import need_folder, show, write_parquet
from lengthwise.engines.load import LoadPlan, LoadReport, run_load
from lengthwise.reports.progress import late_bar
from lengthwise.reports.runs import NAMES
from lengthwise.reports.tables import Table
from lengthwise.workloads import Workload, load_trace


def replay(
    source: Annotated[str, typer.Argument(metavar="WORKLOAD", help="A workload file or the name of a trace.")],
    url: Annotated[str, typer.Option(help="The endpoint.")] = "http://127.0.0.1:8080",
    speed: Annotated[float, typer.Option(help="2 sends twice as fast as the workload's arrivals.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Let the LLM end its answers instead of forcing the workload's lengths.")
    ] = False,
    hints: Annotated[
        Literal["none", "oracle"], typer.Option(help="oracle: send each request's true length as a hint.")
    ] = "none",
    model: Annotated[str | None, typer.Option(help="Model name [default: the first that is served].")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without data before a request fails.")] = 600.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write one row per request (Parquet).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Send a workload to an OpenAI endpoint in real time and measure the latency that its clients see.

    Each request is sent at its arrival time, whether or not earlier ones have finished. Lengths are forced by
    max_tokens and ignore_eos, unless --free. Ctrl-C prints the measurements so far.

    Example: `lengthwise replay w.parquet --url http://127.0.0.1:8080 --json`
    """
    need_folder(out, "--out")
    plan = LoadPlan(url=url, model=model, speed=speed, free=free, hints=hints, timeout_s=timeout)
    workload = load_trace(source)
    if limit is not None:
        workload = workload.head(limit)
    report = LoadReport(requests=len(workload), plan=plan)
    _run(workload, report)
    if out is not None:
        write_parquet(report.table(), out)
    show(report, tables, facts, as_json=as_json)
    if report.interrupted:
        raise typer.Exit(130)


def _run(workload: Workload, report: LoadReport) -> None:
    ended = 0
    with late_bar() as bar:

        def on_end() -> None:
            nonlocal ended
            ended += 1
            bar(f"{ended:,} of {report.requests:,}", ended / report.requests)

        asyncio.run(run_load(workload, report, on_end))


def facts(report: LoadReport) -> dict[str, Any]:
    """Return the facts about a replay, ready for JSON."""
    summary = report.summary()
    return {
        "url": report.plan.url,
        "model": report.model,
        "requests": report.requests,
        "sent": len(report.samples),
        "served": summary.requests,
        "errors": report.errors,
        "lengths_differ": None if report.plan.free else report.lengths_differ,
        "interrupted": report.interrupted,
        "late_s": report.late_s,
        "makespan_s": summary.makespan_s,
        "requests_per_s": summary.requests_per_s,
        "output_tokens_per_s": summary.output_tokens_per_s,
        **{measure: getattr(summary, measure) for measure in NAMES},
    }


def tables(report: LoadReport) -> list[Table]:
    """Return the latencies, with what failed in the notes."""
    found = facts(report)
    spreads = [(name, found[measure]) for measure, name in NAMES.items()]
    rows = [[name, *(f"{value:.4g}" for value in (s.mean, s.p50, s.p90, s.p99))] for name, s in spreads]
    notes = [
        f"{found['served']:,} of {found['requests']:,} served in {found['makespan_s']:.1f} s by {found['model']}",
        f"{found['requests_per_s']:.3g} requests/s, {found['output_tokens_per_s']:.4g} output tokens/s",
    ]
    if report.errors:
        notes.append("failed: " + ", ".join(f"{n:,} {kind}" for kind, n in report.errors.items()))
    if found["lengths_differ"]:
        notes.append(f"{found['lengths_differ']:,} answers do not have the requested length")
    if report.interrupted:
        notes.append(f"stopped after {found['sent']:,} were sent; unfinished requests are not counted")
    return [Table("seconds", ["", "mean", "p50", "p90", "p99"], rows, notes)]
