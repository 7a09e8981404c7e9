"""`lengthwise lengths`: distributions of observed answer lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lengthwise.cli.output import AsJson, NoPlot, OnlyCorpus, OnlyLlm, SampleSource, note, show
from lengthwise.errors import InputError
from lengthwise.reports.length_families import draw, tables
from lengthwise.reports.page import Document
from lengthwise.reports.progress import late_bar
from lengthwise.workloads import LengthSamples, load_castillo
from lengthwise.workloads.datasets import PACKAGED
from lengthwise.workloads.length_families import sample_prompts, study_families
from lengthwise.workloads.traces import SAMPLE_ONLY

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Distributions of observed answer lengths.")


@app.callback()
def _group() -> None:
    pass  # with a callback, `fit` stays a subcommand although it is the only one


@app.command()
def fit(
    source: SampleSource,
    by: Annotated[Literal["llm", "corpus", "none"], typer.Option(help="Also show each group.")] = "llm",
    llm: OnlyLlm = None,
    corpus: OnlyCorpus = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split; repeatable.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only this many prompts, drawn at random.", min=1)] = None,
    plot: Annotated[Path, typer.Option(help="File for the figure.")] = Path("lengths-fit.png"),
    no_plot: NoPlot = False,
    as_json: AsJson = False,
    seed: Annotated[int, typer.Option(help="Seed of bootstrap, simulation and --sample.")] = 0,
) -> None:
    """Compare families on observed answer lengths: log-t, log-normal, Weibull, gamma and GEV.

    Prints KS tests (as in TIE, and corrected for refitting), held-out likelihood, tail estimates, and the power of
    these tests at ten samples per prompt.

    Example: `lengthwise lengths fit castillo --by llm`
    """
    samples = load_samples(source).where(llm=llm or None, corpus=corpus or None, split=split or None)
    if sample is not None:
        samples = sample_prompts(samples, sample, seed)
    with late_bar() as report:
        result = study_families(samples, by=by, seed=seed, report=report)
    show(Document("", tables(result), result), as_json=as_json)
    if not no_plot:
        draw(result, plot)
        typer.echo(f"figure: {plot}", err=as_json)


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
