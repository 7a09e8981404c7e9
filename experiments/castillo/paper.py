"""Tables 2 to 5 and figure 7 of the paper that predicts CASTILLO's lengths with BERT, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors import LengthPredictor, scores
from lengthwise.predictors.baselines import ConstantPredictor, clean_moments
from lengthwise.predictors.evaluation import Forecast, forecast
from lengthwise.predictors.llm_names import resolve_llm
from lengthwise.reports.figures import COLOURS, GREY, figure, legend, png
from lengthwise.reports.tables import Table
from lengthwise.workloads import LengthSamples

Floats = NDArray[np.float64]


LLMS: Final = ("Llama-3.2-1B", "Llama-3.2-3B", "Llama-3.1-8B")
WIDTHS: Final = (50, 100, 200, 500, 1000)
UNSEEN: Final = "Alpaca"

READINGS: Final[Mapping[str, str]] = {"mean": "bin of the mean", "p99": "bin of the P99"}

PAPER_TABLE_2: Final[Mapping[str, tuple[tuple[float, float], ...]]] = {
    "Llama-3.2-1B": ((16.81, 0.164), (31.21, 0.305), (50.66, 0.499), (68.90, 0.679), (89.78, 0.8844)),
    "Llama-3.2-3B": ((19.23, 0.187), (33.63, 0.335), (50.55, 0.505), (72.64, 0.720), (92.19, 0.9099)),
    "Llama-3.1-8B": ((16.15, 0.151), (28.35, 0.280), (49.12, 0.484), (67.25, 0.667), (91.86, 0.9020)),
}
"""Six corpora: accuracy in percent and F1 for each bin width."""
PAPER_TABLE_3: Final[Mapping[str, tuple[tuple[float, float], ...]]] = {
    "Llama-3.2-1B": ((10.00, 0.094), (17.70, 0.164), (35.45, 0.361), (71.50, 0.714), (93.60, 0.927)),
    "Llama-3.2-3B": ((13.35, 0.135), (24.35, 0.254), (41.65, 0.435), (74.50, 0.747), (96.55, 0.952)),
    "Llama-3.1-8B": ((11.50, 0.133), (21.75, 0.234), (34.80, 0.455), (75.45, 0.747), (94.55, 0.932)),
}
"""Alpaca, never trained on: as table 2."""
ERRORS: Final = ("MSE(mean)", "MAE(mean)", "MSE(std)", "MAE(std)")
PAPER_TABLE_4: Final[Mapping[str, tuple[float, ...]]] = {
    "Llama-3.2-1B": (75378.30, 121.02, 108624.30, 80.84),
    "Llama-3.2-3B": (45735.30, 119.18, 28182.20, 54.68),
    "Llama-3.1-8B": (82152.72, 128.28, 19193.33, 51.60),
}
"""Six corpora: errors of the mean and of the std of a prompt's samples, in the order of ERRORS."""
PAPER_TABLE_5: Final[Mapping[str, tuple[float, ...]]] = {
    "Llama-3.2-1B": (70542.27, 163.87, 48814.96, 70.78),
    "Llama-3.2-3B": (73246.13, 164.94, 16033.02, 53.45),
    "Llama-3.1-8B": (78596.34, 175.10, 21076.86, 52.87),
}
"""Alpaca, never trained on: as table 4."""
PAPER_PROMPT_METHOD: Final = ("Llama-3.1-8B", 3210768.61, 384.03)
"""The paper's baseline, asking the LLM itself: MSE and MAE of the mean, in its table 4."""

_MEDIAN_OF_LARGEST: Final = int(np.searchsorted(scores.CRPS_LEVELS, 0.5 ** (1 / 10)))


@dataclass(frozen=True)
class Cell:
    """One figure of one table: three numbers in the paper's unit."""

    table: int
    llm: str
    what: str
    reading: str
    """Which length a class is of; empty in tables 4 and 5."""
    paper: float
    ours: float
    constant: float

    @property
    def smaller_is_better(self) -> bool:
        """Of errors; not of accuracy and F1."""
        return self.what in ERRORS

    @property
    def constant_beats_paper(self) -> bool:
        """Then the cell says nothing about a predictor."""
        return self._better(self.constant, self.paper)

    @property
    def claimed(self) -> bool:
        """Ours is better than the paper's, and a constant is not."""
        return self._better(self.ours, self.paper) and not self.constant_beats_paper

    def _better(self, a: float, b: float) -> bool:
        return a < b if self.smaller_is_better else a > b


@dataclass(frozen=True)
class PaperComparison:
    """All cells that the available data can fill."""

    predictor: str
    origin: str
    prompts: Mapping[int, Mapping[str, int]]
    """Table -> LLM -> prompts with a clean sample."""
    cells: tuple[Cell, ...]


