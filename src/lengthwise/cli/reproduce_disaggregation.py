"""`lengthwise reproduce disaggregation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.disaggregation.study import Effort, study
from experiments.disaggregation.traffic import CASES, here, named
from experiments.disaggregation.view import html_report, plain, tables
from lengthwise.cli.output import need_folder, show
from lengthwise.cli.sweep import cache_folder
from lengthwise.cli.workload import note
from lengthwise.reports.progress import late_bar
from lengthwise.simulator import KvLink
from lengthwise.simulator.tasks import ResultCache, in_processes

_LINK = KvLink()


def disaggregation(
    seeds: Annotated[
        int | None, typer.Option(help="Repeat with so many seeds; 5, or 2 with --quick. Intervals are over seeds.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Of each workload; 4,200, or 300 with --quick.")] = None,
    kv_link: Annotated[float, typer.Option(help="GB/s over which an engine sends or takes in KV.")] = _LINK.gb_per_s,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer seeds, requests, loads and splits: whether it works.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Processes of this machine.")] = 2,
    cache: Annotated[
        Path | None, typer.Option(help="Setting results are kept; ~/.cache/lengthwise/sweeps if not given.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write a page with plots: .html.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Prefill and decode on different engines against engines that do both: when it pays.

    ReAct, Mooncake's conversations, Azure's and CASTILLO on eight engines, split in several ways, at loads from 0.5 to
    1.1 of what the mixed fleet can do. What was computed before is taken from the cache.

    Example: `lengthwise reproduce disaggregation --quick --report disaggregation.html`
    """
    need_folder(report)
    link = KvLink(kv_link)
    given = {name: value for name, value in (("seeds", seeds), ("requests", requests)) if value is not None}
    effort = (Effort.quick if quick else Effort)(**given)
    workers, results = in_processes(jobs), ResultCache(cache_folder(cache))
    cases = here()
    for case in CASES:
        if case not in cases:
            note(f"LENGTHWISE_DATA does not hold {case}'s trace; it is left out")
    if named("azure") == "azure_sample":
        note("LENGTHWISE_DATA does not hold Azure's trace; using the sample that ships with the package")
    with late_bar() as bar:
        found = study(effort, results, workers, gb_per_s=link.gb_per_s, cases=cases, on_progress=bar)
    show(found, tables, plain, html_report, report=report, as_json=as_json)
