"""A sweep as a table: cells averaged over their seeds, each beside the first of its level."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lengthwise.reports.simulation import NAMES, multiple, seconds
from lengthwise.reports.tables import Table
from lengthwise.simulator.grid_result import Measure, Statistic
from lengthwise.simulator.paired import Ratio, over_seeds

_LEVEL: Final = ("workload", "fleet", "load", "rate")
_WHO: Final = ("router", "policy", "predictor")
_FIGURES: Final[tuple[tuple[Measure, Statistic], ...]] = (
    ("ttft_s", "mean"),
    ("ttft_s", "p99"),
    ("e2e_s", "mean"),
    ("e2e_s", "p99"),
    ("per_token_s", "mean"),
)


def sweep_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table for each workload and fleet."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[name] for name in (*_LEVEL, *_WHO)), []).append(row)
    columns = ("load", "router", "policy", "predictor", *(f"{NAMES[name]} {stat}" for name, stat in _FIGURES))
    tables = []
    for place in dict.fromkeys(key[:2] for key in cells):
        told, breaks, level = [], set(), None
        for key, cell in cells.items():
            if key[:2] != place:
                continue
            if level is not None and key[2:4] != level:
                breaks.add(len(told))
            if key[2:4] != level:
                level, base = key[2:4], cell
            told.append(
                [*_names(key), *(seconds(_mean(cell, *what)) for what in _FIGURES), multiple(_over(cell, base))]
            )
        notes = [f"Means over {len(next(iter(cells.values())))} seeds; the last column is over the first of its load."]
        title = f"{place[0]} on {place[1]}"
        tables.append(Table(title, (*columns, "E2E mean over first"), told, notes, frozenset(breaks)))
    return tables


def _names(key: tuple[Any, ...]) -> list[str]:
    load, rate, router, policy, predictor = key[2:]
    level = f"{load:.2f}" if load is not None else "own" if rate is None else f"{rate:g}/s"
    return [level, router, policy, predictor or "–"]


def _values(cell: Sequence[Mapping[str, Any]], measure: str, statistic: str) -> list[float]:
    values = [row[measure][statistic] for row in cell]
    return [math.nan if value is None else float(value) for value in values]


def _mean(cell: Sequence[Mapping[str, Any]], measure: str, statistic: str) -> float:
    values = _values(cell, measure, statistic)
    return sum(values) / len(values)


def _over(cell: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> Ratio:
    if cell is base:
        return Ratio(1.0, 1.0, 1.0)
    ours, theirs = (_values(each, "e2e_s", "mean") for each in (cell, base))
    if len(ours) > 1:
        return over_seeds(ours, theirs)
    return Ratio(ours[0] / theirs[0], math.nan, math.nan)
