"""`lengthwise batch`: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, validated
from lengthwise.cli.output import AsJson, need_folder, note
from lengthwise.client.batch import BatchPlan, BatchReport, BatchRequest, failures_file, read_requests, run_batch
from lengthwise.client.client import engine_url
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import to_json

_SHOWN = 10  # failed requests


@options_from(
    BatchPlan,
    without=("api_key",),
    panels={
        "Order": ("first", "policy", "predictor"),
        "Failures": ("timeout_s", "retries", "retry_s", "give_up_s"),
    },
)
def batch(
    requests: Annotated[
        Path, typer.Argument(metavar="REQUESTS", help="JSON lines with custom_id, method, url and body.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of answers; a run that ended early goes on from it.")],
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="The engines' API key.")] = None,
    as_json: AsJson = False,
    **fields: Any,
) -> None:
    """Answer a file of requests in OpenAI's batch format, the longest first, so that the last answer comes early.

    A line of REQUESTS:

    `{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}`

    The whole file is checked first. Each answer is a line of OUT as soon as it has arrived, in OpenAI's format; the
    order is that of arrival. The same command goes on after Ctrl-C or a kill, and asks no request twice that has an
    answer in OUT. Requests that fail are in OUT's name with `.errors`, with the number of their line, and are asked
    again by the next run. Keep --at-once at what an engine runs at once: what waits inside an engine has the engine's
    order.

    Examples: `lengthwise batch requests.jsonl -o answers.jsonl --engine http://gpu-1:8000 --engine http://gpu-2:8000`

    `lengthwise batch requests.jsonl -o answers.jsonl --first 1000`

    Exit code 1 if requests have no answer at the end, 2 for wrong input or a full disk, 130 after Ctrl-C.
    """
    need_folder(out, "--out")
    given = {"engines": fields.pop("engines", None) or None}
    plan = validated(BatchPlan, api_key=api_key, **fields, **{name: v for name, v in given.items() if v is not None})
    _check(requests, out, plan)
    read = read_requests(requests, plan.model)
    report = BatchReport()
    try:
        _run(read, out, plan, report)
    except InputError:
        if report.answers:
            note(f"{out} has {report.answers:,} of {report.requests:,} answers")
        raise
    _show(report, out, plan, as_json=as_json)
    if report.interrupted:
        raise typer.Exit(130)
    if report.answers < _wanted(report, plan):
        raise typer.Exit(1)


def _check(requests: Path, out: Path, plan: BatchPlan) -> None:
    if out.absolute() == requests.absolute() or failures_file(out).absolute() == requests.absolute():
        raise InputError("is the file of requests", source=out, hint="name another --out")
    make_policy(plan.order)
    urls = [engine_url(url) for url in plan.engines]
    for url in urls:
        if urls.count(url) > 1:
            raise InputError(f"'{url}' is given twice", source="--engine", hint="give each engine once")


def _run(requests: Sequence[BatchRequest], out: Path, plan: BatchPlan, report: BatchReport) -> None:
    with late_bar("asking the engines") as bar:
        asyncio.run(run_batch(requests, out, plan, report, bar))


def _wanted(report: BatchReport, plan: BatchPlan) -> int:
    return report.requests if plan.first is None else min(plan.first, report.requests)


def facts(report: BatchReport, out: Path, plan: BatchPlan) -> dict[str, Any]:
    """Return the facts about a batch, ready for JSON."""
    return {
        "requests": report.requests,
        "answers": report.answers,
        "wanted": _wanted(report, plan),
        "resumed": report.resumed,
        "failed": [each._asdict() for each in report.failures],
        "policy": plan.order,
        "predictor": plan.predictor,
        "took_s": report.took_s,
        "predicted_s": report.predicted_s,
        "output_tokens": report.tokens,
        "engines": report.by_engine,
        "interrupted": report.interrupted,
        "gave_up": report.gave_up,
        "out": str(out) if report.answers else None,
        "errors": str(failures_file(out)) if report.failures else None,
    }


def _show(report: BatchReport, out: Path, plan: BatchPlan, *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json(facts(report, out, plan)))
        return
    new = report.answers - report.resumed
    typer.echo(f"{report.answers:,} of {report.requests:,} requests have answers: {out}")
    if report.resumed:
        typer.echo(f"{report.resumed:,} of them are from earlier runs")
    if new:
        rate = report.tokens / max(report.took_s, 1e-9)
        typer.echo(f"{new:,} answers in {report.took_s:,.1f} s, {rate:,.0f} tokens/s")
    if len(report.by_engine) > 1:
        typer.echo("by engine: " + ", ".join(f"{url} {n:,}" for url, n in sorted(report.by_engine.items())))
    for each in report.failures[:_SHOWN]:
        typer.echo(f"line {each.line} ({each.custom_id}): {each.kind}{f': {each.message}' if each.message else ''}")
    if report.failures:
        more = len(report.failures) - _SHOWN
        typer.echo(f"{f'and {more:,} more; ' if more > 0 else ''}all that failed: {failures_file(out)}")
    if report.gave_up:
        typer.echo("gave up: the engines do not answer")
    if report.answers < _wanted(report, plan):
        typer.echo("the same command goes on with the requests that have no answer")
