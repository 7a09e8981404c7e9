"""`Evaluation` as tables, and as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lengthwise.reports.page import html_page
from lengthwise.reports.tables import Table, share

if TYPE_CHECKING:
    from lengthwise.predictors.evaluation import Breakdown, Evaluation, EvaluationScores

__all__ = ["html_report", "tables", "write_html"]

_COLUMNS: Final[tuple[tuple[str, Callable[[EvaluationScores], str]], ...]] = (
    ("rows", lambda s: f"{s.rows:,}"),
    ("tau", lambda s: _number(s.tau, 3)),
    ("MAE mean", lambda s: _number(s.mae_mean, 1)),
    ("MSE mean", lambda s: _number(s.mse_mean, 0)),
    ("MAE median", lambda s: _number(s.mae_median, 1)),
    ("MAE std", lambda s: _number(s.mae_std, 1)),
    ("MSE std", lambda s: _number(s.mse_std, 0)),
    ("MAE sample", lambda s: _number(s.mae_sample, 1)),
    ("R² log", lambda s: _number(s.r2_log, 3)),
    ("CRPS", lambda s: _number(s.crps, 1)),
    ("in 50 %", lambda s: share(s.coverage_50)),
    ("in 90 %", lambda s: share(s.coverage_90)),
    ("width 50 %", lambda s: _number(s.width_50, 2)),
    ("width 90 %", lambda s: _number(s.width_90, 2)),
    ("MAE mean, raw", lambda s: _number(s.raw_mae_mean, 1)),
)
_IN_GROUPS: Final = ("rows", "tau", "MAE mean", "MAE std", "R² log", "CRPS", "in 50 %", "in 90 %", "MAE mean, raw")
"""What fits beside the baselines on a terminal."""
_NOTES: Final = (
    "tau: Kendall's tau-b of the prediction's median and the mean of the clean samples, within one LLM, averaged.",
    "mean: the sampling mean where the predictor tells one, else the prediction's median. MAE, MSE and CRPS are in tokens.",
    "in 50 %, 90 %: share of single clean samples inside the central interval; its width is log(high / low).",
    "raw: degenerate samples in; everywhere else they are out.",
    "Noise ceiling: half of a prompt's samples against the other half, a single sample against the rest.",
)


def tables(found: Evaluation) -> list[Table]:
    """Everything over all rows, the classes, then the predictor beside its baselines by LLM and by corpus."""
    notes = [
        f"Left out: {share(found.degenerate)} of samples (degenerate), {found.left_out:,} rows without a clean sample.",
        f"Constants are fitted to {found.constants_from}.",
        *_NOTES,
    ]
    rows = [(name, *_figures(subject.overall)) for name, subject in found.subjects.items()]
    title = f"{found.predictor} on {found.rows:,} rows of {found.origin}"
    return [
        Table(title, ("", *(name for name, _ in _COLUMNS)), rows, notes),
        _class_table(found),
        _groups("By LLM", found.predictor, found.subjects, lambda subject: subject.by_llm),
        _groups("By corpus", found.predictor, found.subjects, lambda subject: subject.by_corpus),
    ]


def _class_table(found: Evaluation) -> Table:
    rows: list[tuple[str, ...]] = []
    begins = set()
    schemes = next(iter(found.subjects.values())).overall.classes
    for scheme in schemes:
        begins.add(len(rows))
        for i, (name, subject) in enumerate(found.subjects.items()):
            s = subject.overall.classes[scheme]
            figures = (s.precision, s.recall, s.f1, s.mcc, s.auroc)
            rows.append((scheme if i == 0 else "", name, share(s.accuracy), *(_number(value, 3) for value in figures)))
    columns = ("classes", "", "accuracy", "precision", "recall", "F1", "MCC", "AUROC")
    note = (
        "Class of the mean of the clean samples; precision, recall, F1 and AUROC (one against the rest) are weighted."
    )
    return Table("Classes", columns, rows, [note], frozenset(begins - {0}))


def _groups(
    title: str,
    predictor: str,
    subjects: Mapping[str, Breakdown],
    of: Callable[[Breakdown], Mapping[str, EvaluationScores]],
) -> Table:
    others = [name for name in subjects if name != predictor]
    columns = [(name, figure) for name, figure in _COLUMNS if name in _IN_GROUPS]
    rows = []
    for group, scores in of(subjects[predictor]).items():
        beside = [of(subjects[name])[group] for name in others]
        rows.append(
            (
                group,
                *(figure(scores) for _, figure in columns),
                *(f"{_number(s.tau, 3)} / {_number(s.mae_mean, 1)}" for s in beside),
            )
        )
    note = "Baselines: tau / MAE mean."
    return Table(title, ("", *(name for name, _ in columns), *others), rows, [note])


def _figures(scores: EvaluationScores) -> list[str]:
    return [figure(scores) for _, figure in _COLUMNS]


def _number(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:,.{digits}f}"


def write_html(found: Evaluation, path: Path) -> None:
    """Write the report, pictures inside."""
    path.write_text(html_report(found), encoding="utf-8")


def html_report(found: Evaluation) -> str:
    """One page: pictures as data, nothing fetched."""
    from lengthwise.reports.evaluation_figures import pictures  # Matplotlib takes half a second to load

    return html_page(f"{found.predictor}: how well it predicts lengths", pictures(found), tables(found))
