"""How do predictions hold when an LLM is asked to reason: the same prompts with and without "Think step by step."

The paper on CASTILLO leaves reasoning and overthinking to future work. Measured here: how much longer answers become
and are predicted to become, how well intervals cover, and how many answers exceed the prediction's 95 % quantile; as
shipped, and after online calibration on answers of either kind. Calibration uses answers to one random half of the
prompts and is evaluated on the other half, and vice versa, over 20 such splits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import special

from experiments.study import Run, Study, sections
from lengthwise.errors import InputError
from lengthwise.files import read_parquet_table, sample
from lengthwise.intervals import draw_rows, interval
from lengthwise.predictors import LengthPredictor, PredictionInput
from lengthwise.predictors.baselines import Ceiling, column
from lengthwise.predictors.contract import LogTPredictions, as_logt
from lengthwise.predictors.evaluation import prediction_inputs
from lengthwise.predictors.learner import Learner
from lengthwise.predictors.resolve import load_predictor
from lengthwise.reports.tables import Table, share
from lengthwise.traffic.scores import CENTRAL, coverage, tau_within
from lengthwise.workloads import LengthSamples

Rows = NDArray[np.intp]


SENTENCE: Final = "Think step by step."
LIMIT: Final = 512
"""Maximum tokens of the packaged answers."""

_KEY: Final = ("corpus", "prompt_id", "llm")


@dataclass(frozen=True, eq=False)
class ReasoningPairs:
    """Length samples of the same prompts and LLMs, row by row; the prompts of `steps` end in the sentence."""

    plain: LengthSamples
    steps: LengthSamples
    max_tokens: int
    """Maximum tokens of an answer."""

    def __len__(self) -> int:
        return len(self.plain)


def load_reasoning() -> ReasoningPairs:
    """Return the packaged pairs: SmolLM2-135M-Instruct on test prompts of CASTILLO (see samples/CREDITS.md)."""
    known = read_parquet_table(sample("castillo.parquet"))
    columns = (known[name].to_pylist() for name in ("corpus", "prompt_id", "prompt"))
    texts = {(corpus, prompt_id): text for corpus, prompt_id, text in zip(*columns, strict=True)}
    table = read_parquet_table(sample("reasoning.parquet"))
    halves = []
    for sentence in ("", SENTENCE):
        rows = table.filter(pc.equal(pc.fill_null(table["sentence"], ""), sentence))
        names = zip(rows["corpus"].to_pylist(), rows["prompt_id"].to_pylist(), strict=True)
        ending = f"\n\n{sentence}" if sentence else ""
        prompts = pa.array([texts[name] + ending for name in names], pa.string())
        halves.append(LengthSamples.from_table(rows.append_column("prompt", prompts), origin="packaged sample"))
    return pair(*halves, max_tokens=LIMIT)


def pair(plain: LengthSamples, steps: LengthSamples, *, max_tokens: int) -> ReasoningPairs:
    """Match the rows of both; prompts that only one of them has are left out."""
    ours, theirs = (
        {key: row for row, key in enumerate(zip(*(each.table[name].to_pylist() for name in _KEY), strict=True))}
        for each in (plain, steps)
    )
    both = [key for key in ours if key in theirs]
    if not both:
        raise InputError(
            f"has no prompt in common with {plain.origin}",
            source=steps.origin,
            hint="collect both from the same prompts and LLM",
        )
    matched = [
        LengthSamples(each.table.take(pa.array([place[key] for key in both])).combine_chunks(), each.origin)
        for each, place in ((plain, ours), (steps, theirs))
    ]
    return ReasoningPairs(matched[0], matched[1], max_tokens)


Asked = Literal["plain", "steps"]
ASKED: Final[tuple[Asked, ...]] = ("plain", "steps")
SEEN: Final[tuple[Asked | None, ...]] = (None, "plain", "steps")
"""The kind of answers used for online calibration; None: predictions as shipped."""

TAIL: Final = 0.95
_SPLITS: Final = 20


@dataclass(frozen=True)
class Holding:
    """Quality of predictions on prompts not used for calibration."""

    asked: Asked
    seen: Asked | None
    observations: int
    shift: float
    """Mean factor by which calibration multiplies medians."""
    covered: Mapping[float, float]
    """Nominal share of the central interval -> share of single answers inside."""
    covered_predicted: Mapping[float, float]
    """The share that the predictions expect; an interval that ends at the limit holds more than its nominal share."""
    above_tail: float
    """Share of answers above the prediction's 95 % quantile: overthinking that the prediction does not cover."""
    above_tail_predicted: float
    """5 %, less where the quantile is the limit, which no answer exceeds."""
    cut: float
    cut_predicted: float
    """Share of answers that reach the limit."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to one kind of prompt as arrays, with the predictions as shipped."""

    inputs: Sequence[PredictionInput]
    lengths: NDArray[np.int64]
    capped: NDArray[np.bool_]
    predictions: LogTPredictions

    @classmethod
    def of(cls, predictor: LengthPredictor, samples: LengthSamples, max_tokens: int) -> Answers:
        """Predict every row once."""
        inputs = prediction_inputs(samples, max_tokens)
        return cls(inputs, samples.lengths_matrix(), samples.capped_matrix(), as_logt(predictor.predict(inputs)))

    def take(self, rows: Rows) -> Answers:
        """The given prompts only."""
        columns, inputs = self.predictions, [self.inputs[row] for row in rows]
        predictions = LogTPredictions.of(columns.mu[rows], columns.sigma[rows], columns.cap[rows], nu=columns.nu)
        return Answers(inputs, self.lengths[rows], self.capped[rows], predictions)


