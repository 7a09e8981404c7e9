"""`lengthwise evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.lengths import load_samples
from lengthwise.cli.output import need_folder
from lengthwise.predictors.baselines import CAP
from lengthwise.predictors.evaluation import run
from lengthwise.reports.evaluation import tables, write_html
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import print_tables, to_json


def evaluate(
    predictor: Annotated[
        str,
        typer.Argument(
            help="A packaged predictor, a model file, `constant`, `constant-corpus`, `ask:URL` or a dotted path."
        ),
    ],
    source: Annotated[
        str, typer.Argument(help="`castillo`, a folder in its layout, or a Parquet file of length samples.")
    ] = "castillo",
    split: Annotated[
        str | None, typer.Option(help="Rows of this split [default: test, or all without splits].")
    ] = None,
    llm: Annotated[list[str] | None, typer.Option(help="Only this LLM; repeatable.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="Only this corpus; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many rows, evenly spread.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="The max_tokens under which the lengths were sampled.", min=1)] = CAP,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with figures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Score a predictor beside two constants and the noise ceiling, by LLM and by corpus.

    Example: `lengthwise evaluate default castillo --report out.html`
    """
    need_folder(report)
    samples = load_samples(source)
    with late_bar() as bar:
        found = run(
            predictor, samples, split=split, llm=llm, corpus=corpus, limit=limit, max_tokens=max_tokens, progress=bar
        )
    if as_json:
        typer.echo(to_json(found.to_dict()))
    else:
        print_tables(tables(found))
    if report is not None:
        write_html(found, report)
        typer.echo(f"report: {report}", err=as_json)
