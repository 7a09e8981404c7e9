"""Further cells for a grid, what is compared in it, and which rows are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.tie import paper
from lengthwise.simulator import simulate
from lengthwise.simulator.grid_result import Cell, Grid, Level
from lengthwise.simulator.paired import Ratio, over_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lengthwise.simulator.grid_result import Measure, Statistic
    from lengthwise.simulator.predictions import RequestPredictions
    from lengthwise.workloads import LengthSamples, Workload

    Report = Callable[[str, float], None]

__all__ = ["Run", "also", "find", "offline_rows", "over", "top", "within_prompts"]

_OFFLINE_CORPUS: Final = "Alpaca"


@dataclass(frozen=True, eq=False)
class Run:
    """A policy with predictions that `run_grid` cannot make, one set per seed."""

    predictor: str
    policy: str
    predictions: tuple[RequestPredictions, ...]


def also(
    grid: Grid, drawn: Sequence[Workload], runs: Sequence[Run], report: Report, levels: Sequence[Level] | None = None
) -> Grid:
    """The same grid with more cells, on the very arrivals that FCFS met, at all levels or some."""
    at = grid.levels if levels is None else levels
    cells: list[Cell] = []
    for level in at:
        met = next(cell for cell in grid.cells if cell.level == level).outcomes
        for run in runs:
            report(run.policy, len(cells) / (len(at) * len(runs)))
            outcomes = tuple(
                simulate(workload.replace(arrival_s=other.arrival), grid.fleet, run.policy, predictor=predicted)
                for workload, other, predicted in zip(drawn, met, run.predictions, strict=True)
            )
            cells.append(Cell(level, run.predictor, outcomes[0].policy, outcomes))
    predictions = {**grid.predictions, **{run.predictor: run.predictions for run in runs}}
    return replace(grid, cells=(*grid.cells, *cells), predictions=predictions)


def top(grid: Grid) -> Level:
    """The level with most offered."""
    return max(grid.levels, key=lambda level: level.load)


def find(grid: Grid, policy: str, predictor: str, level: Level | None = None) -> Cell:
    """The cell of a policy, at the highest level if none is given; FCFS has no predictor."""
    wanted = (policy, None if policy == "fcfs" else predictor, top(grid) if level is None else level)
    return next(cell for cell in grid.cells if (cell.policy, cell.predictor, cell.level) == wanted)


def over(cell: Cell, base: Cell, measure: Measure = "per_token_s", statistic: Statistic = "mean") -> Ratio:
    """One figure over another, seed by seed."""
    return over_seeds(cell.figures(measure, statistic), base.figures(measure, statistic))


def offline_rows(samples: LengthSamples) -> tuple[LengthSamples, str]:
    """Rows for the batch that is served offline, and whose prompts they are.

    Alpaca's as in the paper (no shipped predictor has seen any of it); where it is not at hand, all test prompts.
    """
    if _OFFLINE_CORPUS in samples.corpora:
        return samples.where(corpus=[_OFFLINE_CORPUS]), _OFFLINE_CORPUS
    return samples.where(split="test"), "all test prompts"


def within_prompts(samples: LengthSamples, llm: str) -> float:
    """Spread of the clean answers to one prompt over their mean, averaged over prompts."""
    rows = samples.where(llm=llm)
    lengths = np.where(rows.clean_mask(), np.minimum(rows.lengths_matrix(), paper.MAX_TOKENS), np.nan)
    lengths = lengths[(~np.isnan(lengths)).sum(axis=1) > 1]
    return float((np.nanstd(lengths, axis=1, ddof=1) / np.nanmean(lengths, axis=1)).mean())
