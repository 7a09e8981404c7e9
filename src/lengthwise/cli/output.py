"""Output shared by commands: check the file to write, print tables or JSON, write the report."""

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
    """Raise InputError before any work if the folder of `path` does not exist."""
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError("no such folder", source=path.parent, hint=f"create it, or choose another {option}")


def show(
    found: Found,
    tables: Callable[[Found], Sequence[Table]],
    plain: Callable[[Found], Any],
    page: Callable[[Found], str],
    *,
    report: Path | None,
    as_json: bool,
) -> None:
    """Print tables or JSON, and write the report if one is requested."""
    if as_json:
        typer.echo(to_json(plain(found)))
    else:
        print_tables(tables(found))
    if report is not None:
        with atomic_path(report) as path:
            path.write_text(page(found), encoding="utf-8")
        typer.echo(f"report: {report}", err=as_json)
