"""What the commands that study something share: where a report may go, and how what was found is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer

from lengthwise.errors import InputError
from lengthwise.reports.tables import Table, print_tables, to_json
from lengthwise.workloads.files import atomic_path

Found = TypeVar("Found")


def need_folder(path: Path | None, option: str = "--report") -> None:
    """Refuse a file whose folder does not exist, before any work is done for it."""
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError("no such folder", source=path.parent, hint=f"make it first, or give another {option}")


def show(
    found: Found,
    tables: Callable[[Found], Sequence[Table]],
    plain: Callable[[Found], Any],
    page: Callable[[Found], str],
    *,
    report: Path | None,
    as_json: bool,
) -> None:
    """Print tables, or JSON for machines, and write the page where one is asked for."""
    if as_json:
        typer.echo(to_json(plain(found)))
    else:
        print_tables(tables(found))
    if report is not None:
        with atomic_path(report) as path:
            path.write_text(page(found), encoding="utf-8")
        typer.echo(f"report: {report}", err=as_json)