class _Recorded:
    """A predictor that returns recorded predictions."""

    def __init__(self, halves: Mapping[Asked, Answers]) -> None:
        self._known = {
            each: (mu, sigma)
            for half in halves.values()
            for each, mu, sigma in zip(half.inputs, half.predictions.mu, half.predictions.sigma, strict=True)
        }
        self._nu = next(iter(halves.values())).predictions.nu

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        known = np.array([self._known[each] for each in inputs]).reshape(-1, 2)
        return LogTPredictions.of(known[:, 0], known[:, 1], [each.cap for each in inputs], nu=self._nu)


def holding(halves: Mapping[Asked, Answers], asked: Asked, seen: Asked | None, observations: int, seed: int) -> Holding:
    """Quality of predictions for `asked` after `observations` answers to `seen` (or all, if fewer)."""
    if seen is None:
        return _score(asked, None, 0, [(halves[asked], halves[asked].predictions, 0.0)])
    evaluated = []
    count = 0
    for split in range(_SPLITS):
        rng = np.random.default_rng([seed % 2**64, 2, split])
        order = rng.permutation(len(halves[asked].inputs))
        middle = len(order) // 2
        for calibrated, held_out in ((order[:middle], order[middle:]), (order[middle:], order[:middle])):
            online = Learner(_Recorded(halves), learning=False)
            count = _teach(online, halves[seen].take(calibrated), observations, rng)
            rest = halves[asked].take(held_out)
            found = online.predict(rest.inputs)
            evaluated.append((rest, found, float(np.mean(found.mu - rest.predictions.mu))))
    return _score(asked, seen, count, evaluated)


def _teach(online: Learner, half: Answers, observations: int, rng: np.random.Generator) -> int:
    """Observe answers in random order, as in mixed traffic."""
    samples = half.lengths.shape[1]
    picks = rng.permutation(half.lengths.size)[:observations]
    for row, answer in zip(*np.divmod(picks, samples), strict=True):
        online.observe(half.inputs[row], int(half.lengths[row, answer]), censored=bool(half.capped[row, answer]))
    return len(picks)


