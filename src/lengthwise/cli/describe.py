"""`lengthwise workload describe`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lengthwise.cli.lengths import load_samples
from lengthwise.cli.workload import fact_table, facts
from lengthwise.reports.castillo_profile import tables
from lengthwise.reports.tables import print_tables, to_json
from lengthwise.workloads import load_workload
from lengthwise.workloads.castillo_profile import profile_castillo


def describe(
    source: Annotated[
        str, typer.Argument(help="`castillo`, a name of `lengthwise traces list`, or a workload's file.")
    ],
    plot: Annotated[Path, typer.Option(help="Where CASTILLO's figure goes.")] = Path("castillo.png"),
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Tables only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What is in a workload. For CASTILLO: table 1 and figures 1 to 4 of the paper that predicts its lengths.

    Example: `lengthwise workload describe castillo`
    """
    if source != "castillo":
        workload = load_workload(source, need_arrivals=False)
        if as_json:
            typer.echo(json.dumps(facts(workload), indent=2))
        else:
            Console(markup=False, highlight=False).print(fact_table(workload))
        return
    profile = profile_castillo(load_samples(source))
    if as_json:
        typer.echo(to_json(profile.summary()))
    else:
        print_tables(tables(profile))
    if not no_plot:
        from lengthwise.reports.castillo_profile_figures import draw  # Matplotlib takes half a second to load

        draw(profile, plot)
        typer.echo(f"figure: {plot}", err=as_json)
