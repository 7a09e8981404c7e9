"""`python -m experiments list | run NAME... | run all | log COMMAND`."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments import NAMES
from experiments.log import KEPT, Entry, append, last_measured, read, run_command
from experiments.study import Call, Finished, Run, Study, Took, run_study
from lengthwise.cache import cache_home
from lengthwise.errors import InputError, missing_extra
from lengthwise.files import atomic_path
from lengthwise.ray.sweep import on_ray
from lengthwise.reports.progress import late_bar
from lengthwise.reports.tables import Table, print_tables
from lengthwise.simulator.tasks import ResultCache, Workers, in_processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 2 for a wrong input, 130 when interrupted."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "list":
            _list()
        elif options.command == "log":
            _make(options.log.parent)
            append(options.log, run_command(options.text))
        else:
            _run(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        _note("interrupted; the same command resumes")
        return 130
    return 0


def load(name: str) -> Study[Any, Any]:
    """The study of a name; an unknown one is an InputError with the closest known name."""
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(NAMES)}"
        raise InputError(f"unknown study '{name}'", hint=hint)
    try:
        study: Study[Any, Any] = importlib.import_module(f"experiments.{name}").STUDY
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        raise InputError(missing.problem, source=name, hint=missing.hint) from error
    return study


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Run the studies of this repository.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="Print every study, its source and how long it takes.")
    logged = commands.add_parser("log", help="Run a command that is no study, and log it as a study is logged.")
    logged.add_argument("text", metavar="COMMAND", help="As docs/studies/papers.md names it, in quotes.")
    logged.add_argument("--log", type=Path, default=KEPT, help="Log of runs to append to (%(default)s).")
    run = commands.add_parser("run", help="Run studies; finished ones and finished simulations come from the cache.")
    run.add_argument("names", nargs="+", metavar="NAME", help="Names of studies, or `all`.")
    run.add_argument("--quick", action="store_true", help="The small grid: the shape of the result only.")
    run.add_argument("--measure", action="store_true", help="Run the engine again instead of reading kept rows.")
    run.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="Replace a field of the grid.")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Worker processes.")
    run.add_argument(
        "--ray", metavar="ADDRESS", help="Run simulations on a Ray cluster instead; `auto` finds the local one."
    )
    run.add_argument(
        "--cache", type=Path, default=cache_home() / "experiments", help="Folder of cached results (%(default)s)."
    )
    run.add_argument("--out", type=Path, default=Path("out/experiments"), help="Folder of reports (%(default)s).")
    run.add_argument("--log", type=Path, help="Log of runs to append to (log.jsonl in the folder of reports).")
    run.add_argument("--plot", type=Path, help="Write the documentation's static figure here (.svg, .png, .pdf).")
    run.add_argument("--json", action="store_true", help="Print JSON instead of tables.")
    return parser


def _list() -> None:
    rows, runs = [], read(KEPT)
    for name in NAMES:
        try:
            study = load(name)
        except InputError as missing:
            rows.append([name, f"{missing.problem}; {missing.hint}", *[""] * 4])
            continue
        expected = (cpu_s(study, runs, quick=quick)[0] for quick in (False, True))
        rows.append([study.name, study.question, study.paper, study.source, *map(_duration, expected)])
    columns = ("study", "question", "paper", "source", "takes", "--quick")
    notes = ["Times are CPU times. A study that needs an input of yours says so when it runs."]
    print_tables([Table("Studies", columns, rows, notes)])


def _loaded(name: str, *, every: bool) -> Study[Any, Any] | None:
    """Return the study; of `all`, None and a note where an extra that it needs is not installed."""
    try:
        return load(name)
    except InputError as missing:
        if not every:
            raise
        _note(f"{name} is left out: {missing.problem}; {missing.hint}")
        return None


def _run(options: argparse.Namespace) -> None:
    every = options.names == ["all"]
    studies = [study for name in (NAMES if every else options.names) if (study := _loaded(name, every=every))]
    if options.plot is not None and (len(studies) != 1 or studies[0].draw is None):
        raise InputError("--plot takes one study that has a static figure")
    chosen: list[Chosen] = []
    for study in studies:
        grid = study.with_settings(_settings(study, options, every=every), quick=options.quick)
        lacks = study.needs(grid)
        if lacks is None:
            chosen.append((study, grid))
        elif every:
            _note(f"{study.name} is left out: it {lacks}")
        else:
            raise InputError(f"{study.name} {lacks}")
    options.log = options.log or options.out / "log.jsonl"
    for folder in (options.cache, options.out, options.log.parent):
        _make(folder)
    left = [(study, grid) for study, grid in chosen if ResultCache(options.cache).get(study.key(grid)) is None]
    _announce([study for study, _ in chosen], [study for study, _ in left], options)
    began = time.monotonic()
    workers = in_processes(options.jobs) if options.ray is None else on_ray(options.ray)
    for study, grid, finished in _side_by_side(left, options, workers):
        _show(study, grid, finished, options, every=every)
        chosen.remove((study, grid))
    for study, grid in chosen:
        _show(study, grid, _run_one(study, grid, options, workers), options, every=every)
    if len(studies) > 1:
        _note(f"all of it took {_duration(time.monotonic() - began)}")


Chosen = tuple[Study[Any, Any], Any]
"""A study and its grid."""


def _side_by_side(
    chosen: Sequence[Chosen], options: argparse.Namespace, workers: Workers
) -> Iterator[tuple[Study[Any, Any], Any, Finished]]:
    """Run the serial studies, if there are two, one in each worker; one that measures an engine runs alone."""
    serial = [(study, grid) for study, grid in chosen if study.serial and not getattr(grid, "measure", False)]
    if len(serial) < 2 or options.plot is not None:
        return
    results = ResultCache(options.cache)
    with late_bar() as bar:
        tasks = [Call(run_study, (study.name, grid, options.cache)) for study, grid in serial]
        for done, (number, took) in enumerate(workers(tasks), start=1):
            bar(f"{done} of {len(tasks)} studies of one process", done / len(tasks))
            study, grid = serial[number]
            yield study, grid, dataclasses.replace(study.run(grid, results), took=Took(**took) if took else None)


def _announce(chosen: Sequence[Study[Any, Any]], left: Sequence[Study[Any, Any]], options: argparse.Namespace) -> None:
    """Say which studies are finished, and how long the others take, each and together."""
    runs = [*read(KEPT), *read(options.log)]
    expected = {study.name: cpu_s(study, runs, quick=options.quick) for study in left}
    serial, other = ([expected[study.name][0] for study in left if study.serial is kind] for kind in (True, False))
    together = sum(other) / options.jobs + max(sum(serial) / options.jobs, max(serial, default=0.0))
    finished = [study.name for study in chosen if study not in left]
    if len(chosen) > 1:
        if finished:
            _note(f"finished with this code, data and settings: {', '.join(finished)}")
        for name, (seconds, origin) in expected.items():
            _note(f"{name}: {_duration(seconds)} of CPU time ({origin})")
    if together > 60:
        cores = "1 core" if options.jobs == 1 else f"{options.jobs} cores"
        _note(f"this takes about {_duration(together)} on {cores}; stopped and run again, it resumes")


def cpu_s(study: Study[Any, Any], runs: Sequence[Entry], *, quick: bool) -> tuple[float, str]:
    """Return the CPU time of the declared grid and where it is from: the last measured run, or the declaration."""
    entry = last_measured(runs, study.name, quick=quick)
    if entry is not None and entry.cpu_s is not None:
        return entry.cpu_s, f"measured {entry.date[:10]}"
    return 60 * study.minutes[quick] * (1 if study.serial else 2), "declared"


def _settings(study: Study[Any, Any], options: argparse.Namespace, *, every: bool) -> list[str]:
    """The given settings; `--measure` sets the field `measure`, which studies of a running engine have."""
    if not options.measure or (every and not hasattr(study.grid, "measure")):
        return list(options.set)
    if not hasattr(study.grid, "measure"):
        hint = "the docstring of its module names the command that measures"
        raise InputError(f"{study.name} does not run an engine", field="--measure", hint=hint)
    return [*options.set, "measure=yes"]


def _run_one(study: Study[Any, Any], grid: object, options: argparse.Namespace, workers: Workers) -> Finished:
    results = ResultCache(options.cache)
    with late_bar() as bar:
        finished = study.run(
            grid, results, workers=workers, report=lambda what, done: bar(f"{study.name}: {what}", done)
        )
        if options.plot is not None and study.draw is not None:
            study.draw(study.measure(Run(results, workers=workers, report=bar), grid), options.plot)
    return finished


def _show(
    study: Study[Any, Any], grid: object, finished: Finished, options: argparse.Namespace, *, every: bool
) -> None:
    """Print the answer, or all tables, write the report, and log a run."""
    output = finished.output
    for text in output.notes:
        _note(text)
    if options.json:
        print(output.json())  # noqa: T201
    elif every:
        print(f"{study.name}: {output.verdict}", flush=True)  # noqa: T201
    else:
        print_tables(output.tables)
    page = options.out / f"{study.name}{'-quick' if options.quick else ''}.html"
    seeds = getattr(grid, "seeds", None)
    seed = str(getattr(grid, "seed", "")) if seeds is None else f"{seeds} seeds"
    for path, text in ((page, output.html(seed)), (page.with_suffix(".json"), output.json())):
        with atomic_path(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    if finished.took is not None:
        append(options.log, _entry(study, finished, finished.took, options))
    _note(f"{study.name}: {_how(finished)}; {page} and .json")


def _entry(study: Study[Any, Any], finished: Finished, took: Took, options: argparse.Namespace) -> Entry:
    settings = [*options.set, *["measure=yes"] * options.measure]
    times = dataclasses.asdict(took) | {
        "seconds": round(took.seconds, 1),
        "cpu_s": round(took.cpu_s, 1) if options.ray is None else None,
    }
    output = finished.output
    return Entry(
        study=study.name, quick=options.quick, settings=settings, answer=output.verdict, notes=output.notes, **times
    )


def _how(finished: Finished) -> str:
    if finished.took is None:
        return "from the cache"
    parts = f", {finished.took.cached} simulations from the cache" if finished.took.cached else ""
    return f"took {_duration(finished.took.seconds)}{parts}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be created: {error.strerror}", source=folder) from error


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _note(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
