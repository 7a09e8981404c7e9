"""`lengthwise sweep`: a grid of simulations from a file, in parallel, cached by content."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from lengthwise.cache import cache_home
from lengthwise.cli.output import AsJson, Report, need_folder, need_report, show, write_parquet
from lengthwise.errors import InputError
from lengthwise.ray.sweep import on_ray
from lengthwise.reports.page import Origin, this_machine
from lengthwise.reports.progress import late_bar
from lengthwise.reports.simulation import sweep_document
from lengthwise.simulator.sweep import read_sweep, run_sweep
from lengthwise.simulator.tasks import ResultCache, in_processes


def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP.YAML", help="The grid (docs/guides/sweeps.md; configs/sweep.yaml is an example)."
        ),
    ],
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster instead; `auto` finds the local one."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of cached results [default: ~/.cache/lengthwise/sweeps].")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write one row per cell (.parquet).")] = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Simulate every combination of a grid, in parallel. Results are cached by content: a second run computes nothing.

    An interrupted sweep resumes when it is run again.

    Example: `lengthwise sweep configs/sweep.yaml --jobs 8 --report sweep.html`
    """
    need_folder(out, "--out", ".parquet")
    need_report(report)
    config = read_sweep(file)
    workers = in_processes(jobs) if ray is None else on_ray(ray)
    with late_bar() as bar:
        swept = run_sweep(config, ResultCache(cache_folder(cache)), workers, on_progress=bar)
    if out is not None:
        write_parquet(pa.Table.from_pylist(swept.rows), out)
    origin = Origin.here(seed=config.drawn_seeds, hardware=f"simulated {', '.join(config.fleet)}, on {this_machine()}")
    show(sweep_document(swept, origin), report, as_json=as_json)
    if not as_json:
        typer.echo(f"{swept.from_cache} from the cache, {swept.computed} computed", err=True)


def cache_folder(given: Path | None) -> Path:
    """Return the folder of cached results; create it if it does not exist."""
    folder = cache_home() / "sweeps" if given is None else given
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be created: {error.strerror}", source=folder, hint="name a folder with --cache"
        ) from error
    return folder
