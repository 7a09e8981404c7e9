"""Tables 2 to 5 and figure 7 of the paper that predicts CASTILLO's lengths with BERT: theirs, ours and a constant's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from experiments import class_scores
from experiments.castillo.finetuned import NETWORKS
from experiments.castillo.rows import LLMS, RULES, UNSEEN, WIDTHS, Truth, evaluated_parts, rows_of, trained_on
from experiments.figures import COLOURS, GREY, figure, legend, png
from experiments.study import Claim, Report
from lengthwise.errors import InputError
from lengthwise.intervals import Ratio, draw_rows, interval
from lengthwise.predictors import LengthPredictor, Predictions
from lengthwise.predictors.baselines import CAP, ConstantPredictor
from lengthwise.predictors.castillo_api import STDS_TO_P99, repeated_p99
from lengthwise.predictors.evaluation import prediction_inputs
from lengthwise.predictors.prediction import P99
from lengthwise.reports.tables import Table
from lengthwise.workloads import LengthSamples

Floats = NDArray[np.float64]

READINGS: Final[Mapping[str, str]] = {"mean": "bin of the mean", "p99": "bin of the P99"}
CLASSES: Final = tuple(f"{kind} {width}" for width in WIDTHS for kind in ("Acc", "F1"))
ERRORS: Final = ("MSE(mean)", "MAE(mean)", "MSE(std)", "MAE(std)")
COLUMNS: Final = {2: CLASSES, 3: CLASSES, 4: ERRORS, 5: ERRORS}
TITLES: Final = {
    2: "Table 2: classes, six corpora",
    3: "Table 3: classes, Alpaca (never trained on)",
    4: "Table 4: errors, six corpora",
    5: "Table 5: errors, Alpaca (never trained on)",
}
PAPER: Final[Mapping[int, Mapping[str, tuple[float, ...]]]] = {
    2: {
        "Llama-3.2-1B": (16.81, 0.164, 31.21, 0.305, 50.66, 0.499, 68.90, 0.679, 89.78, 0.8844),
        "Llama-3.2-3B": (19.23, 0.187, 33.63, 0.335, 50.55, 0.505, 72.64, 0.720, 92.19, 0.9099),
        "Llama-3.1-8B": (16.15, 0.151, 28.35, 0.280, 49.12, 0.484, 67.25, 0.667, 91.86, 0.9020),
    },
    3: {
        "Llama-3.2-1B": (10.00, 0.094, 17.70, 0.164, 35.45, 0.361, 71.50, 0.714, 93.60, 0.927),
        "Llama-3.2-3B": (13.35, 0.135, 24.35, 0.254, 41.65, 0.435, 74.50, 0.747, 96.55, 0.952),
        "Llama-3.1-8B": (11.50, 0.133, 21.75, 0.234, 34.80, 0.455, 75.45, 0.747, 94.55, 0.932),
    },
    4: {
        "Llama-3.2-1B": (75378.30, 121.02, 108624.30, 80.84),
        "Llama-3.2-3B": (45735.30, 119.18, 28182.20, 54.68),
        "Llama-3.1-8B": (82152.72, 128.28, 19193.33, 51.60),
    },
    5: {
        "Llama-3.2-1B": (70542.27, 163.87, 48814.96, 70.78),
        "Llama-3.2-3B": (73246.13, 164.94, 16033.02, 53.45),
        "Llama-3.1-8B": (78596.34, 175.10, 21076.86, 52.87),
    },
}
"""By table and LLM, in the order of COLUMNS: accuracy in percent and F1; errors of a prompt's mean and std."""
PAPER_PROMPT_METHOD: Final = ("Llama-3.1-8B", 3210768.61, 384.03)
"""The paper's baseline, asking the LLM itself: MSE and MAE of the mean, in its table 4."""

CLASSIFIER: Final = "classifier"
REGRESSION: Final = "regression"
CONSTANT: Final = "constant"
_RESAMPLES: Final = 1000


