"""`lengthwise report`: show stored runs, or compare two files of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.output import AsJson, need_folder, show
from lengthwise.reports.page import Origin
from lengthwise.reports.stored import compare_runs, read_runs


def report(
    first: Annotated[
        Path, typer.Argument(metavar="A.JSON", help="Output of simulate, sweep, plan or replay with --json.")
    ],
    second: Annotated[
        Path | None, typer.Argument(metavar="[B.JSON]", help="The same after a change; each run is paired by its name.")
    ] = None,
    page: Annotated[Path | None, typer.Option("--report", help="Also write an HTML report with figures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs that were stored with --json, or show one.

    Ratios are second over first. They have intervals where both files hold the same requests under several seeds.

    Example: `lengthwise report before.json after.json --report change.html`
    """
    need_folder(page, "--report", ".html")
    before = read_runs(first)
    document = before.document if second is None else compare_runs(before, read_runs(second)).document(Origin.here())
    show(document, page, as_json=as_json)