@dataclass(frozen=True, eq=False)
class _Targets:
    """What the tables ask about each row; only rows with a clean sample."""

    mean: Floats
    std: Floats
    p99: Floats

    @classmethod
    def of(cls, samples: LengthSamples) -> _Targets:
        lengths, clean = samples.lengths_matrix(), samples.clean_mask()
        mean, std = clean_moments(lengths, clean)
        some = np.isfinite(mean)
        p99 = np.nanquantile(np.where(clean, lengths, np.nan)[some], 0.99, axis=1) if some.any() else np.empty(0)
        return cls(mean[some], std[some], np.asarray(p99, np.float64))

    def largest_in_stds(self) -> float:
        """How many sampling stds the P99 of the samples lies above their mean, on the typical prompt."""
        spread = self.std > 0
        return float(np.median((self.p99 - self.mean)[spread] / self.std[spread])) if spread.any() else 0.0


def compare(
    predictor: LengthPredictor | ConstantPredictor,
    samples: LengthSamples,
    *,
    name: str = "ours",
    progress: Callable[[str, float], None] | None = None,
) -> PaperComparison:
    """Fill the tables: six corpora on their test prompts, Alpaca on all its prompts (nothing here trains on it).

    Constants are those of each LLM's train and validate rows of the six corpora, the best of its kind for each
    figure: the mean for MSE, the median for MAE, the most frequent class for accuracy and F1.
    """
    seen = [corpus for corpus in samples.corpora if corpus != UNSEEN]
    cells: list[Cell] = []
    prompts: dict[int, dict[str, int]] = {table: {} for table in (2, 3, 4, 5)}
    for number, llm in enumerate(LLMS):
        rows = samples.where(llm=_of(llm, samples))
        known = rows.where(corpus=seen)
        fitted = _Targets.of(known.where(split=[split for split in known.splits if split != "test"]))
        held_out = [(2, 4, known.where(split="test"))]
        if UNSEEN in rows.corpora:
            held_out.append((3, 5, rows.where(corpus=UNSEEN)))
        for by_class, by_error, truth in held_out:
            if progress is not None:
                progress(f"tables {by_class} and {by_error}, {llm}", number / len(LLMS))
            usable = _with_clean_samples(truth)
            predicted, target = forecast(predictor, usable), _Targets.of(usable)
            prompts[by_class][llm] = prompts[by_error][llm] = len(usable)
            cells += _classes(by_class, llm, predicted, target, fitted) + _errors(
                by_error, llm, predicted, target, fitted
            )
    return PaperComparison(name, samples.origin, prompts, tuple(sorted(cells, key=lambda cell: cell.table)))


def _with_clean_samples(samples: LengthSamples) -> LengthSamples:
    some = pa.array(np.any(samples.clean_mask(), axis=1))
    return LengthSamples(samples.table.filter(some).combine_chunks(), samples.origin)


def _of(llm: str, samples: LengthSamples) -> str:
    try:
        return resolve_llm(llm, samples.llms)
    except InputError as error:
        raise InputError(
            f"holds no rows of {llm}", source=samples.origin, hint="the tables are about CASTILLO"
        ) from error


def _classes(table: int, llm: str, predicted: Forecast, target: _Targets, fitted: _Targets) -> list[Cell]:
    paper = (PAPER_TABLE_2 if table == 2 else PAPER_TABLE_3)[llm]
    beyond = np.where(np.isfinite(predicted.std), fitted.largest_in_stds() * predicted.std, np.nan)
    # Without a sampling std: the prediction's median of the largest of ten answers.
    largest = np.where(np.isfinite(beyond), predicted.point + beyond, predicted.quantiles[:, _MEDIAN_OF_LARGEST])
    cells = []
    for reading, point, true, past in (
        ("mean", predicted.point, target.mean, fitted.mean),
        ("p99", largest, target.p99, fitted.p99),
    ):
        for width, (accuracy, f1) in zip(WIDTHS, paper, strict=True):
            edges = scores.equal_width(width, float(max(true.max(), past.max())))
            wanted = scores.classes(true, edges)
            most = np.bincount(scores.classes(past, edges)).argmax()
            ours = scores.classification(wanted, scores.classes(point, edges))
            constant = scores.classification(wanted, np.full(len(wanted), most))
            cells.append(
                Cell(table, llm, f"Acc {width}", reading, accuracy, 100 * ours.accuracy, 100 * constant.accuracy)
            )
            cells.append(Cell(table, llm, f"F1 {width}", reading, f1, ours.f1, constant.f1))
    return cells


def _errors(table: int, llm: str, predicted: Forecast, target: _Targets, fitted: _Targets) -> list[Cell]:
    paper = (PAPER_TABLE_4 if table == 4 else PAPER_TABLE_5)[llm]
    found = []
    for point, true, past in ((predicted.point, target.mean, fitted.mean), (predicted.std, target.std, fitted.std)):
        mean, median = np.full(len(true), np.nanmean(past)), np.full(len(true), np.nanmedian(past))
        found.append((scores.mse(point, true), scores.mse(mean, true)))
        found.append((scores.mae(point, true), scores.mae(median, true)))
    return [
        Cell(table, llm, what, "", theirs, ours, constant)
        for what, theirs, (ours, constant) in zip(ERRORS, paper, found, strict=True)
    ]


