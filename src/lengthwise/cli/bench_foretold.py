"""`lengthwise bench foretold`: what the simulator says of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import print_tables, to_json


def initial_expected(
    out: Annotated[Path, typer.Argument(help="The folder of results of `lengthwise bench engine`.")],
    engine: Annotated[
        Path | None, typer.Option("--engine", help="An engine's file, instead of a fit on the other cells' steps.")
    ] = None,
    draws: Annotated[
        int,
        typer.Option("--draws", help="Simulate the measured requests with so many other draws of arrivals too.", min=0),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Replay measured cells in the simulator and print how far it is off, policy by policy.

    The same arrivals, prompts, lengths and predictions. Each cell is simulated with a cost model fitted on the logged steps
    of the setting's others. `--draws 40` also says how much the next repeats may differ from the few there are.

    Example: `lengthwise bench foretold out/evidence`
    """
    from experiments.simulator_error.draws import draw_again
    from experiments.simulator_error.study import foretell
    from experiments.simulator_error.view import draws_table, facts, tables
    from lengthwise.bench.evidence.store import Store
    from lengthwise.simulator.engine_file import read_engine

    with late_bar() as bar:
        spec = None if engine is None else read_engine(engine)
        found = foretell(Store(out), engine=spec, on_cell=bar)
        drawn = draw_again(Store(out), draws, engine=spec, on_draw=bar) if draws else []
    if as_json:
        typer.echo(to_json(facts(found, drawn)))
    else:
        print_tables([*tables(found), *([draws_table(drawn)] if drawn else [])])
