"""One table type for the terminal and HTML, the formats of its figures, and JSON output."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:  # it loads SciPy, which takes longer than most commands
    from lengthwise.intervals import Ratio


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
    keys: int = 1
    """Leading columns that name a row; they are repeated where a table is split to fit the terminal."""
    together: int = 1
    """Columns that belong together, from the keys on: a table is split between such groups."""

    def parts(self, width: int) -> list[Table]:
        """Return the table in parts that are at most `width` characters wide, if one column beside the keys is."""
        widths = [
            3 + max(max(map(len, name.split()), default=0), *(len(row[place]) for row in self.rows), 0)
            for place, name in enumerate(self.columns)
        ]
        places = range(self.keys, len(self.columns))
        groups = [list(places[start : start + self.together]) for start in range(0, len(places), self.together)]

        def fits(part: Sequence[int]) -> bool:
            return sum(widths[: self.keys]) + sum(widths[each] for each in part) + 1 <= width

        parts: list[list[int]] = []
        for group in groups:
            if parts and fits([*parts[-1], *group]):
                parts[-1] += group
            else:
                parts.append(list(group))
        if len(parts) < 2:
            return [self]
        size = -(-len(groups) // len(parts)) * self.together
        even = [list(places[start : start + size]) for start in range(0, len(places), size)]
        if all(map(fits, even)):
            parts = even
        chosen = [[*range(self.keys), *part] for part in parts]
        return [
            dataclasses.replace(
                self,
                title=self.title if number == 0 else "",
                columns=[self.columns[place] for place in places],
                rows=[[row[place] for place in places] for row in self.rows],
                notes=self.notes if number == len(parts) - 1 else (),
            )
            for number, places in enumerate(chosen)
        ]


def print_tables(tables: Sequence[Table], console: Console | None = None) -> None:
    """Print to stdout; tables wider than the terminal, or than 80 columns without one, are split."""
    console = Console() if console is None else console
    for table in tables:
        for part in table.parts(console.width):
            console.print(_rich(part, console.width))
        for note in table.notes:
            console.print(note, style="dim", highlight=False, markup=False, soft_wrap=True)
        console.print()


def _rich(table: Table, width: int) -> RichTable:
    rich = RichTable(
        title=table.title or None, title_justify="left", title_style="bold", header_style="bold", pad_edge=False
    )
    cells = [max((len(row[i]) for row in table.rows), default=0) for i in range(len(table.columns))]
    full = sum(3 + max(len(column), cell) for column, cell in zip(table.columns, cells, strict=True)) + 1
    for i, (column, cell) in enumerate(zip(table.columns, cells, strict=True)):
        # Where the table is too wide, headings wrap; Rich would wrap cells too.
        least = max(cell, *map(len, column.split()), 1)
        heading = column if full <= width else "\n".join(textwrap.wrap(column, least))
        rich.add_column(heading, justify="left" if i == 0 else "right", no_wrap=i == 0, overflow="fold")
    for i, row in enumerate(table.rows):
        rich.add_row(*row, end_section=i + 1 in table.rule_before)
    return rich


def seconds(value: float) -> str:
    """Format a duration in ms or s."""
    if math.isnan(value):
        return "–"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:,.2f} s"


def multiple(ratio: Ratio, digits: int = 3) -> str:
    """Format a ratio with its interval."""
    if math.isnan(ratio.ratio):
        return "–"
    if ratio.low == ratio.high == 1:
        return "1"
    value, low, high = (f"{each:.{digits}f}" for each in (ratio.ratio, ratio.low, ratio.high))
    return value if math.isnan(ratio.low) else f"{value} [{low}, {high}]"


def share(value: float) -> str:
    """Format a share as a percentage."""
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def number(value: float, digits: int) -> str:
    """Format a number with thousands separated; a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def signed(value: float, digits: int = 3) -> str:
    """Format a difference with its sign."""
    return "–" if math.isnan(value) else f"{value:+.{digits}f}"


def to_json(result: object, indent: int | None = 2) -> str:
    """Return dataclasses, arrays and numbers as JSON; NaN and infinity become null."""
    return json.dumps(_plain(result), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:  # any tree of values
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