@dataclass(frozen=True, eq=False)
class Subject:
    """Predictions to score: (seeds, rows) for each LLM and kind, for all test rows in the order of `evaluated_parts`.

    Kinds: "mean", "std" and "p99" in tokens; "mean/200" and "p99/200" are classes of 200 tokens.
    """

    name: str
    rule: str
    """Rows that it is scored on, and was trained on where it was trained here: a key of RULES."""
    values: Mapping[tuple[str, str], Floats]

    def classes(self, llm: str, reading: str, width: int) -> Floats | None:
        """Predicted classes; those of a regression are the bins of its lengths."""
        direct = self.values.get((llm, f"{reading}/{width}"))
        if direct is not None:
            return direct
        length = self.values.get((llm, reading))
        return None if length is None else np.floor(length / width)


@dataclass(frozen=True)
class Cell:
    """One figure of one table, in the paper's unit, with its 95 % interval over prompts (NaN for F1)."""

    table: int
    llm: str
    subject: str
    rule: str
    reading: str
    """Which length a class is of; empty in tables 4 and 5."""
    what: str
    paper: float
    ours: float
    low: float
    high: float
    constant: float

    @property
    def constant_beats_paper(self) -> bool:
        """Then the cell does not distinguish predictors."""
        return self._better(self.constant, self.paper)

    @property
    def claimed(self) -> bool:
        """Ours is better than the paper's, and a constant is not."""
        return self._better(self.ours, self.paper) and not self.constant_beats_paper

    def _better(self, a: float, b: float) -> bool:
        return a < b if self.what in ERRORS else a > b


@dataclass(frozen=True)
class PaperComparison:
    """All cells that the data can fill."""

    origin: str
    prompts: Mapping[int, Mapping[str, Mapping[str, int]]]
    """Table -> rule -> LLM -> rows."""
    cells: tuple[Cell, ...]


def predict(predictor: LengthPredictor | ConstantPredictor, rows: LengthSamples) -> Predictions:
    """The predictions for these rows."""
    if isinstance(predictor, ConstantPredictor):
        return predictor.predict_rows(rows, CAP)
    return predictor.predict(prediction_inputs(rows))


def point_predictions(found: Predictions) -> Floats:
    """The sampling mean where a predictor gives one, else the median, as in `lengthwise evaluate`."""
    return np.where(np.isfinite(found.sample_mean), found.sample_mean, found.quantile(0.5))


def predicted(found: Predictions, samples: LengthSamples, name: str) -> Subject:
    """Mean, std and P99 of repeated answers, as `lengthwise.predict_response_length` has them, for `rows_to_score`."""
    mean, p99 = point_predictions(found), repeated_p99(found)
    values, start = {}, 0
    for llm in LLMS:
        end = start + sum(len(part) for _, _, part in evaluated_parts(rows_of(llm, samples)))
        for kind, column in (("mean", mean), ("std", found.sample_std), ("p99", p99)):
            values[llm, kind] = np.asarray(column, np.float64)[None, start:end]
        start = end
    return Subject(name, "castillo", values)


def trained_subjects(kept: pa.Table, samples: LengthSamples) -> list[Subject]:
    """The networks of `training.py` or of `finetuned.py`; an InputError where they lack a test row of these samples."""
    places = {key: place for place, key in enumerate(zip(*(kept[n].to_pylist() for n in _KEY), strict=True))}
    rows = {
        llm: [
            places.get((llm, *key), -1)
            for _, _, part in evaluated_parts(rows_of(llm, samples))
            for key in Truth.of(part, "all").keys
        ]
        for llm in LLMS
    }
    if any(place < 0 for each in rows.values() for place in each):
        raise InputError("the kept predictions are of other rows", source=samples.origin)
    seeds: dict[tuple[str, str, str], list[Floats]] = {}
    for column in kept.column_names[len(_KEY) :]:
        network, rule, target, width, _, *part = column.split("/")
        task, kind = (f"{REGRESSION}, {target} error", part[0]) if width == "0" else (CLASSIFIER, f"{target}/{width}")
        name = trained_name(task, network)
        seeds.setdefault((name, rule, kind), []).append(np.asarray(kept[column].to_numpy(), np.float64))
    subjects: dict[tuple[str, str], dict[tuple[str, str], Floats]] = {}
    for (name, rule, kind), found in seeds.items():
        values = subjects.setdefault((name, rule), {})
        values.update({(llm, kind): np.stack(found)[:, rows[llm]] for llm in LLMS})
    return [Subject(*name, values) for name, values in subjects.items()]


