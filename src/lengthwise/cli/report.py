"""`lengthwise report`: show stored runs, or compare two files of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.cli.output import AsJson, need_folder, show
from lengthwise.reports.page import Origin
from lengthwise.reports.runs import runs_page, verdict
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
    if second is None:
        show(
            before,
            lambda it: [it.table()],
            lambda it: {"verdict": verdict(it.runs), **it.content},
            lambda it: runs_page(it.name, it.runs, [it.table()], it.origin),
            verdict=verdict(before.runs),
            report=page,
            as_json=as_json,
        )
        return
    found = compare_runs(before, read_runs(second))
    show(
        found,
        lambda it: [it.table()],
        lambda it: it.to_dict(),
        lambda it: it.page(Origin.here()),
        verdict=found.verdict,
        report=page,
        as_json=as_json,
    )