def _score(
    asked: Asked, seen: Asked | None, observations: int, evaluated: Sequence[tuple[Answers, LogTPredictions, float]]
) -> Holding:
    """Average over the evaluated parts, which are about equally large."""
    tails = np.mean([_tail(half, predictions) for half, predictions, _ in evaluated], axis=0).tolist()
    inside = np.mean([_inside(half, predictions) for half, predictions, _ in evaluated], axis=0).tolist()
    shift = float(np.exp(np.mean([shift for _, _, shift in evaluated])))
    covered, predicted = (dict(zip(CENTRAL, column, strict=True)) for column in zip(*inside, strict=True))
    return Holding(asked, seen, observations, shift, covered, predicted, *tails)


def _inside(half: Answers, predictions: LogTPredictions) -> list[tuple[float, float]]:
    """Of each central interval, the share of answers inside and the share that the predictions expect there."""
    everything = np.ones(half.lengths.shape, bool)
    lengths, cap, below = half.lengths.astype(np.float64), predictions.cap, 1.0 - _reach(predictions)
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
    allowed = float(np.mean(np.where(quantile < predictions.cap, 1 - TAIL, 0.0)))
    return above, allowed, float(half.capped.mean()), float(_reach(predictions).mean())


def _reach(predictions: LogTPredictions) -> NDArray[np.float64]:
    """P(an answer reaches the limit)."""
    standard = (np.log(predictions.cap) - predictions.mu) / predictions.sigma
    return np.asarray(special.stdtr(predictions.nu, -standard))


Floats = NDArray[np.float64]


_RESAMPLES: Final = 4000
_TAU_RESAMPLES: Final = 400
_LEVEL: Final = 0.9


@dataclass(frozen=True)
class Half:
    """The answers to one kind of prompt beside the predictions as shipped; both are cut at the limit."""

    mean: float
    predicted_mean: float
    median: float
    predicted_median: float
    tau: float
    tau_low: float
    tau_high: float
    """90 % bootstrap interval over prompts, from `tau_low`."""
    tau_of_halves: float
    """tau between two halves of each prompt's answers. With few answers both are noisy: no bound on tau."""


@dataclass(frozen=True)
class LengthRatio:
    """Length with the sentence over length without: geometric mean over prompts, of a prompt's means."""

    prompts: int
    seen: float
    low: float
    high: float
    """90 % bootstrap interval over prompts, from `low`."""
    predicted: float
    cut: Mapping[Asked, float]
    """Share of answers cut off by the limit."""


@dataclass(frozen=True)
class ReasoningResult:
    """Everything, for one predictor and one LLM."""

    predictor: str
    llm: str
    origin: str
    prompts: int
    samples: int
    max_tokens: int
    halves: Mapping[Asked, Half]
    ratios: Mapping[str, LengthRatio]
    """By corpus, and over `all`."""
    holdings: tuple[Holding, ...]

    def holding(self, asked: Asked, seen: Asked | None) -> Holding:
        """The combination of a kind of prompt and a calibration."""
        return next(each for each in self.holdings if (each.asked, each.seen) == (asked, seen))


def compare(
    predictor: LengthPredictor, pairs: ReasoningPairs, *, name: str = "ours", observations: int = 100, seed: int = 0
) -> ReasoningResult:
    """Compare predictions with answers, before and after online calibration on answers to other prompts."""
    if len(pairs) < 2:
        raise InputError("one prompt only", source=pairs.plain.origin, hint="give at least two")
    samples = {"plain": pairs.plain, "steps": pairs.steps}
    halves: dict[Asked, Answers] = {asked: Answers.of(predictor, samples[asked], pairs.max_tokens) for asked in ASKED}
    means: dict[Asked, Floats] = {asked: halves[asked].lengths.mean(axis=1) for asked in ASKED}
    predicted: dict[Asked, Floats] = {asked: halves[asked].predictions.mean() for asked in ASKED}
    llms = column(pairs.plain, "llm")
    return ReasoningResult(
        predictor=name,
        llm=", ".join(pairs.plain.llms),
        origin=pairs.plain.origin,
        prompts=len(pairs),
        samples=halves["plain"].lengths.shape[1],
        max_tokens=pairs.max_tokens,
        halves={asked: _half(halves[asked], predicted[asked], llms, seed) for asked in ASKED},
        ratios=_ratios(column(pairs.plain, "corpus"), means, predicted, halves, seed),
        holdings=tuple(holding(halves, asked, seen, observations, seed) for asked in ASKED for seen in SEEN),
    )