def trained_name(task: str, network: str) -> str:
    """The name of a network's predictions for a task."""
    return f"{task}, {NETWORKS[network]}"


_KEY: Final = ("llm", "corpus", "prompt_id")


def compare(subjects: Sequence[Subject], samples: LengthSamples, *, report: Report | None = None) -> PaperComparison:
    """Fill the tables: six corpora on their test prompts, Alpaca on all its prompts (nothing here trains on it).

    Constants are those of each LLM's train and validate rows of the six corpora, the best of its kind for each
    figure: the mean for MSE, the median for MAE, the most frequent class for accuracy and F1.
    """
    cells: list[Cell] = []
    prompts: dict[int, dict[str, dict[str, int]]] = {table: {} for table in (2, 3, 4, 5)}
    for number, llm in enumerate(LLMS):
        rows = rows_of(llm, samples)
        for rule in dict.fromkeys(subject.rule for subject in subjects):
            fitted = Truth.of(trained_on(rows), rule)
            first = 0
            for by_class, by_error, part in evaluated_parts(rows):
                if report is not None:
                    report(f"tables {by_class} and {by_error}, {llm}", number / len(LLMS))
                truth = Truth.of(part, rule)
                kept = set(truth.keys)
                place = first + np.array([i for i, key in enumerate(Truth.of(part, "all").keys) if key in kept])
                first += len(part)
                for table in (by_class, by_error):
                    prompts[table].setdefault(rule, {})[llm] = len(truth)
                for subject in subjects:
                    if subject.rule == rule:
                        cells += _classes(by_class, llm, subject, place, truth, fitted)
                        cells += _errors(by_error, llm, subject, place, truth, fitted)
    return PaperComparison(samples.origin, prompts, tuple(sorted(cells, key=lambda cell: cell.table)))


def _classes(
    table: int, llm: str, subject: Subject, place: NDArray[np.int64], truth: Truth, fitted: Truth
) -> Iterator[Cell]:
    paper = dict(zip(CLASSES, PAPER[table][llm], strict=True))
    for reading, width in itertools.product(READINGS, WIDTHS):
        given = subject.classes(llm, reading, width)
        if given is None:
            continue
        wanted, past = (np.floor(getattr(each, reading) / width).astype(np.intp) for each in (truth, fitted))
        ours = given[:, place].astype(np.intp)
        base = class_scores.classification(wanted, np.full(len(wanted), np.bincount(past).argmax()))
        f1 = float(np.mean([class_scores.classification(wanted, each).f1 for each in ours]))
        make = partial(Cell, table, llm, subject.name, subject.rule, reading)
        accuracy = _mean(100 * (ours == wanted).mean(axis=0))
        yield make(f"Acc {width}", paper[f"Acc {width}"], *accuracy, 100 * base.accuracy)
        yield make(f"F1 {width}", paper[f"F1 {width}"], f1, math.nan, math.nan, base.f1)


def _errors(
    table: int, llm: str, subject: Subject, place: NDArray[np.int64], truth: Truth, fitted: Truth
) -> Iterator[Cell]:
    kinds = itertools.product(("mean", "std"), ((2, np.nanmean), (1, np.nanmedian)))
    for what, paper, (kind, (power, middle)) in zip(ERRORS, PAPER[table][llm], kinds, strict=True):
        given = subject.values.get((llm, kind))
        if given is None:
            continue
        true = getattr(truth, kind)
        error = np.mean(np.abs(given[:, place] - true) ** power, axis=0)
        constant = float(np.nanmean(np.abs(middle(getattr(fitted, kind)) - true) ** power))
        yield Cell(table, llm, subject.name, subject.rule, "", what, paper, *_mean(error), constant)


