"""One HTML page of pictures and tables that needs nothing else: nothing is fetched."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lengthwise.reports.tables import Table

__all__ = ["html_page", "page_around"]


def html_page(title: str, pictures: Mapping[str, str], tables: Sequence[Table]) -> str:
    """The page; `pictures` are PNGs in base64 by what they show."""
    shown = "\n".join(
        f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{data}"></figure>'
        for name, data in pictures.items()
    )
    return page_around(title, shown, tables)


def page_around(title: str, shown: str, tables: Sequence[Table]) -> str:
    """The page; `shown` is HTML that goes before the tables."""
    body = "\n".join(_table(table) for table in tables)
    return _PAGE.format(title=html.escape(title), pictures=shown, tables=body)


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "\n".join(_row(row, begins=i in table.rule_before) for i, row in enumerate(table.rows))
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    return f"<h2>{html.escape(table.title)}</h2><table><tr>{head}</tr>\n{rows}</table>{notes}"


def _row(row: Sequence[str], *, begins: bool) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
    return f'<tr class="rule">{cells}</tr>' if begins else f"<tr>{cells}</tr>"


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px/1.45 system-ui, sans-serif; color: #23292e; margin: 2rem auto; max-width: 1400px; padding: 0 1rem; }}
h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
th, td {{ padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e3e6e9; }}
th:first-child, td:first-child {{ text-align: left; }}
tr.rule td {{ border-top: 2px solid #9aa3ab; }}
p {{ color: #5b6770; margin: .3rem 0; max-width: 75rem; }}
figure {{ margin: 1rem 0; }} img {{ max-width: 100%; }}
</style></head><body><h1>{title}</h1>
{pictures}
{tables}
</body></html>
"""
