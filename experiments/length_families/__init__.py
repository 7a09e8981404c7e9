"""Which family do answer lengths follow: log-t, log-normal, Weibull, gamma or GEV?

KS tests as in TIE (arXiv 2604.00499) and with refitting accounted for, held-out likelihood, the tail, and the power of
so few samples per prompt. `--set source=FILE` reads other length samples, such as those of `lengthwise collect`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.length_families.analysis import By, Effort, LengthFamilies, study_families
from experiments.length_families.report import draw, tables
from experiments.study import Run, Study
from lengthwise.workloads import LengthSamples


@dataclass(frozen=True)
class LengthFamiliesGrid:
    """The rows and the effort."""

    source: Path | None = None
    """A Parquet file of length samples; None for CASTILLO."""
    by: By = "llm"
    prompts: int | None = None
    """Prompts drawn at random; None for all."""
    critical_draws: int = Effort().critical_draws
    seed: int = 0


def measure(run: Run, grid: LengthFamiliesGrid) -> LengthFamilies:
    """Fit every family to every prompt's lengths."""
    samples = run.castillo() if grid.source is None else LengthSamples.read(grid.source)
    if grid.prompts is not None:
        samples = samples.draw_prompts(grid.prompts, grid.seed)
    effort = Effort(critical_draws=grid.critical_draws)
    return study_families(samples, by=grid.by, seed=grid.seed, effort=effort, report=run.report)


def answer(found: LengthFamilies) -> str:
    """The families by the probability of samples that their fit has not seen."""
    ranked = sorted(found.groups[0].families, key=lambda each: -each.held_out_gain.estimate)
    gains = ", ".join(f"{each.family} {each.held_out_gain.estimate:+.4f}" for each in ranked)
    best = ranked[0].family
    return f"{best} predicts unseen answers to a prompt best. Log probability per sample over log-normal's: {gains}."


STUDY: Study[LengthFamiliesGrid, LengthFamilies] = Study(
    name="length_families",
    title="Families of answer lengths",
    question="Which family do answer lengths follow?",
    paper="TIE, arXiv 2604.00499, its KS tests",
    source="CASTILLO",
    grid=LengthFamiliesGrid(),
    quick=LengthFamiliesGrid(prompts=300, critical_draws=80),
    minutes=(10, 0.5),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
    draw=draw,
)
