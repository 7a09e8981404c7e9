"""`lengthwise replay`: send a workload to an OpenAI endpoint as open-loop load and measure latency."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from lengthwise.cli.model_options import options_from
from lengthwise.cli.output import (
    AsJson,
    Report,
    SloE2e,
    SloPerToken,
    SloTpot,
    SloTtft,
    need_folder,
    need_report,
    note,
    show,
    write_parquet,
)
from lengthwise.client.client import without_credentials
from lengthwise.client.load import LoadPlan, LoadReport, run_load
from lengthwise.errors import InputError
from lengthwise.reports.load import ReplayReport
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.progress import late_bar
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.sweep import numbers
from lengthwise.workloads import Workload, load_trace
from lengthwise.workloads.arrivals import rescale

_SLO = LatencyLimits()
_DEAD = 20
_RATES = "Rates"


@options_from(retired={"--timeout": "is now --timeout-s"})
def replay(
    source: Annotated[str, typer.Argument(metavar="WORKLOAD", help="A workload file or the name of a trace.")],
    url: Annotated[str, typer.Option(help="The endpoint.")] = "http://127.0.0.1:8080",
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="The endpoint's API key.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name [default: the first that is served].")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    free: Annotated[
        bool, typer.Option("--free", help="Let the LLM end its answers instead of forcing the workload's lengths.")
    ] = False,
    hints: Annotated[
        Literal["none", "oracle"], typer.Option(help="oracle: send each request's true length as a hint.")
    ] = "none",
    hide_lengths: Annotated[
        bool,
        typer.Option(
            "--hide-lengths",
            help="Hide lengths from the gateway: max_tokens is the workload's own. Only simulated engines then "
            "generate the workload's lengths (vllm_xargs.simulated_tokens); others end answers themselves.",
        ),
    ] = False,
    timeout_s: Annotated[float, typer.Option(help="Seconds without data before a request fails.")] = 600.0,
    max_failed: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of requests that may fail; above it, exit code 1.")
    ] = 0.01,
    speed: Annotated[
        float, typer.Option(help="2 sends twice as fast as the workload's arrivals.", rich_help_panel=_RATES)
    ] = 1.0,
    rate: Annotated[
        str | None,
        typer.Option(help="Requests per second, one replay for each, separated by commas.", rich_help_panel=_RATES),
    ] = None,
    sweep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Measure the throughput of all requests at once, then N rates evenly spread up to it.",
            rich_help_panel=_RATES,
        ),
    ] = None,
    slo_ttft: SloTtft = _SLO.ttft_s,
    slo_tpot: SloTpot = _SLO.tpot_s,
    slo_e2e: SloE2e = None,
    slo_per_token: SloPerToken = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write one row per request (Parquet).")] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Send a workload to an OpenAI endpoint in real time and measure the latency that its clients see.

    Each request is sent at its arrival time, whether or not earlier ones have finished. Lengths are forced by
    max_tokens and ignore_eos, unless --free; a length-aware server reads the length from max_tokens, so that it
    predicts nothing: --hide-lengths keeps it from that. Ctrl-C prints the measurements so far.

    Example: `lengthwise replay w.parquet --url http://127.0.0.1:8080 --sweep 5 --report replay.html`

    Exit code 1 if more than --max-failed of the requests fail; 20 failures in a row end the load. 130 after Ctrl-C.
    """
    need_folder(out, "--out")
    need_report(report)
    if rate is not None and sweep is not None:
        raise InputError("both --rate and --sweep", hint="give one of them")
    if out is not None and (sweep is not None or "," in (rate or "")):
        raise InputError("one file for several rates", source="--out", hint="give one --rate")
    slo = LatencyLimits.given(slo_ttft, slo_tpot, slo_e2e, slo_per_token)
    if hide_lengths and (free or hints == "oracle"):
        raise InputError("lengths are hidden and given", source="--hide-lengths", hint="leave out --free and --hints")
    plan = LoadPlan(url, model, speed, free, hints, hide_lengths, timeout_s, api_key=api_key, stop_after=_DEAD)
    workload = load_trace(source, need_arrivals=rate is None and sweep is None)
    if limit is not None:
        workload = workload.head(limit)
    reports = _replays(workload, plan, numbers(rate), sweep)
    if out is not None:
        write_parquet(reports[0].table(), out)
    found = ReplayReport(source, reports, slo)
    origin = Origin.here(hardware=f"{without_credentials(url)}, measured from {this_machine()}")
    show(found.document(origin), report, as_json=as_json)
    if any(each.interrupted for each in reports):
        raise typer.Exit(130)
    if any(each.stopped or each.failed > max_failed for each in reports):
        worst = max(reports, key=lambda each: each.failed)
        note(f"{worst.failed:.1%} of the requests failed; up to {max_failed:.1%} is accepted (--max-failed)")
        raise typer.Exit(1)


def _replays(workload: Workload, plan: LoadPlan, rates: list[float], sweep: int | None) -> list[LoadReport]:
    """Send the workload once for each rate; a load that is stopped or interrupted is the last."""
    if not rates and sweep is None:
        return [_run(workload, LoadReport(len(workload), plan))]
    reports: list[LoadReport] = []
    if sweep is not None:
        at_once = workload.replace(arrival_s=[0.0] * len(workload))
        reports.append(_run(at_once, LoadReport(len(workload), plan, rate=math.inf)))
        most = reports[0].summary().requests_per_s
        if reports[0].stopped or reports[0].interrupted or not math.isfinite(most):
            return reports
        rates = [most * step / sweep for step in range(1, sweep + 1)]
    for rate in rates:
        timed = workload if workload.has_arrivals else workload.replace(arrival_s=range(len(workload)))
        load = LoadReport(len(workload), replace(plan, speed=1.0), rate=rate)
        reports.append(_run(rescale(timed, rate), load))
        if reports[-1].stopped or reports[-1].interrupted:
            break
    return reports


def _run(workload: Workload, report: LoadReport) -> LoadReport:
    ended = 0
    with late_bar() as bar:

        def on_end() -> None:
            nonlocal ended
            ended += 1
            at = "" if report.rate is None else " at once" if math.isinf(report.rate) else f" at {report.rate:.3g}/s"
            bar(f"{ended:,} of {report.requests:,}{at}", ended / report.requests)

        asyncio.run(run_load(workload, report, on_end))
    return report
