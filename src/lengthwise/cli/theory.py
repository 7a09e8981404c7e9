"""`lengthwise theory`: what queueing theory says of one server, beside what the simulator finds."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.theory.study import Effort, claims, examine
from experiments.theory.view import facts, table
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import print_tables, to_json


def theory(
    load: Annotated[float, typer.Option(help="Arrivals per mean service, below 1.")] = 0.7,
    runs: Annotated[int, typer.Option(help="Independent runs; more make the intervals narrower.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Set mean response times beside formulas: FCFS, SJF, SRPT and TRAIL's limited preemption on one server.

    Takes a few minutes. Example: `lengthwise theory --runs 10`
    """
    if not 0.0 < load < 1.0:
        raise InputError(f"a load of {load:g}", field="load", hint="above 0 and below 1: beyond, no mean exists")
    if runs < 5:
        raise InputError(f"{runs} runs", field="runs", hint="at least 5, or the intervals say nothing")
    what = claims(load)
    findings = []
    with late_bar() as report:
        for number, claim in enumerate(what):

            def progress(share: float, number: int = number, name: str = claim.name) -> None:
                report(name, (number + share) / len(what))

            findings.append(examine(claim, Effort(runs=runs), on_progress=progress))
    if as_json:
        typer.echo(to_json(facts(findings)))
    else:
        print_tables([table(findings)])