def _half(half: Answers, predicted: Floats, llms: NDArray[np.object_], seed: int) -> Half:
    split = Ceiling.of(half.lengths, np.ones(half.lengths.shape, bool))
    means, mu = half.lengths.mean(axis=1), half.predictions.mu
    resamples = draw_rows(len(mu), seed=[seed % 2**64, 3], resamples=_TAU_RESAMPLES)
    low, high = interval([tau_within(llms[rows], mu[rows], means[rows]) for rows in resamples], _LEVEL)
    return Half(
        mean=float(half.lengths.mean()),
        predicted_mean=float(predicted.mean()),
        median=float(np.median(half.lengths)),
        predicted_median=float(np.median(half.predictions.quantile(0.5))),
        tau=tau_within(llms, mu, means),
        tau_low=low,
        tau_high=high,
        tau_of_halves=tau_within(llms, split.mean, split.true_mean),
    )


def _ratios(
    corpora: NDArray[np.object_],
    means: Mapping[Asked, Floats],
    predicted: Mapping[Asked, Floats],
    halves: Mapping[Asked, Answers],
    seed: int,
) -> dict[str, LengthRatio]:
    logs = np.log(means["steps"] / means["plain"])
    log_predicted = np.log(predicted["steps"] / predicted["plain"])
    found = {}
    for corpus in ["all", *sorted(set(corpora.tolist()))]:
        rows = np.flatnonzero(corpora == corpus) if corpus != "all" else np.arange(len(corpora))
        drawn = draw_rows(len(rows), seed=[seed % 2**64, 1], resamples=_RESAMPLES)
        low, high = map(math.exp, interval(logs[rows][drawn].mean(axis=1), _LEVEL))
        cut: dict[Asked, float] = {asked: float(halves[asked].capped[rows].mean()) for asked in ASKED}
        seen, expected = float(np.exp(logs[rows].mean())), float(np.exp(log_predicted[rows].mean()))
        found[corpus] = LengthRatio(len(rows), seen, low, high, expected, cut)
    return found


KIND_NAMES: Final[dict[Asked, str]] = {"plain": "plain", "steps": "step by step"}


def tables(found: ReasoningResult) -> list[Table]:
    """Lengths, how they change, and the quality of predictions."""
    return [_lengths(found), _ratio_table(found), _holdings(found)]


def _lengths(found: ReasoningResult) -> Table:
    rows = []
    for asked in ASKED:
        half = found.halves[asked]
        pairs = (half.mean, half.predicted_mean, half.median, half.predicted_median)
        interval = f"{_number(half.tau_low)} to {_number(half.tau_high)}"
        taus = (_number(half.tau), interval, _number(half.tau_of_halves))
        rows.append((KIND_NAMES[asked], *(f"{value:,.0f}" for value in pairs), *taus))
    title = f"{found.predictor} on {found.prompts:,} prompts x {found.samples} answers of {found.llm}"
    notes = [
        f"Rows: {found.origin}. Answers and predictions are cut at {found.max_tokens:,} tokens.",
        "tau: Kendall's tau-b of the prediction's median and the mean of the answers, within one LLM.",
        "tau of halves: one half of a prompt's answers against the other; noisier than tau, and no bound to it.",
        "Intervals are bootstrap intervals over prompts.",
    ]
    columns = ("asked", "mean", "predicted mean", "median", "predicted median", "tau", "90 % interval", "tau of halves")
    return Table(title, columns, rows, notes)


