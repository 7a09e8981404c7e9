"""How predictions hold on answers to one way of asking, before and after online calibration has seen some.

Calibration sees answers to one random half of the prompts and is judged on the other half, and the other way round,
over 20 such splits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from scipy import special

from lengthwise.predictors.calibration import OnlineCalibrated
from lengthwise.predictors.contract import LogTPredictions, as_logt
from lengthwise.predictors.evaluation import CENTRAL, prediction_inputs
from lengthwise.predictors.scores import coverage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors import LengthPredictor, PredictionInput
    from lengthwise.workloads import LengthSamples

    Rows = NDArray[np.intp]

Asked = Literal["plain", "steps"]
ASKED: Final[tuple[Asked, ...]] = ("plain", "steps")
SEEN: Final[tuple[Asked | None, ...]] = (None, "plain", "steps")
"""Whose answers online calibration has seen; None: nobody's, the prediction is as shipped."""

TAIL: Final = 0.95
_SPLITS: Final = 20


@dataclass(frozen=True)
class Holding:
    """How predictions hold on answers to prompts that calibration has not seen."""

    asked: Asked
    seen: Asked | None
    observations: int
    shift: float
    """What calibration multiplies medians with, on average."""
    covered: Mapping[float, float]
    """Nominal share of the central interval -> share of single answers inside."""
    covered_predicted: Mapping[float, float]
    """The same as the predictions have it: an interval that ends at the limit holds more than its nominal share."""
    above_tail: float
    """Share of answers above the prediction's 95 % quantile: overthinking that the prediction did not allow for."""
    above_tail_predicted: float
    """5 %, less where the quantile is the limit itself, which nothing can exceed."""
    cut: float
    cut_predicted: float
    """Share of answers that reach the limit."""


@dataclass(frozen=True, eq=False)
class Answers:
    """One half as arrays, with the predictions as shipped."""

    inputs: Sequence[PredictionInput]
    lengths: NDArray[np.int64]
    capped: NDArray[np.bool_]
    predictions: LogTPredictions

    @classmethod
    def of(cls, predictor: LengthPredictor, samples: LengthSamples, max_tokens: int) -> Answers:
        """Ask the predictor once about every row."""
        inputs = prediction_inputs(samples, max_tokens)
        return cls(inputs, samples.lengths_matrix(), samples.capped_matrix(), as_logt(predictor.predict(inputs)))

    def take(self, rows: Rows) -> Answers:
        """Only these prompts."""
        columns, some = self.predictions.columns, [self.inputs[row] for row in rows]
        predictions = LogTPredictions.of(columns.mu[rows], columns.sigma[rows], columns.cap[rows], nu=columns.nu)
        return Answers(some, self.lengths[rows], self.capped[rows], predictions)


class _AsBefore:
    """A predictor that has been asked already: what it said, without asking it again."""

    def __init__(self, halves: Mapping[Asked, Answers]) -> None:
        self._said = {
            each: (mu, sigma)
            for half in halves.values()
            for each, mu, sigma in zip(half.inputs, half.predictions.mu, half.predictions.sigma, strict=True)
        }
        self._nu = next(iter(halves.values())).predictions.columns.nu

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        said = np.array([self._said[each] for each in inputs]).reshape(-1, 2)
        return LogTPredictions.of(said[:, 0], said[:, 1], [each.cap for each in inputs], nu=self._nu)


def holding(halves: Mapping[Asked, Answers], asked: Asked, seen: Asked | None, observations: int, seed: int) -> Holding:
    """How predictions about `asked` hold once `observations` answers to `seen` are known, or all where there are fewer."""
    if seen is None:
        return _score(asked, None, 0, [(halves[asked], halves[asked].predictions, 0.0)])
    judged = []
    count = 0
    for split in range(_SPLITS):
        rng = np.random.default_rng([seed % 2**64, 2, split])
        order = rng.permutation(len(halves[asked].inputs))
        middle = len(order) // 2
        for taught, held in ((order[:middle], order[middle:]), (order[middle:], order[:middle])):
            online = OnlineCalibrated(_AsBefore(halves))
            count = _teach(online, halves[seen].take(taught), observations, rng)
            rest = halves[asked].take(held)
            shift = online.adjustment(rest.inputs[0].llm).shift
            judged.append((rest, online.predict(rest.inputs), shift))
    return _score(asked, seen, count, judged)


def _teach(online: OnlineCalibrated, half: Answers, observations: int, rng: np.random.Generator) -> int:
    """Show it so many answers in random order, as they would come from mixed traffic."""
    samples = half.lengths.shape[1]
    picks = rng.permutation(half.lengths.size)[:observations]
    for row, sample in zip(*np.divmod(picks, samples), strict=True):
        online.observe(half.inputs[row], int(half.lengths[row, sample]), censored=bool(half.capped[row, sample]))
    return len(picks)


def _score(
    asked: Asked, seen: Asked | None, observations: int, judged: Sequence[tuple[Answers, LogTPredictions, float]]
) -> Holding:
    """Average over the parts that were judged; all are about as large."""
    tails = np.mean([_tail(half, predictions) for half, predictions, _ in judged], axis=0).tolist()
    inside = np.mean([_inside(half, predictions) for half, predictions, _ in judged], axis=0).tolist()
    shift = float(np.exp(np.mean([shift for _, _, shift in judged])))
    covered, predicted = (dict(zip(CENTRAL, column, strict=True)) for column in zip(*inside, strict=True))
    return Holding(asked, seen, observations, shift, covered, predicted, *tails)


def _inside(half: Answers, predictions: LogTPredictions) -> list[tuple[float, float]]:
    """Of each central interval, the share of answers inside and the share that the predictions expect there."""
    everything = np.ones(half.lengths.shape, bool)
    lengths, cap, below = half.lengths.astype(np.float64), predictions.columns.cap, 1.0 - _reach(predictions)
    found = []
    for level in CENTRAL:
        low, high = predictions.quantile((1 - level) / 2), predictions.quantile((1 + level) / 2)
        shorter = np.minimum(below, (1 - level) / 2)
        longer = np.where(high < cap, (1 - level) / 2, 0.0)
        found.append((coverage(low, high, lengths, everything), float(np.mean(1.0 - shorter - longer))))
    return found


def _tail(half: Answers, predictions: LogTPredictions) -> tuple[float, float, float, float]:
    quantile = predictions.quantile(TAIL)
    above = float(np.mean(half.lengths > quantile[:, None]))
    allowed = float(np.mean(np.where(quantile < predictions.columns.cap, 1 - TAIL, 0.0)))
    return above, allowed, float(half.capped.mean()), float(_reach(predictions).mean())


def _reach(predictions: LogTPredictions) -> NDArray[np.float64]:
    """P(an answer reaches the limit)."""
    columns = predictions.columns
    return np.asarray(special.stdtr(columns.nu, (columns.mu - np.log(columns.cap)) / columns.sigma))
