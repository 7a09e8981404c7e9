"""`lengthwise reproduce`: the tables of the source papers, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.castillo.curves_view import curve_tables, load_curves
from experiments.castillo.paper import UNSEEN, compare
from experiments.castillo.paper_view import html_report, tables
from lengthwise.cli import (
    reproduce_alpaca20,
)
from lengthwise.cli.lengths import load_samples
from lengthwise.cli.output import need_folder
from lengthwise.predictors.evaluation import evaluated_rows
from lengthwise.predictors.resolve import resolve_predictor
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
    curves: Annotated[
        Path | None, typer.Option(help="Other loss curves: a file of scripts/gpu_curves.py or gpu_train.py.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with figures here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Tables 2 to 5 of the paper that predicts CASTILLO's lengths with BERT; a cell is claimed only beyond a constant.

    With its loss curves (figures 6, 9 and the appendix's) and, in the report, figure 7.

    Example: `lengthwise reproduce castillo --predictor default --report castillo.html`
    """
    need_folder(report)
    measured = load_curves(curves)
    samples = load_samples(source)
    seen = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])
    chosen = resolve_predictor(predictor, fit_on=evaluated_rows(seen, None)[1])
    with late_bar() as bar:
        found = compare(chosen, samples, name=predictor, progress=bar)
    if as_json:
        typer.echo(to_json(found if measured is None else {**vars(found), "curves": measured}))
    else:
        print_tables([*tables(found), *([] if measured is None else curve_tables(measured))])
    if report is not None:
        report.write_text(html_report(found, measured), encoding="utf-8")
        typer.echo(f"report: {report}", err=as_json)


app.command()(reproduce_alpaca20.alpaca20)
