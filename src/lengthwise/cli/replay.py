"""`lengthwise replay`: a workload as open-loop load on an OpenAI endpoint, and what its clients saw."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pyarrow.parquet as pq
import typer

from lengthwise.cli.output import need_folder
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import Table, print_tables, to_json
from lengthwise.workloads import Workload, load_trace
from lengthwise.workloads.files import atomic_path

if TYPE_CHECKING:
    from lengthwise.engines.load import LoadReport


def replay(
    source: Annotated[str, typer.Argument(metavar="WORKLOAD", help="A workload file, or a trace by its name.")],
    url: Annotated[str, typer.Option(help="The endpoint.")] = "http://127.0.0.1:8080",
    speed: Annotated[float, typer.Option(help="2 sends twice as fast as the workload's own arrivals.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Let answers end where they will, not at the workload's length.")
    ] = False,
    hints: Annotated[
        Literal["none", "oracle"], typer.Option(help="oracle: tell each true length to the endpoint.")
    ] = "none",
    model: Annotated[str | None, typer.Option(help="By default the first that the endpoint serves.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds an answer may be silent.")] = 600.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write one row per request here, as Parquet.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Send a workload to an OpenAI endpoint in real time, and measure what its clients see.

    Each request is sent when it is due, whether or not the earlier ones are answered. Lengths are forced by
    max_tokens and ignore_eos, unless --free. Ctrl-C prints what was measured so far.

    Example: `lengthwise replay w.parquet --url http://127.0.0.1:8080 --json`
    """
    # HTTP takes half a second to import, which the other commands need not pay.
    from lengthwise.engines.load import LoadPlan, LoadReport

    need_folder(out, "--out")
    plan = LoadPlan(url=url, model=model, speed=speed, free=free, hints=hints, timeout_s=timeout)
    workload = load_trace(source)
    if limit is not None:
        workload = workload.head(limit)
    report = LoadReport(requests=len(workload), plan=plan)
    _run(workload, report)
    if out is not None:
        with atomic_path(out) as path:
            pq.write_table(report.table(), path)
    _show(report, as_json=as_json)
    if report.interrupted:
        raise typer.Exit(130)


def _run(workload: Workload, report: LoadReport) -> None:
    from lengthwise.engines.load import run_load

    ended = 0
    with late_bar() as bar:

        def on_end() -> None:
            nonlocal ended
            ended += 1
            bar(f"{ended:,} of {report.requests:,}", ended / report.requests)

        asyncio.run(run_load(workload, report, on_end))


def facts(report: LoadReport) -> dict[str, Any]:
    """What there is to say about a replay, ready for JSON."""
    told = report.summary()
    return {
        "url": report.plan.url,
        "model": report.model,
        "requests": report.requests,
        "sent": len(report.samples),
        "served": told.requests,
        "errors": report.errors,
        "lengths_differ": None if report.plan.free else report.lengths_differ,
        "interrupted": report.interrupted,
        "late_s": report.late_s,
        "makespan_s": told.makespan_s,
        "requests_per_s": told.requests_per_s,
        "output_tokens_per_s": told.output_tokens_per_s,
        "ttft_s": told.ttft_s,
        "tpot_s": told.tpot_s,
        "e2e_s": told.e2e_s,
        "per_token_s": told.per_token_s,
    }


def _show(report: LoadReport, *, as_json: bool) -> None:
    told = facts(report)
    if as_json:
        typer.echo(to_json(told))
        return
    rows = [
        [name, *(f"{value:.4g}" for value in (s.mean, s.p50, s.p90, s.p99))]
        for name, s in (
            ("TTFT", told["ttft_s"]),
            ("TPOT", told["tpot_s"]),
            ("E2E", told["e2e_s"]),
            ("per token", told["per_token_s"]),
        )
    ]
    rates = f"{told['requests_per_s']:.3g} requests/s, {told['output_tokens_per_s']:.4g} output tokens/s"
    notes = [
        f"{told['served']:,} of {told['requests']:,} served in {told['makespan_s']:.1f} s by {told['model']}",
        rates,
    ]
    if report.errors:
        notes.append("failed: " + ", ".join(f"{n:,} {kind}" for kind, n in report.errors.items()))
    if told["lengths_differ"]:
        notes.append(f"{told['lengths_differ']:,} answers did not have the length they were asked to have")
    if report.interrupted:
        notes.append(f"stopped after {told['sent']:,} were sent; those still running are not counted")
    print_tables([Table("seconds", ["", "mean", "p50", "p90", "p99"], rows, notes)])