def _mean(values: Floats) -> tuple[float, float, float]:
    """Mean of the known values, with a bootstrap interval over prompts."""
    known = values[np.isfinite(values)]
    if not len(known):
        return math.nan, math.nan, math.nan
    rows = draw_rows(len(known), seed=len(known), resamples=_RESAMPLES)
    return (float(known.mean()), *interval(known[rows].mean(axis=1)))


def tables(found: PaperComparison) -> list[Table]:
    """The paper's tables 2 to 5, those that the data can fill."""
    return [_table(found, number) for number in TITLES if found.prompts[number]]


def _table(found: PaperComparison, number: int) -> Table:
    columns = COLUMNS[number]
    cells = [cell for cell in found.cells if cell.table == number]
    rows: list[tuple[str, ...]] = []
    begins = set()
    for llm in LLMS:
        begins.add(len(rows))
        mine: dict[tuple[str, str, str], dict[str, Cell]] = {}
        for cell in cells:
            if cell.llm == llm:
                mine.setdefault((cell.rule, cell.reading, cell.subject), {})[cell.what] = cell
        rows.append((llm, "paper", "", *map(_figure, columns, PAPER[number][llm])))
        for rule in RULES:
            for reading in READINGS if columns is CLASSES else ("",):
                group = {key: row for key, row in mine.items() if key[:2] == (rule, reading)}
                for (_, _, subject), row in group.items():
                    rows.append(("", _named(subject, reading), rule, *(_shown(row.get(what)) for what in columns)))
                if group:
                    row = max(group.values(), key=len)
                    values = (_figure(what, row[what].constant) for what in columns)
                    rows.append(("", _named(CONSTANT, reading), rule, *values))
    title = f"{TITLES[number]}; {_sizes(found.prompts[number])} rows per LLM of {found.origin}"
    notes = _notes(found, number, cells)
    return Table(title, ("LLM", "", "rows", *columns), rows, notes, frozenset(begins - {0}), keys=3)


def _sizes(prompts: Mapping[str, Mapping[str, int]]) -> str:
    sizes = [count for rule in prompts.values() for count in rule.values()]
    return f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"


def _named(subject: str, reading: str) -> str:
    return f"{subject}, {READINGS[reading]}" if reading else subject


def _shown(cell: Cell | None) -> str:
    return "–" if cell is None else _figure(cell.what, cell.ours) + ("*" if cell.claimed else "")


def _figure(what: str, value: float) -> str:
    if value != value:
        return "–"
    if what.startswith("F1"):
        return f"{value:.3f}"
    return f"{value:,.0f}" if what.startswith("MSE") else f"{value:,.2f}"


def _notes(found: PaperComparison, number: int, cells: Sequence[Cell]) -> list[str]:
    claimed = sum(cell.claimed for cell in cells)
    possible = sum(not cell.constant_beats_paper for cell in cells)
    out_of = f"{claimed} of the {possible} cells (of {len(cells)}) in which the paper is at least as good as a constant"
    notes = [
        f"* claimed: better than the paper where a constant is not; {out_of}.",
        "Rows: " + "; ".join(f"{rule}: {RULES[rule]}" for rule in found.prompts[number]) + ".",
        "Constants are of the LLM's train and validate rows: most frequent class, mean for MSE, median for MAE.",
        "Classifier and regression: the paper's networks, mean of seeds; the paper fine-tunes BERT.",
        "Frozen: a network for each LLM and task. Fine-tuned: the three LLMs at once, and one network for all classes.",
    ]
    if number in (2, 3):
        notes.append(
            "The paper does not say of which length its classes are; its interface returns the class of the P99. "
            f"P99 is the {P99} quantile of a row's samples; the predictor's is its mean + {STDS_TO_P99} std of them."
        )
    if number == 2 and not found.prompts[3]:
        notes.append(f"Tables 3 and 5 are left out: there are no {UNSEEN} rows here.")
    return notes


