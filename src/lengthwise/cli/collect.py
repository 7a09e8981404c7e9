"""`lengthwise collect`: collect the answer lengths of a served LLM as length samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lengthwise.cli.model_options import options_from, validated
from lengthwise.client.collect import CollectPlan, CollectReport, Prompt
from lengthwise.client.collect import collect as collect_answers
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import to_json
from lengthwise.workloads import LengthSamples, load_castillo


@options_from(CollectPlan, without=("out", "retries", "retry_s", "api_key"))
def collect(
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file of length samples to write.")],
    prompts: Annotated[
        str,
        typer.Option(
            help="`castillo`, length samples (.parquet), JSON lines with `prompt`, or a text file, one per line."
        ),
    ] = "castillo",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="The endpoint's API key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    **fields: Any,
) -> None:
    """Send every prompt to a served LLM several times and write the lengths of its answers.

    Answers are saved to OUT.partial as they arrive: after an interruption the same command resumes. Exit code 1 if
    answers are missing at the end, 130 after Ctrl-C.

    Example: `lengthwise collect --url http://127.0.0.1:8000 --prompts castillo --samples 10 -o lengths.parquet`
    """
    selected = read_prompts(prompts)[:limit]
    plan = validated(CollectPlan, out=out, api_key=api_key, **fields)
    report = CollectReport(prompts=len(selected), samples=plan.samples)
    _run(selected, plan, report)
    _show(report, plan, as_json=as_json)
    if report.interrupted:
        raise typer.Exit(130)
    if report.whole_prompts < report.prompts:
        raise typer.Exit(1)


def read_prompts(source: str) -> list[Prompt]:
    """Read the distinct prompts of `castillo` or of a file."""
    path = Path(source)
    if source == "castillo":
        return _of_samples(load_castillo())
    if not path.is_file():
        raise InputError("no such file", source=source, hint="give castillo or a file of prompts")
    if path.suffix == ".parquet":
        return _of_samples(LengthSamples.read(path))
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError("is not UTF-8 text", source=source, hint="give a file of prompts") from error
    if path.suffix in (".jsonl", ".ndjson"):
        return [_of_record(line, row, path) for row, line in enumerate(lines, start=1)]
    return [Prompt(path.stem, str(row), line) for row, line in enumerate(lines, start=1)]


def _of_samples(samples: LengthSamples) -> list[Prompt]:
    names = ("corpus", "prompt_id", "prompt", "split")
    rows = zip(*(samples.table[name].to_pylist() for name in names), strict=True)
    found: dict[str, Prompt] = {}
    for row, (corpus, prompt_id, text, split) in enumerate(rows, start=1):
        if text is None:
            raise InputError(
                "has no value", source=samples.origin, row=row, field="prompt", hint="give the text of the prompt"
            )
        prompt = Prompt(corpus, prompt_id, text, split)
        found.setdefault(prompt.key, prompt)
    return list(found.values())


def _of_record(line: str, row: int, path: Path) -> Prompt:
    try:
        record = json.loads(line)
        text = record["prompt"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("no prompt", source=path, row=row, hint='one object per line, {"prompt": "..."}') from error
    if not isinstance(text, str):
        raise InputError("is not text", source=path, row=row, field="prompt")
    split = record.get("split")
    corpus, prompt_id = str(record.get("corpus", path.stem)), str(record.get("prompt_id", row))
    return Prompt(corpus, prompt_id, text, None if split is None else str(split))


def _run(prompts: Sequence[Prompt], plan: CollectPlan, report: CollectReport) -> None:
    with late_bar() as bar:

        def on_answer() -> None:
            bar(f"{len(report.answers):,} of {report.wanted:,} answers", len(report.answers) / report.wanted)

        asyncio.run(collect_answers(prompts, plan, report, on_answer))


def facts(report: CollectReport, plan: CollectPlan) -> dict[str, Any]:
    """Return the facts about a collection, ready for JSON."""
    return {
        "model": report.model,
        "prompts": report.prompts,
        "whole_prompts": report.whole_prompts,
        "answers": len(report.answers),
        "wanted": report.wanted,
        "resumed": report.resumed,
        "capped": report.capped,
        "errors": dict(sorted(report.errors.items())),
        "messages": {kind: text for kind, text in sorted(report.messages.items()) if kind in report.errors},
        "interrupted": report.interrupted,
        "gave_up": report.gave_up,
        "out": str(plan.out) if report.whole_prompts else None,
    }


def _show(report: CollectReport, plan: CollectPlan, *, as_json: bool) -> None:
    summary = facts(report, plan)
    if as_json:
        typer.echo(to_json(summary))
        return
    cut = f", {report.capped:,} cut off at {plan.max_tokens:,} tokens or the context's end" if report.capped else ""
    typer.echo(f"{len(report.answers):,} of {report.wanted:,} answers of {report.model}{cut}")
    if report.resumed:
        typer.echo(f"{report.resumed:,} of them are from earlier runs")
    if report.errors:
        typer.echo("failed: " + ", ".join(f"{n:,} {kind}" for kind, n in sorted(report.errors.items())))
    for kind, message in summary["messages"].items():
        if message:
            typer.echo(f"{kind}: {message}")
    if report.gave_up:
        typer.echo("gave up: too many failures in a row")
    if report.whole_prompts:
        typer.echo(f"{report.whole_prompts:,} of {report.prompts:,} prompts have all their samples: {plan.out}")
    if report.whole_prompts < report.prompts:
        typer.echo(f"the same command resumes from {plan.journal}")