def _ratio_table(found: ReasoningResult) -> Table:
    rows = [
        (
            corpus,
            f"{ratio.prompts:,}",
            f"{ratio.seen:.2f}",
            f"{ratio.low:.2f} to {ratio.high:.2f}",
            f"{ratio.predicted:.2f}",
            share(ratio.cut["plain"]),
            share(ratio.cut["steps"]),
        )
        for corpus, ratio in found.ratios.items()
    ]
    columns = ("", "prompts", "ratio", "90 % interval", "predicted ratio", "cut, plain", "cut, step by step")
    note = "ratio: length with the sentence over length without, geometric mean over prompts of their mean lengths."
    return Table("How much longer answers become", columns, rows, [note], frozenset({1}))


def _holdings(found: ReasoningResult) -> Table:
    rows = [
        (
            KIND_NAMES[each.asked],
            _seen(each),
            f"x {each.shift:.2f}",
            _pair(each.covered[0.5], each.covered_predicted[0.5]),
            _pair(each.covered[0.9], each.covered_predicted[0.9]),
            _pair(each.above_tail, each.above_tail_predicted),
            _pair(each.cut, each.cut_predicted),
        )
        for each in found.holdings
    ]
    columns = ("asked", "calibrated on", "medians", "in 50 %", "in 90 %", "above 95 %", "at the limit")
    notes = [
        "calibrated on: answers given to online calibration, to other prompts than those evaluated.",
        "In each pair: observed / expected by the predictions; where an interval ends at the limit, more than nominal.",
        "above 95 %: answers longer than the prediction's 95 % quantile. at the limit: answers that reach it.",
    ]
    return Table("Quality of predictions", columns, rows, notes, sections(rows))


def _seen(each: Holding) -> str:
    return "nothing" if each.seen is None else f"{each.observations:,} {KIND_NAMES[each.seen]}"


def _pair(seen: float, predicted: float) -> str:
    return f"{100 * seen:.1f} / {100 * predicted:.1f} %"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


@dataclass(frozen=True)
class ReasoningGrid:
    """The predictor and the answers; without files, the packaged pairs."""

    predictor: str = "default"
    plain: Path | None = None
    """Answers collected with `lengthwise collect`; `steps` has the same prompts, collected with --suffix."""
    steps: Path | None = None
    max_tokens: int = LIMIT
    """The limit under which they are collected."""
    observations: int = 100
    """Answers used for online calibration."""
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.plain is None) != (self.steps is None):
            raise InputError("plain and steps go together", hint="give both files, or neither for the packaged pairs")
        if self.observations < 1:
            raise InputError(f"{self.observations} observations", field="observations", hint="give at least 1")


def measure(run: Run, grid: ReasoningGrid) -> ReasoningResult:
    """Read the pairs, predict and compare."""
    if grid.plain is None or grid.steps is None:
        pairs = load_reasoning()
    else:
        pairs = pair(LengthSamples.read(grid.plain), LengthSamples.read(grid.steps), max_tokens=grid.max_tokens)
    run.report("predictions and calibration", 0.1)
    predictor = load_predictor(grid.predictor)
    return compare(predictor, pairs, name=grid.predictor, observations=grid.observations, seed=grid.seed)


def answer(found: ReasoningResult) -> str:
    """How much longer answers are, what is predicted, and what calibration does to the intervals."""
    ratio = found.ratios["all"]
    times = f"{ratio.seen:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times"
    before, after = found.holding("steps", None).covered[0.9], found.holding("steps", "steps").covered[0.9]
    return (
        f"Asked to think step by step, {found.llm} answers {times} as long; {ratio.predicted:.2f} times is predicted. "
        f"90 % intervals hold {before:.0%} of these answers, {after:.0%} after online calibration on such answers."
    )


STUDY: Study[ReasoningGrid, ReasoningResult] = Study(
    name="reasoning",
    title="Asked to think step by step",
    question="Do predictions hold when the LLM is asked to reason, and does online calibration repair them?",
    paper="CASTILLO leaves it to future work",
    source="packaged answers of SmolLM2, or yours",
    grid=ReasoningGrid(),
    quick=ReasoningGrid(),
    minutes=(0.5, 0.3),
    serial=True,
    measure=measure,
    tables=tables,
    answer=answer,
)
