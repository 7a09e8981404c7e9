"""`lengthwise reproduce reasoning`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.reasoning.study import study
from experiments.reasoning.view import tables, write_html
from lengthwise.cli.output import need_folder
from lengthwise.errors import InputError
from lengthwise.predictors import load_predictor
from lengthwise.reports.tables import print_tables, to_json
from lengthwise.workloads.datasets import LIMIT, load_reasoning, read_reasoning


def reasoning(
    predictor: Annotated[str, typer.Option(help="A shipped predictor or a model file.")] = "default",
    plain: Annotated[Path | None, typer.Option(help="Your own answers, from `lengthwise collect`.")] = None,
    steps: Annotated[Path | None, typer.Option(help="The same prompts collected with --suffix.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The limit they were collected under.")] = LIMIT,
    observations: Annotated[int, typer.Option(min=1, help="Answers that online calibration sees.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the splits and of what is resampled.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with pictures here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """How predictions hold when the LLM is asked to think step by step; the paper leaves that to future work.

    Example: `lengthwise reproduce reasoning --report reasoning.html`
    """
    need_folder(report)
    if (plain is None) != (steps is None):
        raise InputError("--plain and --steps go together", hint="give both files, or neither for the packaged pairs")
    pairs = load_reasoning() if plain is None or steps is None else read_reasoning(plain, steps, max_tokens)
    found = study(load_predictor(predictor), pairs, name=predictor, observations=observations, seed=seed)
    if as_json:
        typer.echo(to_json(found))
    else:
        print_tables(tables(found))
    if report is not None:
        write_html(found, report)
        typer.echo(f"report: {report}", err=as_json)
