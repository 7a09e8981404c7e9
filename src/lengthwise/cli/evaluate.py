"""`lengthwise evaluate`."""

from __future__ import annotations

from typing import Annotated

import typer

from lengthwise.cli.lengths import load_samples
from lengthwise.cli.output import AsJson, OnlyCorpus, OnlyLlm, Report, SampleSource, need_folder, show
from lengthwise.predictors.baselines import CAP
from lengthwise.predictors.evaluation import Evaluation, run
from lengthwise.reports.evaluation import html_report, tables
from lengthwise.reports.progress import late_bar


def evaluate(
    predictor: Annotated[
        str,
        typer.Argument(
            help="A packaged predictor, a model file, `memory` or `memory+fast` (prefix memory: it learns row by row), "
            "`constant`, `constant-corpus`, `ask:URL` or a dotted path."
        ),
    ],
    source: SampleSource = "castillo",
    split: Annotated[
        str | None, typer.Option(help="Rows of this split [default: test, or all without splits].")
    ] = None,
    llm: OnlyLlm = None,
    corpus: OnlyCorpus = None,
    limit: Annotated[int | None, typer.Option(help="At most so many rows, evenly spread.", min=1)] = None,
    max_tokens: Annotated[int, typer.Option(help="The max_tokens under which the lengths were sampled.", min=1)] = CAP,
    report: Report = None,
    as_json: AsJson = False,
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
    show(found, tables, Evaluation.to_dict, html_report, report=report, as_json=as_json)
