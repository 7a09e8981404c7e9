"""One table type for the terminal and HTML, and JSON output."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

__all__ = ["Table", "number", "print_tables", "share", "signed", "to_json"]


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. The first column names the row, the others hold figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Sentences below the table: what was left out, what a column means."""
    rule_before: frozenset[int] = frozenset()
    """Rows that begin a new section."""


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print to stdout; 200 columns wide if it is not a terminal."""
    console = Console() if console is None else console
    if not console.is_terminal:
        console.width = 200
    for table in tables:
        console.print(_rich(table))
        for note in table.notes:
            console.print(note, style="dim", highlight=False, markup=False)
        console.print()


def _rich(table: Table) -> RichTable:
    rich = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False)
    for i, column in enumerate(table.columns):
        rich.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0, overflow="fold")
    for i, row in enumerate(table.rows):
        rich.add_row(*row, end_section=i + 1 in table.rule_before)
    return rich


def share(value: float) -> str:
    """Format a share as a percentage."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def number(value: float, digits: int) -> str:
    """Format a number with thousands separated; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """Format a difference with its sign."""
    return "–" if math.isnan(value) else f"{value:+.{digits}f}"


def to_json(result: object) -> str:
    """Return dataclasses, arrays and numbers as JSON; NaN and infinity become null."""
    return json.dumps(_plain(result), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:  # noqa: ANN401  (any tree of values)
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
