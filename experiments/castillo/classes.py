"""A predictor as a classifier of lengths: bins of the paper's widths, bins of equal mass and mu-Serve's five."""

from __future__ import annotations

from typing import Final

import numpy as np

from experiments.castillo.paper import CONSTANT, point_predictions, predict
from experiments.castillo.rows import UNSEEN, WIDTHS
from experiments.class_scores import Floats, classes, classification, equal_mass, equal_width, mu_serve
from lengthwise.predictors import LogTPredictions, Predictions
from lengthwise.predictors.baselines import ConstantPredictor, column
from lengthwise.reports.tables import Table, number, share
from lengthwise.workloads import LengthSamples

EQUAL_MASS_BINS: Final = 20


def class_table(found: Predictions, rows: LengthSamples, fitted: LengthSamples, name: str) -> Table:
    """Six scores of the predictions for `rows`, and of a constant per LLM, in every division into classes.

    The constant, and the edges of classes of equal mass and of mu-Serve's, are of the rows `fitted`.
    """
    true = rows.clean_mean()
    kept = np.flatnonzero(np.isfinite(true) & (column(rows, "corpus") != UNSEEN))
    schemes = class_schemes(true[kept], fitted.clean_mean())
    edges = np.unique(np.concatenate(list(schemes.values())))
    subjects = {
        label: (point_predictions(each)[kept], below(each, edges)[kept])
        for label, each in ((name, found), (CONSTANT, predict(ConstantPredictor.fit(fitted), rows)))
    }
    shown: list[tuple[str, ...]] = []
    begins = set()
    for scheme, inner in schemes.items():
        begins.add(len(shown))
        for place, (label, (point, at_edges)) in enumerate(subjects.items()):
            shares = np.diff(at_edges[:, np.searchsorted(edges, inner)], axis=1, prepend=0.0, append=1.0)
            s = classification(classes(true[kept], inner), classes(point, inner), shares)
            figures = (s.precision, s.recall, s.f1, s.mcc, s.auroc)
            values = (share(s.accuracy), *(number(value, 3) for value in figures))
            shown.append((scheme if place == 0 else "", label, *values))
    columns = ("classes", "", "accuracy", "precision", "recall", "F1", "MCC", "AUROC")
    note = (
        "Class of the mean of the clean samples; precision, recall, F1 and AUROC (one against the rest) are weighted."
    )
    return Table(
        f"Classes by six scores, {len(kept):,} rows of six corpora", columns, shown, [note], frozenset(begins - {0})
    )


def class_schemes(true: Floats, fitted: Floats) -> dict[str, Floats]:
    """The divisions of lengths into classes, by name, as inner edges."""
    by_width = {f"{width} wide": equal_width(width, float(true.max())) for width in WIDTHS}
    return by_width | {
        f"{EQUAL_MASS_BINS} of equal mass": equal_mass(fitted, EQUAL_MASS_BINS),
        "mu-Serve's five": mu_serve(fitted),
    }


def below(predictions: Predictions, edges: Floats) -> Floats:
    """P(length < edge), (rows, edges); the mass at a cap counts as just below it."""
    if isinstance(predictions, LogTPredictions):
        return 1.0 - predictions.survival(edges)
    each = [predictions[row] for row in range(len(predictions))]
    return 1.0 - np.array([[one.survival(edge) for edge in edges] for one in each], np.float64)
