"""`lengthwise bench engine`: measure policies and predictors on a real engine, paired."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lengthwise.cli.output import need_folder
from lengthwise.errors import InputError
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import print_tables, to_json

if TYPE_CHECKING:
    from lengthwise.bench.evidence.bench import Bench
    from lengthwise.bench.evidence.plan import Cell
    from lengthwise.bench.evidence.store import Store

app = typer.Typer(no_args_is_help=True, help="Measurements on real engines.")


@app.callback()
def _group() -> None:
    pass


@app.command()
def engine(
    policy: Annotated[str, typer.Option(help="Policies to compare; fcfs is stock vLLM.")] = "fcfs,sjf,tie,lengthwise",
    predictor: Annotated[
        str, typer.Option(help="Their predictors: fast, default, a model file; oracle is the true length.")
    ] = "fast,default,oracle",
    load: Annotated[str, typer.Option(help="Arrival rates as multiples of the measured capacity.")] = "0.7,1.1",
    settings: Annotated[
        str, typer.Option(help="a: forced lengths of a large LLM; b: the engine's LLM answers freely.")
    ] = "a,b",
    only: Annotated[
        Literal["headline"] | None, typer.Option(help="headline: only the cells that are measured several times.")
    ] = None,
    every_load: Annotated[
        bool, typer.Option("--every-load", help="All policies at all loads, not at the highest only.")
    ] = False,
    offline: Annotated[bool, typer.Option(help="Also measure the makespan of a batch under each policy.")] = True,
    n: Annotated[int, typer.Option("--n", min=1, help="Requests per cell in setting a.")] = 600,
    own_n: Annotated[int, typer.Option("--own-n", min=1, help="Requests per cell in setting b.")] = 120,
    own_lengths: Annotated[
        int, typer.Option("--own-lengths", min=20, help="Lengths to adapt predictors with in setting b.")
    ] = 500,
    slots: Annotated[int, typer.Option(min=1, help="Requests that run at once in the engine.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Paired repeats of the headline cells.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of prompts, lengths, arrivals and the order of cells.")] = 0,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let vLLM compile the LLM: faster steps, slower start of each cell.")
    ] = False,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="Engines measured at the same time, all with the same paced steps.")
    ] = 1,
    url: Annotated[str | None, typer.Option(help="A running server instead of the embedded engine.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results.")] = Path("out/evidence"),
    report: Annotated[Path | None, typer.Option(help="Also write an HTML report with plots.")] = None,
    page: Annotated[Path | None, typer.Option(help="Also write a Markdown page and its figure.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and exit.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Only report the results in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Measure policies and predictors on a real engine, each with the same arrivals and true lengths.

    Headline cells are measured several times, every other cell once, at the highest load. Capacity is measured first;
    then the estimated hours are printed. Each finished cell is saved, and the same command resumes an interrupted run.

    With --url give the one --policy and --predictor that the server was started with: its policy cannot be changed
    from outside. Start stock vLLM for `--policy fcfs` first, which measures capacity, then others with the same --out.
    For setting a the server needs the option `forced_lengths` (docs/guides/engine.md); the oracle's lengths are sent
    with each request.

    Exit code 1 if cells failed, 130 after Ctrl-C.

    Example: `lengthwise bench engine --load 0.7,1.1 --report out.html`
    """
    # Imported here because HTTP and predictors are slow to import.
    from lengthwise.bench.evidence.bench import Bench, from_outside
    from lengthwise.bench.evidence.plan import Asked
    from lengthwise.bench.evidence.store import Store
    from lengthwise.bench.evidence.traffic import Sizes

    if url is not None and at_once > 1:
        raise InputError("--at-once with --url", hint="one server is measured at a time: leave out one of them")
    asked = Asked(
        policies=_names(policy),
        predictors=_names(predictor),
        loads=_loads(load),
        settings=_names(settings),
        repeats=repeats,
        seed=seed,
        only_headline=only is not None,
        offline=offline,
        at_once=at_once,
        every_load=every_load,
    )
    cells = asked.cells()
    if url is not None and not no_run:
        cells = from_outside(cells, *_as_served(asked.policies, asked.predictors))
    sizes = Sizes(n, own_n, own_lengths, slots, seed)
    need_folder(report)
    need_folder(page, "--page")
    with late_bar() as bar:
        bench = Bench(Store(out), sizes, lambda text: typer.echo(text, err=True), bar, url, compiled, at_once)
        if dry_run:
            _show_plan(bench, cells, as_json=as_json)
            return
        if not no_run:
            _run(bench, cells)
    _report(bench.store, report, page, as_json=as_json)
    if bench.failed:
        raise typer.Exit(1)


def _run(bench: Bench, cells: Sequence[Cell]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine is stopped on the way out
    bench.begin()
    try:
        with bench.store.alone():
            bench.run(cells)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command resumes", err=True)
        raise typer.Exit(130) from None
    for name, reason in bench.failed.items():
        typer.echo(f"missing: {name} ({reason})", err=True)


def _show_plan(bench: Bench, cells: Sequence[Cell], *, as_json: bool) -> None:
    if as_json:
        typer.echo(to_json({"cells": [cell.id for cell in cells], "forecast": bench.forecast(cells)}))
        return
    for cell in cells:
        typer.echo(f"{cell.said}{', measured' if bench.store.has(cell) else ''}")
    typer.echo(bench.forecast(cells))


def _report(store: Store, report: Path | None, page: Path | None, *, as_json: bool) -> None:
    from lengthwise.bench.evidence.analysis import analyse
    from lengthwise.bench.evidence.figures import html_report, still_figure
    from lengthwise.bench.evidence.own import ceiling_of
    from lengthwise.bench.evidence.page import kept_by_hand, markdown
    from lengthwise.bench.evidence.targets import target_table
    from lengthwise.bench.evidence.view import tables

    results = store.results()
    if not results:
        raise InputError("holds no finished cell", source=store.folder, hint="run without --no-run")
    evidence = analyse(store.settings, results, ceiling_of(store.folder))
    if report is not None:
        report.write_text(html_report(evidence, results), encoding="utf-8")
    if page is not None:
        figures = page.parent / "figures"
        figures.mkdir(exist_ok=True)
        drawn = still_figure(evidence, results, figures / f"{page.stem}.png")
        kept = kept_by_hand(page.read_text(encoding="utf-8")) if page.exists() else ""
        page.write_text(markdown(evidence, f"figures/{page.stem}.png" if drawn else None, kept), encoding="utf-8")
    if as_json:
        typer.echo(to_json(evidence))
    else:
        print_tables([target_table(evidence), *tables(evidence)])


def _as_served(policies: Sequence[str], predictors: Sequence[str]) -> tuple[str, str]:
    """Return the one policy and predictor of a server."""
    if len(policies) != 1 or (policies[0] != "fcfs" and len(predictors) != 1):
        raise InputError(
            "a server's policy and predictor cannot be changed from outside",
            source="--url",
            hint="give the one --policy and --predictor it was started with; run again for another, the same --out",
        )
    return policies[0], predictors[0]


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError(f"'{text}' names nothing", hint="give names separated by commas")
    return names


def _loads(text: str) -> list[float]:
    try:
        return [float(part) for part in _names(text)]
    except ValueError as error:
        raise InputError(
            f"'{text}'", source="--load", hint="give multiples of the capacity, such as 0.7,1.1"
        ) from error
