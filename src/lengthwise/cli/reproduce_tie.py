"""`lengthwise reproduce tie`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.tie.facts import plain
from experiments.tie.study import Effort, study
from experiments.tie.view import html_report, tables
from lengthwise.cli.output import need_folder, show
from lengthwise.cli.workload import note
from lengthwise.reports.progress import late_bar
from lengthwise.workloads import load_castillo
from lengthwise.workloads.castillo import PACKAGED


def tie(
    predictor: Annotated[
        str, typer.Option(help="What policies predict, beside `oracle`: `default`, `fast`, a model file, `noisy:TAU`.")
    ] = "default",
    seeds: Annotated[
        int | None, typer.Option(help="Repeat with so many seeds; 10, or 3 with --quick. Intervals are over seeds.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, requests and loads: the shape only.")] = False,
    report: Annotated[Path | None, typer.Option(help="Also write a page with plots: .html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """TIE's experiments on simulated engines, ours beside the paper's: online, its ablation, offline, the heatmap.

    Example: `lengthwise reproduce tie --quick --report tie.html`
    """
    need_folder(report)
    effort = (Effort.quick if quick else Effort)(**({} if seeds is None else {"seeds": seeds}))
    samples = load_castillo()
    if samples.origin == PACKAGED:
        note("LENGTHWISE_DATA holds no CASTILLO; using the small sample that ships with the package, without Alpaca")
    with late_bar() as bar:
        found = study(samples, predictor=predictor, effort=effort, on_progress=bar)
    show(found, tables, plain, html_report, report=report, as_json=as_json)
