"""BERT on CASTILLO: predicting answer lengths, the paper's tables and figures beside ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.castillo.figures import images
from experiments.castillo.loss_curves import Curves, curve_tables, load_curves
from experiments.castillo.paper import UNSEEN, PaperComparison, compare, tables
from experiments.study import Run, Study
from lengthwise.predictors.evaluation import evaluated_rows
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.reports.tables import Table


@dataclass(frozen=True)
class CastilloGrid:
    """The predictor and the loss curves."""

    predictor: str = "default"
    curves: Path | None = None
    """Other loss curves: a file of scripts/gpu_studies.py or gpu_train.py."""


@dataclass(frozen=True)
class CastilloResult:
    """The paper's tables with ours, and loss curves where there are any."""

    comparison: PaperComparison
    curves: Curves | None


def measure(run: Run, grid: CastilloGrid) -> CastilloResult:
    """Predict every prompt and fill the paper's tables; a cell counts only beyond a constant."""
    curves = load_curves(grid.curves)
    samples = run.castillo()
    seen = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])
    predictor = resolve_predictor(grid.predictor, fit_on=evaluated_rows(seen, None)[1])
    return CastilloResult(compare(predictor, samples, name=grid.predictor, progress=run.report), curves)


def _tables(found: CastilloResult) -> list[Table]:
    return [*tables(found.comparison), *([] if found.curves is None else curve_tables(found.curves))]


def _facts(found: CastilloResult) -> dict[str, Any]:
    return {**vars(found.comparison), **({} if found.curves is None else {"curves": found.curves})}


STUDY: Study[CastilloGrid, CastilloResult] = Study(
    name="castillo",
    title="BERT on CASTILLO: the paper's tables and figures, ours beside",
    question="How well are CASTILLO's lengths predicted, in the paper's classes and errors?",
    paper="BERT on CASTILLO, tables 2 to 5, figures 6, 7 and 9",
    source="CASTILLO",
    grid=CastilloGrid(),
    quick=CastilloGrid(predictor="fast"),
    minutes=(10, 1),
    measure=measure,
    tables=_tables,
    facts=_facts,
    images=lambda found: images(found.comparison, found.curves),
)
