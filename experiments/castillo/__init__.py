"""BERT on CASTILLO: predicting answer lengths, the paper's tables and figures beside ours."""

from dataclasses import dataclass
from pathlib import Path

from experiments.castillo.loss_curves import Training, curve_figure, curve_table, load_trainings
from experiments.castillo.paper import UNSEEN, PaperComparison, compare, figure_7, tables
from experiments.study import Run, Study
from lengthwise.predictors.evaluation import evaluated_predictor, evaluated_rows


@dataclass(frozen=True)
class CastilloGrid:
    """The predictor and the loss curves."""

    predictor: str = "default"
    curves: Path | None = None
    """Other loss curves: metrics.json of scripts/gpu_train.py."""


@dataclass(frozen=True)
class CastilloResult:
    """The paper's tables with ours, and the loss curves of our trainings."""

    comparison: PaperComparison
    trainings: list[Training]


def measure(run: Run, grid: CastilloGrid) -> CastilloResult:
    """Predict every prompt and fill the paper's tables; a cell counts only beyond a constant."""
    trainings = load_trainings(grid.curves)
    samples = run.castillo()
    seen = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != UNSEEN])
    predictor = evaluated_predictor(grid.predictor, evaluated_rows(seen, None)[1])
    return CastilloResult(compare(predictor, samples, name=grid.predictor, progress=run.report), trainings)


STUDY: Study[CastilloGrid, CastilloResult] = Study(
    name="castillo",
    title="BERT on CASTILLO: the paper's tables and figures, ours beside",
    question="How well are CASTILLO's lengths predicted, in the paper's classes and errors?",
    paper="BERT on CASTILLO, tables 2 to 5, figure 7",
    source="CASTILLO",
    grid=CastilloGrid(),
    quick=CastilloGrid(predictor="fast"),
    minutes=(10, 1),
    measure=measure,
    tables=lambda found: [*tables(found.comparison), curve_table(found.trainings)],
    images=lambda found: {
        "Figure 7: accuracy by LLM and bin width": figure_7(found.comparison),
        "Loss curves of the log-t prediction": curve_figure(found.trainings),
    },
)
