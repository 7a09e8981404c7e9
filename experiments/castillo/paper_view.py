"""`PaperComparison` as tables, the paper's, ours and a constant's, one above the other; and as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from experiments.castillo.curves_view import Curves, curve_tables
from experiments.castillo.paper import ERRORS, LLMS, PAPER_PROMPT_METHOD, READINGS, WIDTHS, Cell, PaperComparison
from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table

__all__ = ["html_report", "tables"]

_WHAT: Final = {
    2: "Table 2: classes, six corpora",
    3: "Table 3: classes, Alpaca (never trained on)",
    4: "Table 4: errors, six corpora",
    5: "Table 5: errors, Alpaca (never trained on)",
}


def tables(found: PaperComparison) -> list[Table]:
    """The paper's tables 2 to 5, those that the data can fill."""
    return [_table(found, number) for number in _WHAT if found.prompts[number]]


def html_report(found: PaperComparison, curves: Curves | None) -> str:
    """One page: figures 6, 7, 9 and the appendix's, then the tables."""
    from experiments.castillo.paper_plot import pictures  # Matplotlib takes half a second to load

    shown = tables(found)
    if curves is not None:
        shown += curve_tables(curves)
    return html_page("BERT on CASTILLO: the paper's tables and figures, ours beside", pictures(found, curves), shown)


def _table(found: PaperComparison, number: int) -> Table:
    by_class = number in (2, 3)
    columns = [f"{kind} {width}" for width in WIDTHS for kind in ("Acc", "F1")] if by_class else list(ERRORS)
    cells = [cell for cell in found.cells if cell.table == number]
    rows: list[tuple[str, ...]] = []
    begins = set()
    for llm in LLMS:
        begins.add(len(rows))
        mine = {(cell.reading, cell.what): cell for cell in cells if cell.llm == llm}
        for i, reading in enumerate(READINGS if by_class else ("",)):
            row = [mine[reading, column] for column in columns]
            if i == 0:
                rows.append((llm, "paper", *(_figure(cell, cell.paper) for cell in row)))
            rows += _pair(found.predictor, READINGS.get(reading, ""), row)
    prompts = sorted(set(found.prompts[number].values()))
    counted = f"{prompts[0]:,}" if len(prompts) == 1 else f"{prompts[0]:,} to {prompts[-1]:,}"
    title = f"{_WHAT[number]}, {counted} prompts per LLM of {found.origin}"
    return Table(title, ("LLM", "", *columns), rows, _notes(found, number, cells), frozenset(begins - {0}))


def _pair(name: str, reading: str, row: Sequence[Cell]) -> list[tuple[str, ...]]:
    said = f", {reading}" if reading else ""
    return [
        ("", f"{name}{said}", *(_figure(cell, cell.ours) + ("*" if cell.claimed else "") for cell in row)),
        ("", f"constant{said}", *(_figure(cell, cell.constant) for cell in row)),
    ]


def _figure(cell: Cell, value: float) -> str:
    if value != value:
        return "–"
    if cell.what.startswith("F1"):
        return f"{value:.3f}"
    return f"{value:,.0f}" if cell.what.startswith("MSE") else f"{value:,.2f}"


def _notes(found: PaperComparison, number: int, cells: Sequence[Cell]) -> list[str]:
    claimed = sum(cell.claimed for cell in cells)
    possible = sum(not cell.constant_beats_paper for cell in cells)
    out_of = f"{claimed} of the {possible} cells (of {len(cells)}) in which the paper is at least as good as a constant"
    constants = "the most frequent class, the mean for MSE, the median for MAE"
    notes = [
        f"* claimed: better than the paper where a constant is not; {out_of}.",
        f"Degenerate samples are out. Constants, of the LLM's train and validate rows of the six corpora: {constants}.",
    ]
    if number in (2, 3):
        notes.append("The paper gives one figure and does not say of which length; both readings stand beside it.")
    if number == 4:
        llm, mse, mae = PAPER_PROMPT_METHOD
        notes.append(f"The paper's baseline, asking {llm} itself: MSE(mean) {mse:,.0f}, MAE(mean) {mae:,.2f}.")
    if not found.prompts[3] and number == 2:
        notes.append("Tables 3 and 5 are left out: there are no Alpaca rows here.")
    return notes
