"""`lengthwise reproduce preble`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from experiments.preble.study import Effort, study
from experiments.preble.traffic import castillo_prompts
from experiments.preble.view import html_report, plain, tables
from lengthwise.cli.output import need_folder, show
from lengthwise.cli.simulate import numbers
from lengthwise.cli.sweep import cache_folder
from lengthwise.cli.workload import note
from lengthwise.reports.progress import late_bar
from lengthwise.simulator.tasks import ResultCache, TaskRunner, in_processes
from lengthwise.workloads.castillo import PACKAGED


def preble(
    predictor: Annotated[
        str, typer.Option(help="What routers are told of CASTILLO's prompts: `fast`, `default`, a file, `noisy:TAU`.")
    ] = "fast",
    engines: Annotated[
        str | None, typer.Option(help="Numbers of engines, commas between; 4,8,16,32, or 4,8 with --quick.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option(help="Requests per second, commas between; 1,2,4,...,128, or 8,64,128 with --quick.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Repeat with so many seeds; 5, or 2 with --quick. Intervals are over seeds.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, rates, engines: the shape only.")] = False,
    jobs: Annotated[int, typer.Option(help="Processes of this machine.")] = 2,
    cache: Annotated[
        Path | None, typer.Option(help="Setting results are kept; ~/.cache/lengthwise/sweeps if not given.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also write a picture here: .png, .pdf or .svg.")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write a page with plots: .html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Routing by prefix and length on simulated engines: the figures of Preble's length-aware extension beside ours.

    Every router on the same requests, FCFS inside engines. What was simulated once is kept: a second run is quick, and
    one that was stopped goes on where it was.

    Example: `lengthwise reproduce preble --quick --report preble.html`
    """
    need_folder(report)
    need_folder(plot, "--plot")
    effort = (Effort.quick if quick else Effort)(**({} if seeds is None else {"seeds": seeds}))
    if engines is not None:
        counts = tuple(map(int, numbers(engines, "engines")))
        varied = tuple(count for count in effort.varied_engines if count in counts)
        effort = replace(effort, engines=counts, varied_engines=varied or counts)
    if rates is not None:
        effort = replace(effort, rates=tuple(numbers(rates, "rates")))
    workers = in_processes(jobs)
    if castillo_prompts().origin == PACKAGED:
        note("LENGTHWISE_DATA holds no CASTILLO; using the small sample that ships with the package")
    with late_bar() as bar:
        found = study(TaskRunner(ResultCache(cache_folder(cache)), workers, bar), predictor=predictor, effort=effort)
    show(found, tables, plain, html_report, report=report, as_json=as_json)
    if plot is not None:
        from experiments.preble.still import draw

        draw(found, plot)
    note(f"{found.found} from the cache, {found.computed} computed")
