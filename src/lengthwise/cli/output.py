"""Options and output shared by commands: check the file to write, print tables or JSON, write the report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.reports.page import Document, html_templates
from lengthwise.reports.tables import print_tables, to_json

if TYPE_CHECKING:  # pyarrow is an extra
    import pyarrow as pa

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Report = Annotated[Path | None, typer.Option(help="Also write an HTML report with figures.")]
LIMITS = "Limits"
SloTtft = Annotated[float, typer.Option(help="Goodput: largest TTFT in seconds.", rich_help_panel=LIMITS)]
SloTpot = Annotated[float, typer.Option(help="Goodput: largest TPOT in seconds.", rich_help_panel=LIMITS)]
SloE2e = Annotated[
    float | None, typer.Option(help="Goodput: largest E2E in seconds [default: none].", rich_help_panel=LIMITS)
]
SloPerToken = Annotated[
    float | None,
    typer.Option(help="Goodput: largest E2E per output token in seconds [default: none].", rich_help_panel=LIMITS),
]
MaxNumSeqs = Annotated[int | None, typer.Option(min=1, help="Requests that run at once in the engine.")]
SampleSource = Annotated[
    str, typer.Argument(help="`castillo`, a folder in its layout, or a Parquet file of length samples.")
]
OnlyLlm = Annotated[list[str] | None, typer.Option(help="Only this LLM; repeatable.")]
OnlyCorpus = Annotated[list[str] | None, typer.Option(help="Only this corpus; repeatable.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for engines that do not answer yet.")]


def need_folder(path: Path | None, option: str, suffix: str = "") -> None:
    """Raise InputError before any work if `path` cannot be written, or its name does not end in `suffix`."""
    if path is None:
        return
    if not path.name.endswith(suffix):
        raise InputError(f"does not end in {suffix}", source=path, hint=f"use a name that ends in {suffix}")
    if path.is_dir():
        raise InputError("is a folder", source=path, hint="name a file to write")
    if not path.absolute().parent.is_dir():
        raise InputError("no such folder", source=path.parent, hint=f"create it, or choose another {option}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise InputError("cannot be written to", source=path.parent, hint=f"choose another {option}")


def need_report(path: Path | None) -> None:
    """Raise InputError before any work if the page at `path` cannot be made or written."""
    need_folder(path, "--report", ".html")
    if path is not None:
        html_templates()


def note(text: str) -> None:
    """Print a note to stderr."""
    typer.echo(f"note: {text}", err=True)


def show(document: Document, report: Path | None = None, *, as_json: bool) -> None:
    """Write the report if one is requested, then print the verdict and tables, or JSON."""
    if report is not None:  # first: a reader such as `head` may close stdout
        with atomic_path(report) as path:
            path.write_text(document.html(), encoding="utf-8")
    if as_json:
        typer.echo(to_json(document.facts))
    else:
        if document.verdict:
            typer.echo(f"{document.verdict}\n")
        print_tables(document.tables)
    if report is not None:
        typer.echo(f"report: {report}", err=as_json)


def list_kinds(kinds: Mapping[str, type], default: str, *, as_json: bool) -> None:
    """Print the first line of the docstring of each class, by name."""
    found = [{"name": name, "what": (kind.__doc__ or "").partition("\n")[0]} for name, kind in kinds.items()]
    if as_json:
        typer.echo(to_json(found))
        return
    width = max(map(len, kinds)) + 2
    for row in found:
        typer.echo(f"{row['name']:{width}}{row['what']}{' (the default of serve)' if row['name'] == default else ''}")


def write_parquet(table: pa.Table, out: Path) -> None:
    """Write a table; the file appears only once it is complete."""
    import pyarrow.parquet as pq

    with atomic_path(out) as path:
        pq.write_table(table, path)