_WHAT: Final = {
    2: "Table 2: classes, six corpora",
    3: "Table 3: classes, Alpaca (never trained on)",
    4: "Table 4: errors, six corpora",
    5: "Table 5: errors, Alpaca (never trained on)",
}


def tables(found: PaperComparison) -> list[Table]:
    """The paper's tables 2 to 5, those that the data can fill."""
    return [_table(found, number) for number in _WHAT if found.prompts[number]]


def _table(found: PaperComparison, number: int) -> Table:
    by_class = number in (2, 3)
    columns = [f"{kind} {width}" for width in WIDTHS for kind in ("Acc", "F1")] if by_class else list(ERRORS)
    cells = [cell for cell in found.cells if cell.table == number]
    rows: list[tuple[str, ...]] = []
    begins = set()
    for llm in LLMS:
        begins.add(len(rows))
        mine = {(cell.reading, cell.what): cell for cell in cells if cell.llm == llm}
        for i, reading in enumerate(READINGS if by_class else ("",)):
            row = [mine[reading, column] for column in columns]
            if i == 0:
                rows.append((llm, "paper", *(_figure(cell, cell.paper) for cell in row)))
            rows += _pair(found.predictor, READINGS.get(reading, ""), row)
    prompts = sorted(set(found.prompts[number].values()))
    counted = f"{prompts[0]:,}" if len(prompts) == 1 else f"{prompts[0]:,} to {prompts[-1]:,}"
    title = f"{_WHAT[number]}, {counted} prompts per LLM of {found.origin}"
    return Table(title, ("LLM", "", *columns), rows, _notes(found, number, cells), frozenset(begins - {0}))


def _pair(name: str, reading: str, row: Sequence[Cell]) -> list[tuple[str, ...]]:
    suffix = f", {reading}" if reading else ""
    return [
        ("", f"{name}{suffix}", *(_figure(cell, cell.ours) + ("*" if cell.claimed else "") for cell in row)),
        ("", f"constant{suffix}", *(_figure(cell, cell.constant) for cell in row)),
    ]


def _figure(cell: Cell, value: float) -> str:
    if value != value:
        return "–"
    if cell.what.startswith("F1"):
        return f"{value:.3f}"
    return f"{value:,.0f}" if cell.what.startswith("MSE") else f"{value:,.2f}"


def _notes(found: PaperComparison, number: int, cells: Sequence[Cell]) -> list[str]:
    claimed = sum(cell.claimed for cell in cells)
    possible = sum(not cell.constant_beats_paper for cell in cells)
    out_of = f"{claimed} of the {possible} cells (of {len(cells)}) in which the paper is at least as good as a constant"
    constants = "the most frequent class, the mean for MSE, the median for MAE"
    notes = [
        f"* claimed: better than the paper where a constant is not; {out_of}.",
        f"Degenerate samples are out. Constants, of the LLM's train and validate rows of the six corpora: {constants}.",
    ]
    if number in (2, 3):
        notes.append("The paper gives one figure and does not say of which length; both readings stand beside it.")
    if number == 4:
        llm, mse, mae = PAPER_PROMPT_METHOD
        notes.append(f"The paper's baseline, asking {llm} itself: MSE(mean) {mse:,.0f}, MAE(mean) {mae:,.2f}.")
    if not found.prompts[3] and number == 2:
        notes.append("Tables 3 and 5 are left out: there are no Alpaca rows here.")
    return notes


def figure_7(found: PaperComparison) -> str:
    """Accuracy by bin width as PNG in base64: ours, the paper's and a constant's."""
    tables = [table for table in (2, 3) if found.prompts[table]]
    title = "Figure 7: accuracy by bin width (class of the mean)"
    with figure(len(tables), len(LLMS), size=(13, 3.6 * len(tables) + 0.6), title=title) as (drawing, axes):
        for place, (table, llm) in enumerate((table, llm) for table in tables for llm in LLMS):
            cells = [
                next(
                    cell
                    for cell in found.cells
                    if (cell.table, cell.llm, cell.what, cell.reading) == (table, llm, f"Acc {width}", "mean")
                )
                for width in WIDTHS
            ]
            series = (
                (found.predictor, [cell.ours for cell in cells], COLOURS[0]),
                ("paper", [cell.paper for cell in cells], COLOURS[1]),
                ("constant", [cell.constant for cell in cells], GREY),
            )
            for name, values, colour in series:
                axes[place].plot(range(len(WIDTHS)), values, color=colour, marker="o", markersize=4, label=name)
            axes[place].set_xticks(range(len(WIDTHS)), [f"{width:,}" for width in WIDTHS])
            axes[place].set_ylim(0, 100)
            axes[place].set_xlabel("bin width (tokens)")
            axes[place].set_ylabel("accuracy (%)")
            axes[place].set_title(f"{llm}, {'six corpora' if table == 2 else 'Alpaca'}")
        legend(axes[0], loc="upper left")
        return png(drawing)
