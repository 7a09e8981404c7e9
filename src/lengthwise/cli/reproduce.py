"""`lengthwise reproduce`: the tables of the source papers, ours beside theirs."""

from __future__ import annotations

from typing import Annotated

import typer

from lengthwise.cli.lengths import load_samples
from lengthwise.experiments.castillo_paper import UNSEEN, compare
from lengthwise.experiments.castillo_paper_view import tables
from lengthwise.experiments.evaluate import evaluated_rows, open_predictor
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import print_tables, to_json

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Tables of the papers, ours beside theirs.")


@app.callback()
def _group() -> None:
    pass  # keeps `castillo` a command of its own while it is the only one


@app.command()
def castillo(
    predictor: Annotated[
        str, typer.Option(help="A shipped predictor, a model file, `constant` or `constant-corpus`.")
    ] = "default",
    source: Annotated[str, typer.Option(help="`castillo`, or a folder in its layout.")] = "castillo",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Tables 2 to 5 of the paper that predicts CASTILLO's lengths with BERT; a cell is claimed only beyond a constant.

    Example: `lengthwise reproduce castillo --predictor default`
    """
    samples = load_samples(source)
    seen = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])
    chosen = open_predictor(predictor, evaluated_rows(seen, None)[1])
    with late_bar() as bar:
        found = compare(chosen, samples, name=predictor, progress=bar)
    if as_json:
        typer.echo(to_json(found))
    else:
        print_tables(tables(found))
