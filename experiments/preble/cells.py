"""What one router made of one place, over all seeds, and how two of them compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from lengthwise.simulator.paired import Ratio, over_seeds

Measure = Literal["per_token_s", "e2e_s", "ttft_s"]
Unit = Literal["requests/s", "load"]
COMPARED: Final[tuple[Measure, Measure]] = ("per_token_s", "e2e_s")
"""Normalized latency, as the paper has it, and what a user waits."""


@dataclass(frozen=True, slots=True)
class Place:
    """Requests on engines: their lengths or their name, at so many per second or at a share of capacity."""

    workload: str
    engines: int
    at: float
    unit: Unit = "requests/s"


@dataclass(frozen=True, slots=True)
class Run:
    """A router, and what it is told of lengths; None where it looks at none."""

    router: str
    predictor: str | None = None

    def __str__(self) -> str:
        return self.router if self.predictor is None else f"{self.router} ({self.predictor})"


@dataclass(frozen=True)
class Cell:
    """A router in a place: the summary of each seed, as `simulate` has it."""

    place: Place
    run: Run
    seeds: tuple[dict[str, Any], ...]

    def values(self, measure: Measure, statistic: str = "mean") -> list[float]:
        """One figure of each seed."""
        return [float(seed[measure][statistic]) for seed in self.seeds]

    def mean(self, measure: Measure, statistic: str = "mean") -> float:
        """Over seeds."""
        return float(np.mean(self.values(measure, statistic)))

    def over(self, other: Cell, measure: Measure, statistic: str = "mean") -> Ratio:
        """This one over another on the same requests: below 1 is better; with its 95 % interval."""
        if other is self:
            return Ratio(1.0, 1.0, 1.0)
        return over_seeds(self.values(measure, statistic), other.values(measure, statistic))


def gathered(names: Sequence[tuple[Place, Run]], results: Sequence[dict[str, Any]]) -> tuple[Cell, ...]:
    """Cells from one result for each seed."""
    seeds: dict[tuple[Place, Run], list[dict[str, Any]]] = {}
    for name, result in zip(names, results, strict=True):
        seeds.setdefault(name, []).append(result)
    return tuple(Cell(*name, tuple(each)) for name, each in seeds.items())


def find(cells: Sequence[Cell], run: Run, engines: int, at: float) -> Cell:
    """The cell of a run with so many engines, at a rate or load."""
    return next(cell for cell in cells if cell.run == run and (cell.place.engines, cell.place.at) == (engines, at))


def places(cells: Sequence[Cell]) -> list[Place]:
    """In order, each once."""
    return list(dict.fromkeys(cell.place for cell in cells))
