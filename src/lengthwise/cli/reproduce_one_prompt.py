"""`lengthwise reproduce one_prompt`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import xxhash

from experiments.one_prompt.study import GENERATIONS, PROMPT, study_one_prompt
from experiments.one_prompt.view import html_report, plain, tables
from lengthwise.cli.output import need_folder
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import print_tables, to_json
from lengthwise.workloads import LengthSamples

if TYPE_CHECKING:
    from lengthwise.engines.collect import CollectPlan


def one_prompt(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = PROMPT,
    generations: Annotated[int, typer.Option(min=10, help="How often.")] = GENERATIONS,
    url: Annotated[str | None, typer.Option(help="An OpenAI endpoint; by default the embedded LLM is started.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Of the sampling.")] = 0.7,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Of the sampling.")] = 0.9,
    repetition_penalty: Annotated[
        float, typer.Option(min=0.01, help="Above 1 it keeps small LLMs out of loops; 1 is not sent.")
    ] = 1.1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longer answers are cut, and count as longer.")] = 1024,
    at_once: Annotated[int, typer.Option(min=1, help="Requests on the way at once.")] = 16,
    seed: Annotated[int, typer.Option(help="Each answer's own seed comes from it.")] = 0,
    answers: Annotated[
        Path | None,
        typer.Option(help="The lengths (.parquet): read where it is there, else written. By default in the cache."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also write the picture here: .png, .pdf or .svg.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with the picture here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """One prompt asked 256 times with the fitted log-t over its lengths: TIE's first figure, with a LLM of your own.

    Lengths are kept: asked again, nothing is generated. Stopped, the same command goes on where it was.

    Example: `lengthwise reproduce one_prompt "Write a haiku." --report one.html --plot one.png`
    """
    from lengthwise.engines.collect import CollectPlan
    from lengthwise.engines.smollm2 import cache_home

    for option, path in (("--report", report), ("--plot", plot), ("--answers", answers)):
        need_folder(path, option)
    sampling = (prompt, url, generations, temperature, top_p, repetition_penalty, max_tokens, seed)
    kept = (
        answers or cache_home() / "answers" / f"one-prompt-{xxhash.xxh3_64_hexdigest(repr(sampling).encode())}.parquet"
    )
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        plan = CollectPlan(
            url=url or "",
            out=kept,
            samples=generations,
            temperature=temperature,
            top_p=top_p,
            repetition_penalty=None if repetition_penalty == 1.0 else repetition_penalty,
            max_tokens=max_tokens,
            seed=seed,
            at_once=at_once,
        )
        _ask(prompt, plan)
    found = study_one_prompt(LengthSamples.read(kept), max_tokens, seed=seed)
    if as_json:
        typer.echo(to_json(plain(found)))
    else:
        print_tables(tables(found))
        typer.echo(f"lengths: {kept}")
    if plot is not None:
        from experiments.one_prompt.plot import draw

        draw(found, plot)
    if report is not None:
        report.write_text(html_report(found), encoding="utf-8")
        typer.echo(f"report: {report}", err=as_json)


def _ask(prompt: str, plan: CollectPlan) -> None:
    from dataclasses import replace

    from lengthwise.engines.collect import CollectReport, Prompt, collect

    report = CollectReport(prompts=1, samples=plan.samples)
    with _endpoint(plan) as url, late_bar() as bar:
        question = Prompt("one_prompt", "0", prompt)

        def on_answer() -> None:
            bar(f"{len(report.answers):,} of {report.wanted:,} answers", len(report.answers) / report.wanted)

        asyncio.run(collect([question], replace(plan, url=url), report, on_answer))
    if report.interrupted:
        raise typer.Exit(130)
    if not report.whole_prompts:
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.errors.items()))
        raise InputError(
            f"{len(report.answers):,} of {report.wanted:,} answers came ({told})",
            source=plan.url or "the embedded engine",
            hint="the same command goes on where it stopped",
        )


@contextlib.contextmanager
def _endpoint(plan: CollectPlan) -> Iterator[str]:
    """The endpoint given, or the embedded LLM for as long as it is asked."""
    if plan.url:
        yield plan.url
        return
    from lengthwise.engines.embedded import EmbeddedEngine, EngineOptions

    typer.echo("starting the embedded engine ...", err=True)
    with EmbeddedEngine(EngineOptions(policy="fcfs", predictor="none", max_num_seqs=plan.at_once)) as engine:
        yield engine.url
