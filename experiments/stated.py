"""Does reading what a prompt says about its length help on real prompts? LLMs often miss a size that is asked for.

The sources of `learning`, at most `prompts` of each: tau and coverage of the predictor as it is, and of its network
alone, without `stated_length.with_observations`. Judge it by a file that was not trained on these sources, such as the
`fast` that was trained on CASTILLO alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from unittest.mock import patch

import numpy as np

from experiments.learning import SourceRows, full_data_home, read_sources
from experiments.study import Run, Study
from lengthwise.intervals import draw_rows, interval
from lengthwise.predictors import encoder, fast
from lengthwise.predictors.adapt import unknown_llms_unlogged
from lengthwise.predictors.resolve import load_predictor
from lengthwise.reports.tables import Table, share, signed
from lengthwise.traffic.scores import Forecast, score_predictions

_RESAMPLES: Final = 20_000


@dataclass(frozen=True)
class StatedGrid:
    """The predictor, and most prompts of a source."""

    predictor: str = "fast"
    prompts: int = 2_000


@dataclass(frozen=True)
class StatedScore:
    """One source: tau and coverage of 90 % intervals, of the network alone and with what prompts state."""

    source: str
    prompts: int
    tau: tuple[float, float]
    covered: tuple[float, float]


@dataclass(frozen=True)
class StatedResult:
    """Every source."""

    grid: StatedGrid
    scores: tuple[StatedScore, ...]

    def gain(self) -> tuple[float, float, float]:
        """Mean change of tau, with its 95 % interval over sources."""
        changes = np.array([each.tau[1] - each.tau[0] for each in self.scores])
        means = changes[draw_rows(len(changes), seed=0, resamples=_RESAMPLES)].mean(axis=1)
        return float(changes.mean()), *interval(means)


def measure(run: Run, grid: StatedGrid) -> StatedResult:
    """Score every source."""
    found = []
    sources = read_sources(full_data_home())
    for number, rows in enumerate(sources.values()):
        run.report(rows.source, number / len(sources))
        found.append(score(rows, grid))
    return StatedResult(grid, tuple(found))


def score(rows: SourceRows, grid: StatedGrid) -> StatedScore:
    """Score one source without and with what its prompts state."""
    chosen = np.random.default_rng(0).permutation(len(rows.prompts))[: grid.prompts]
    every = rows.inputs()
    inputs = [every[row] for row in chosen]
    predictor = load_predictor(grid.predictor)

    def scores() -> tuple[float, float]:
        forecast = Forecast.of(predictor.predict(inputs), crps=False)
        found = score_predictions(forecast, rows.tokens[chosen], censored=rows.censored[chosen])
        return found.tau, found.coverage_90

    with unknown_llms_unlogged():
        stated = scores()
        with (
            patch.object(fast, "with_observations", lambda found, _: found),
            patch.object(encoder, "with_observations", lambda found, _: found),
        ):
            alone = scores()
    return StatedScore(rows.source, len(chosen), (alone[0], stated[0]), (alone[1], stated[1]))


def tables(found: StatedResult) -> list[Table]:
    """Every source, and the mean."""
    rows = [
        [
            each.source, f"{each.prompts:,}", f"{each.tau[0]:.3f}", f"{each.tau[1]:.3f}",
            signed(each.tau[1] - each.tau[0]), share(each.covered[0]), share(each.covered[1]),
        ]
        for each in found.scores
    ]  # fmt: skip
    tau = np.mean([each.tau for each in found.scores], axis=0)
    covered = np.mean([each.covered for each in found.scores], axis=0)
    rows.append(["mean", "", f"{tau[0]:.3f}", f"{tau[1]:.3f}", signed(tau[1] - tau[0]), *map(share, covered.tolist())])
    columns = ["source", "prompts", "tau, network alone", "with what prompts state", "change", "in 90 %", "stated"]
    return [Table("What prompts say about their length", columns, rows, [f"predictor {found.grid.predictor}"])]


def answer(found: StatedResult) -> str:
    """What reading the prompt's own words about its length brings."""
    change, low, high = found.gain()
    return (
        f"Reading what prompts say about their length changes tau by {change:+.3f} [{low:+.3f}, {high:+.3f}] in the "
        f"mean over {len(found.scores)} sources."
    )


STUDY: Study[StatedGrid, StatedResult] = Study(
    name="stated",
    title="What prompts say about their length",
    question="Does reading a stated length help on real prompts, where LLMs often miss it?",
    source="Diverse prompts ($LENGTHWISE_DATA/diverse)",
    grid=StatedGrid(),
    quick=StatedGrid(prompts=200),
    minutes=(1, 0.3),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
)
