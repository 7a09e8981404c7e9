"""`lengthwise lengths`: distributions of observed answer lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.output import AsJson, OnlyCorpus, OnlyLlm, SampleSource, note, show
from lengthwise.errors import InputError
from lengthwise.reports.length_fits import By, fit_groups, length_fits_document
from lengthwise.reports.progress import late_bar
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.datasets import PACKAGED
from lengthwise.workloads.traces import SAMPLE_ONLY

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Distributions of observed answer lengths.")


@app.callback()
def _group() -> None:
    pass  # with a callback, `fit` stays a subcommand although it is the only one


@app.command()
def fit(
    source: SampleSource,
    by: Annotated[By, typer.Option(help="Also show each group.")] = "llm",
    llm: OnlyLlm = None,
    corpus: OnlyCorpus = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only this many prompts, drawn at random.", min=1)] = None,
    as_json: AsJson = False,
    seed: Annotated[int, typer.Option(help="Seed of --sample.")] = 0,
) -> None:
    """Describe observed answer lengths, and fit log-t and log-normal to those of each prompt.

    Prints mean and spread, the median of the fitted parameters, and which of the two fits better, for all rows and for
    each group.

    Example: `lengthwise lengths fit castillo --by llm`
    """
    samples = load_samples(source).where(llm=llm or None, corpus=corpus or None, split=split or None)
    if sample is not None:
        samples = samples.draw_prompts(sample, seed)
    with late_bar() as report:
        found = fit_groups(samples, by=by, report=report)
    show(length_fits_document(found, samples.origin, by), as_json=as_json)


def load_samples(source: str) -> LengthSamples:
    """Load length samples: `castillo`, a folder in its layout, or a Parquet file."""
    if source == "castillo":
        samples = load_castillo()
        if samples.origin == PACKAGED:
            note(SAMPLE_ONLY)
        return samples
    path = Path(source)
    if path.is_file():
        return LengthSamples.read(path)
    if path.is_dir():
        return load_castillo(path)
    raise InputError(
        "no such file or folder", source=source, hint="give castillo, a folder, or a Parquet file of length samples"
    )