def rule_table(found: PaperComparison) -> Table:
    """Table 4 for the same predictions scored by each rule: how much of an error is answers that never ended."""
    rows = []
    for llm in LLMS:
        for rule in RULES:
            mine = {cell.what: cell for cell in found.cells if (cell.table, cell.llm, cell.rule) == (4, llm, rule)}
            rows.append(
                (
                    llm if rule == next(iter(RULES)) else "",
                    RULES[rule],
                    f"{found.prompts[4][rule][llm]:,}",
                    *(_with_interval(mine[what]) for what in ERRORS),
                )
            )
        rows.append(("", "paper", "910", *map(_figure, ERRORS, PAPER[4][llm])))
    name = found.cells[0].subject
    notes = [
        "95 % over prompts. The paper's accuracies are multiples of 1/910: it removed no test row.",
        "So it removed samples, or rows of training only.",
    ]
    return Table(f"Table 4 by rule: {name}", ("LLM", "rows", "n", *ERRORS), rows, notes)


def _with_interval(cell: Cell) -> str:
    return f"{_figure(cell.what, cell.ours)} [{_figure(cell.what, cell.low)}, {_figure(cell.what, cell.high)}]"


def claims(found: PaperComparison, subject: str) -> list[Claim]:
    """Accuracy and errors beside the paper's, with intervals over prompts; `subject` is the package's predictor."""
    shown = {
        (trained_name(task, network), reading): f"{said}, {NETWORKS[network]}"
        for network in NETWORKS
        for task, reading, said in (
            (CLASSIFIER, "mean", "classifier, mean"),
            (CLASSIFIER, "p99", "classifier, P99"),
            (f"{REGRESSION}, squared error", "", "regression, squared"),
            (f"{REGRESSION}, absolute error", "", "regression, absolute"),
        )
    } | {
        (subject, "mean"): subject,
        (subject, "p99"): f"{subject}, P99",
        (subject, ""): subject,
    }
    return [
        Claim(
            f"table {cell.table}, {cell.what}, {cell.llm}",
            cell.paper,
            Ratio(cell.ours, cell.low, cell.high),
            setting,
            None,
        )
        for cell in found.cells
        if cell.rule == "castillo" and not cell.what.startswith("F1")  # which has no interval
        if (setting := shown.get((cell.subject, cell.reading))) is not None
    ]


def figure_7(found: PaperComparison, subject: str) -> str:
    """Accuracy by bin width as PNG in base64: the paper's, the classifier's, a predictor's and a constant's."""
    numbers = [table for table in (2, 3) if found.prompts[table]]
    title = "Figure 7: accuracy by bin width (CASTILLO's rule)"
    cells = {
        (cell.table, cell.llm, cell.subject, cell.reading, cell.what): cell
        for cell in found.cells
        if cell.rule == "castillo"
    }
    known = {cell.subject for cell in found.cells}
    best = next((name for key in ("minilm", "own") if (name := trained_name(CLASSIFIER, key)) in known), CLASSIFIER)
    lines = ((best, "mean", COLOURS[2]), (best, "p99", COLOURS[3]), (subject, "mean", COLOURS[0]))
    with figure(len(numbers), len(LLMS), size=(13, 3.6 * len(numbers) + 0.6), title=title) as (drawing, axes):
        for place, (table, llm) in enumerate((table, llm) for table in numbers for llm in LLMS):
            by_width = [
                (name, reading, colour, [cells[table, llm, name, reading, f"Acc {width}"] for width in WIDTHS])
                for name, reading, colour in lines
                if (table, llm, name, reading, "Acc 50") in cells
            ]
            series = [
                (_named(name, reading), [cell.ours for cell in row], colour) for name, reading, colour, row in by_width
            ]
            reference = by_width[-1][-1]
            series.append(("paper", [cell.paper for cell in reference], COLOURS[1]))
            series.append(("constant, bin of the mean", [cell.constant for cell in reference], GREY))
            for name, values, colour in series:
                axes[place].plot(range(len(WIDTHS)), values, color=colour, marker="o", markersize=4, label=name)
            title = f"{llm}, {'six corpora' if table == 2 else UNSEEN}"
            axes[place].set(ylim=(0, 100), xlabel="bin width (tokens)", ylabel="accuracy (%)", title=title)
            axes[place].set_xticks(range(len(WIDTHS)), [f"{width:,}" for width in WIDTHS])
        legend(axes[0], loc="upper left")
        return png(drawing)
