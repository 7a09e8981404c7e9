"""BERT on CASTILLO: predicting answer lengths, the paper's tables and figures beside ours.

python -m experiments.castillo train   # trains the paper's networks on frozen vectors; predictions kept in results/
python scripts/gpu_papers.py           # the same fine-tuned on a GPU (configs/papers.yaml)
python -m experiments.castillo ask     # asks an LLM itself; its replies are kept in results/
python -m experiments run castillo     # tables 2 to 5, figures 6, 7, 9 and A.3 from them
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from experiments.castillo import finetuned, prompt_method
from experiments.castillo.classes import class_table
from experiments.castillo.loss_curves import FIGURES, paper_curve_figure, paper_curve_table
from experiments.castillo.paper import (
    PAPER_PROMPT_METHOD,
    PaperComparison,
    claims,
    compare,
    figure_7,
    predict,
    predicted,
    rule_table,
    tables,
    trained_subjects,
)
from experiments.castillo.rows import RULES, rows_to_score, trained_on
from experiments.castillo.training import CURVES, KEPT, PREDICTIONS
from experiments.study import Run, Study
from lengthwise.files import read_parquet_table
from lengthwise.predictors.evaluation import evaluated_predictor
from lengthwise.reports.tables import Table
from lengthwise.workloads.datasets import PACKAGED


@dataclass(frozen=True)
class CastilloGrid:
    """The predictor, and what the paper's networks and an LLM itself predicted."""

    predictor: str = "default"
    kept: Path = KEPT
    """Folder that `python -m experiments.castillo train` wrote."""
    replies: Path = prompt_method.KEPT
    """File that `python -m experiments.castillo ask` wrote."""


@dataclass(frozen=True)
class CastilloResult:
    """The paper's tables with ours, the loss curves of its networks, and what an LLM states about itself."""

    predictor: str
    comparison: PaperComparison
    by_rule: PaperComparison
    """The predictor alone, scored by each rule."""
    classes: Table
    """The predictor alone, in every division of lengths into classes, by six scores."""
    asked: prompt_method.PromptMethod | None
    paper_curves: pa.Table | None


def measure(run: Run, grid: CastilloGrid) -> CastilloResult:
    """Predict every test prompt and fill the paper's tables beside the kept predictions of the paper's networks."""
    samples = run.castillo()
    predictor = evaluated_predictor(grid.predictor, trained_on(samples))
    run.report("predicting", 0.1)
    tested = rows_to_score(samples)
    predictions = predict(predictor, tested)
    subjects = [predicted(predictions, samples, grid.predictor)]
    curves = asked = None
    if samples.origin == PACKAGED:
        run.note("the kept predictions and replies are of all test rows: without them only the predictor is scored")
    elif not (grid.kept / PREDICTIONS).is_file():
        run.note(f"{grid.kept} holds no predictions: run `python -m experiments.castillo train` first")
    else:
        subjects += trained_subjects(read_parquet_table(grid.kept / PREDICTIONS), samples)
        curves = read_parquet_table(grid.kept / CURVES)
        if (grid.kept / finetuned.ROWS).is_file():
            subjects += trained_subjects(read_parquet_table(grid.kept / finetuned.ROWS), samples)
        else:
            run.note(f"{grid.kept / finetuned.ROWS} is missing: train the networks (configs/papers.yaml)")
    if samples.origin != PACKAGED:
        replies = prompt_method.read(grid.replies)
        asked = prompt_method.score(replies, prompt_method.tested(replies["llm"][0].as_py()))
    return CastilloResult(
        grid.predictor,
        compare(subjects, samples, report=run.part(0.5, 1.0)),
        compare([replace(subjects[0], rule=rule) for rule in RULES], samples),
        class_table(predictions, tested, trained_on(samples), grid.predictor),
        asked,
        curves,
    )


def _tables(found: CastilloResult) -> list[Table]:
    asked = [] if found.asked is None else [prompt_method.table(found.asked, PAPER_PROMPT_METHOD)]
    curves = [] if found.paper_curves is None else [paper_curve_table(found.paper_curves)]
    return [*tables(found.comparison), rule_table(found.by_rule), found.classes, *asked, *curves]


def _images(found: CastilloResult) -> dict[str, str]:
    kept = found.paper_curves
    drawn = {} if kept is None else {title: paper_curve_figure(kept, title) for title in FIGURES}
    return {
        **drawn,
        "Figure 7: accuracy by LLM and bin width": figure_7(found.comparison, found.predictor),
    }


STUDY: Study[CastilloGrid, CastilloResult] = Study(
    name="castillo",
    title="BERT on CASTILLO: the paper's tables and figures, ours beside",
    question="How well are CASTILLO's lengths predicted, in the paper's classes and errors?",
    paper="BERT on CASTILLO, tables 2 to 5, figures 6, 7, 9, A.3",
    source="CASTILLO; kept predictions and replies",
    grid=CastilloGrid(),
    quick=CastilloGrid(predictor="fast"),
    minutes=(2, 0.3),
    serial=True,
    measure=measure,
    tables=_tables,
    images=_images,
    claims=lambda found: claims(found.comparison, found.predictor),
)
