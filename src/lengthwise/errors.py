"""The one error of a person's input: what was wrong, where, and what would be right."""

from __future__ import annotations

from pathlib import Path


class InputError(ValueError):
    """Something a person gave is not usable; the message is one line that says how to mend it.

    `source` is the file, option or name it came in, `row` counts from 1 in the order of the data
    (a header is not counted), `field` is the column or key.
    """

    def __init__(
        self,
        problem: str,
        *,
        source: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.problem = problem
        self.source = None if source is None else str(source)
        self.row = row
        self.field = field
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        where = [
            self.source,
            None if self.row is None else f"row {self.row}",
            None if self.field is None else f"field '{self.field}'",
        ]
        place = ", ".join(part for part in where if part)
        line = f"{place}: {self.problem}" if place else self.problem
        return f"{line}; {self.hint}" if self.hint else line
