"""`lengthwise evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.lengths import load_samples
from lengthwise.cli.output import AsJson, OnlyCorpus, OnlyLlm, Report, SampleSource, need_report, show
from lengthwise.errors import InputError
from lengthwise.predictors.baselines import CAP
from lengthwise.predictors.evaluation import run
from lengthwise.reports.evaluation import evaluation_document
from lengthwise.reports.page import Origin
from lengthwise.reports.progress import late_bar


def evaluate(
    predictor: Annotated[
        str | None,
        typer.Argument(
            help="A packaged predictor, a model file, `fast+learn`, `memory`, `memory+fast` (these learn row by row), "
            "`constant`, `constant-corpus`, `ask:URL` or a dotted path."
        ),
    ] = None,
    source: SampleSource = "castillo",
    split: Annotated[
        str | None, typer.Option(help="Rows of this split [default: test, or all without splits].")
    ] = None,
    llm: OnlyLlm = None,
    corpus: OnlyCorpus = None,
    limit: Annotated[int | None, typer.Option(help="At most so many rows, evenly spread.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="The max_tokens under which the lengths were sampled.", min=1)] = CAP,
    traffic: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Score what was predicted in production: a log of `serve --log`."),
    ] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Score a predictor beside two constants and the noise ceiling, by LLM, corpus and predicted median.

    With --from, score the predictions that a gateway made, over time and by model, tenant and day, beside the model's
    history.

    Example: `lengthwise evaluate default castillo --report out.html`

    Example: `lengthwise evaluate --from traffic/ --report production.html`
    """
    need_report(report)
    if traffic is not None:
        if predictor is not None:
            raise InputError(f"--from scores what was served, not '{predictor}'", hint="leave the predictor out")
        _evaluate_traffic(traffic, report, as_json=as_json)
        return
    if predictor is None:
        raise InputError("no predictor", hint="name one, such as default, or give a traffic log with --from DIR")
    samples = load_samples(source)
    with late_bar() as bar:
        found = run(
            predictor, samples, split=split, llm=llm, corpus=corpus, limit=limit, max_tokens=max_tokens, progress=bar
        )
    show(evaluation_document(found, Origin.here()), report, as_json=as_json)


def _evaluate_traffic(folder: Path, report: Path | None, *, as_json: bool) -> None:
    from lengthwise.predictors.traffic_evaluation import evaluate_traffic
    from lengthwise.reports.traffic import traffic_document
    from lengthwise.traffic.reader import read_traffic

    show(traffic_document(evaluate_traffic(read_traffic(folder)), Origin.here()), report, as_json=as_json)
