"""docs/studies/papers.md: the papers' claims beside ours, from `papers.toml` and the kept log of runs.

`python -m scripts.docs_pages` writes the page. A row names the studies and commands that rerun it; its last run is
theirs. Where the log has none, `since` is the day from which on the page has the row's figures (from the history of the
page).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

from experiments.log import KEPT, Entry, last, read

CLAIMS: Final = Path(__file__).with_suffix(".toml")
_COLUMNS: Final = ("claim", "paper", "ours", "verdict", "command", "last run")
_LAST_RUN: Final = """\
Last run: the date and the machine, or "by" a date: the page has the row's figures since that day, and the machine was
not recorded. A study of kept rows (`alpaca20`, `one_prompt`, `trail_engine`) evaluates them again."""


def page(log: Path = KEPT) -> str:
    """Return the page in Markdown."""
    content, entries = tomllib.loads(CLAIMS.read_text(encoding="utf-8")), read(log)
    commands = dict.fromkeys(each for paper in content["paper"] for row in paper["row"] for each in row["command"])
    runs = {name: entry for name in commands if (entry := last(entries, name))}
    machines = list(dict.fromkeys(entry.machine for entry in runs.values()))
    where = [f"Machine {letter}: {name}." for letter, name in zip(ascii_uppercase, machines, strict=False)]
    lines = ["# The papers, claim by claim", "", *content["intro"].strip().splitlines(), ""]
    lines += [*" ".join([_LAST_RUN, *where]).splitlines(), ""]
    for paper in content["paper"]:
        lines += [f"## {paper['title']}", "", *paper["text"].strip().splitlines(), ""]
        lines += [_row(_COLUMNS), "|" + "---|" * len(_COLUMNS)]
        lines += [_row([*_cells(row), _last_run(row, runs, machines)]) for row in paper["row"]]
        lines += ["", *paper.get("after", "").strip().splitlines()] + [""] * ("after" in paper)
    return "\n".join(lines).rstrip() + "\n"


def _cells(row: dict[str, Any]) -> list[str]:
    return [row["claim"], row["paper"], row["ours"], row["verdict"], ", ".join(f"`{each}`" for each in row["command"])]


def _last_run(row: dict[str, Any], runs: dict[str, Entry], machines: Sequence[str]) -> str:
    """The oldest of the last runs of its commands."""
    known = [runs.get(name) for name in row["command"]]
    if any(entry is None or entry.date < f"{row['since']}" for entry in known):
        return f"by {row['since']}"
    oldest = min((entry for entry in known if entry), key=lambda entry: entry.date)
    return f"{oldest.date[:10]}, {ascii_uppercase[machines.index(oldest.machine)]}"


def _row(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
