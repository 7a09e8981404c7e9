"""Evaluation of a predictor on length samples, beside two constants and the noise ceiling: `lengthwise evaluate`.

Degenerate samples are excluded by CASTILLO's rule, except in `raw_mae_mean`. A prompt's point prediction is the
sampling mean where the predictor has one, else the prediction's median; tau is always of the median.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.predictors.baselines import CAP, Ceiling, ConstantPredictor, column
from lengthwise.predictors.contract import (
    LearningPredictor,
    LengthPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
    as_logt,
)
from lengthwise.predictors.resolve import CONSTANTS, parse_predictor_spec, resolve_predictor
from lengthwise.prefixes import hash_text
from lengthwise.traffic import scores
from lengthwise.traffic.scores import Forecast, PredictionScores

if TYPE_CHECKING:
    from lengthwise.workloads import LengthSamples

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

PREDICTED_GROUPS: Final = 6
"""Groups of rows by predicted median, of about equal size."""
PER_LLM: Final = "constant per LLM"
PER_BOTH: Final = "constant per LLM and corpus"
CEILING: Final = "noise ceiling"


@dataclass(frozen=True)
class Breakdown:
    """Scores over all rows, by LLM, by corpus and by the median that the predictor under test returns."""

    overall: PredictionScores
    by_llm: Mapping[str, PredictionScores]
    by_corpus: Mapping[str, PredictionScores]
    by_predicted: Mapping[str, PredictionScores]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of an evaluation; `predicted` and `true` are the points of the scatter plot."""

    predictor: str
    origin: str
    rows: int
    left_out: int
    """Rows without any clean sample."""
    degenerate: float
    """Share of samples left out."""
    constants_from: str
    subjects: Mapping[str, Breakdown]
    """The predictor under its name, then the two constants and the noise ceiling."""
    calibration: Mapping[float, float]
    """Nominal share of a central interval -> share of single clean samples inside."""
    predicted: Floats
    true: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the points of the plot, as plain values."""
        drawn = ("predicted", "true")
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in drawn}
        return plain | {"subjects": {name: asdict(found) for name, found in self.subjects.items()}}


@dataclass(frozen=True, eq=False)
class _Truth:
    llm: NDArray[np.object_]
    corpus: NDArray[np.object_]
    lengths: NDArray[np.int64]
    clean: NDArray[np.bool_]
    mean: Floats

    @classmethod
    def of(cls, samples: LengthSamples) -> _Truth:
        lengths, clean = samples.lengths_matrix(), samples.clean_mask()
        return cls(column(samples, "llm"), column(samples, "corpus"), lengths, clean, scores.moments(lengths, clean)[0])

    def groups(self, by: NDArray[np.object_]) -> Iterator[tuple[str, Rows]]:
        for name in sorted(set(by.tolist())):
            yield name, np.flatnonzero(by == name)


def evaluate(
    predictor: LengthPredictor | ConstantPredictor,
    samples: LengthSamples,
    *,
    name: str = "predictor",
    reference: LengthSamples | None = None,
    max_tokens: int = CAP,
    batch: int = 256,
    progress: Callable[[str, float], None] | None = None,
) -> Evaluation:
    """Score a predictor and the baselines on every row.

    `reference` are rows of other prompts (train and validate) that the constants are fitted to;
    without it they are fitted to the evaluated rows themselves, which favours them.
    `max_tokens` is the limit the samples were drawn under.
    """
    truth = _Truth.of(samples)
    fitted = samples if reference is None else reference
    per_llm, per_both = (ConstantPredictor.fit(fitted, by_corpus=by_corpus) for by_corpus in (False, True))
    forecasts = {}
    for label, each in ((name, predictor), (PER_LLM, per_llm), (PER_BOTH, per_both)):
        report = None if progress is None else partial(progress, label)
        forecasts[label] = forecast(each, samples, max_tokens=max_tokens, batch=batch, progress=report)
    breakdown = partial(_breakdown, truth, _predicted_groups(forecasts[name].median))
    subjects = {label: breakdown(partial(_score, truth, found)) for label, found in forecasts.items()}
    ceiling = Ceiling.of(truth.lengths, truth.clean)
    subjects[CEILING] = breakdown(partial(_score_ceiling, truth, ceiling))
    return Evaluation(
        predictor=name,
        origin=samples.origin,
        rows=len(samples),
        left_out=int((~truth.clean.any(axis=1)).sum()),
        degenerate=float(1.0 - truth.clean.mean()),
        constants_from="the evaluated rows themselves" if reference is None else f"{len(fitted):,} other rows",
        subjects=subjects,
        calibration=scores.calibration(forecasts[name], truth.lengths, truth.clean),
        predicted=forecasts[name].point,
        true=truth.mean,
    )


def _predicted_groups(median: Floats) -> dict[str, Rows]:
    """Return rows by predicted median, rising; equal medians stay in one group."""
    inner = np.quantile(median, np.arange(1, PREDICTED_GROUPS) / PREDICTED_GROUPS)
    group = np.searchsorted(inner, median)
    parts = [np.flatnonzero(group == each) for each in np.unique(group)]
    return {f"{median[rows].min():,.0f} to {median[rows].max():,.0f} tokens": rows for rows in parts}


def _breakdown(truth: _Truth, predicted: Mapping[str, Rows], score: Callable[[Rows], PredictionScores]) -> Breakdown:
    return Breakdown(
        overall=score(np.arange(len(truth.llm))),
        by_llm={name: score(rows) for name, rows in truth.groups(truth.llm)},
        by_corpus={name: score(rows) for name, rows in truth.groups(truth.corpus)},
        by_predicted={name: score(rows) for name, rows in predicted.items()},
    )


def _score(truth: _Truth, found: Forecast, rows: Rows) -> PredictionScores:
    part, lengths = found.take(rows), truth.lengths[rows]
    scored = scores.score_predictions(part, lengths, present=truth.clean[rows], llms=truth.llm[rows])
    return replace(scored, raw_mae_mean=scores.mae(part.point, lengths.mean(axis=1)))


def _score_ceiling(truth: _Truth, ceiling: Ceiling, rows: Rows) -> PredictionScores:
    """Half of a prompt's samples against the other half; a single sample against all the others."""
    mean, true = ceiling.mean[rows], ceiling.true_mean[rows]
    return PredictionScores(
        rows=int((np.isfinite(mean) & np.isfinite(true)).sum()),
        samples=int(truth.clean[rows].sum()),
        mae_mean=scores.mae(mean, true),
        mse_mean=scores.mse(mean, true),
        mae_std=scores.mae(ceiling.std[rows], ceiling.true_std[rows]),
        mse_std=scores.mse(ceiling.std[rows], ceiling.true_std[rows]),
        mae=scores.mean(ceiling.from_the_others[rows]),
        tau=scores.tau_within(truth.llm[rows], mean, true),
        r2_log=scores.r2_log(mean, true),
        crps=scores.mean(ceiling.crps[rows]),
    )


def forecast(
    predictor: LengthPredictor | ConstantPredictor,
    samples: LengthSamples,
    *,
    max_tokens: int = CAP,
    batch: int = 256,
    progress: Callable[[float], None] | None = None,
) -> Forecast:
    """Predict every row, in batches of texts of similar length (less padding).

    One that learns predicts the rows in a fixed random order, each from one clean length of every row before it.
    """
    if isinstance(predictor, LearningPredictor):
        return _forecast_online(predictor, samples, max_tokens, progress)
    if isinstance(predictor, ConstantPredictor):
        return _forecast_of(predictor.predict_rows(samples, max_tokens))
    inputs = prediction_inputs(samples, max_tokens)
    order = np.argsort([len(each.text) for each in inputs], kind="stable")
    parts = []
    for start in range(0, len(order), batch):
        parts.append(_forecast_of(predictor.predict([inputs[i] for i in order[start : start + batch]])))
        if progress is not None:
            progress(min(1.0, (start + batch) / len(order)))
    return Forecast.joined(parts).take(np.argsort(order))


def _forecast_of(predictions: Predictions) -> Forecast:
    """Return the forecast of answers asked for alone: a row is one prompt, not one of many of its kind."""
    predictions = predictions.marginal() if isinstance(predictions, LogTPredictions) else predictions
    return Forecast.of(predictions, mean=predictions.sample_mean, std=predictions.sample_std)


def _forecast_online(
    predictor: LearningPredictor,
    samples: LengthSamples,
    max_tokens: int,
    progress: Callable[[float], None] | None,
) -> Forecast:
    inputs = [replace(each, blocks=hash_text(each.text)) for each in prediction_inputs(samples, max_tokens)]
    lengths, clean = samples.lengths_matrix(), samples.clean_mask()
    order = np.random.default_rng(0).permutation(len(inputs))
    mu, sigma, mean, std = np.empty((4, len(inputs)))
    for number, row in enumerate(order.tolist()):
        found = as_logt(predictor.predict([inputs[row]]))
        mu[row], sigma[row] = found.mu[0], found.sigma[0]
        mean[row], std[row] = found.sample_mean[0], found.sample_std[0]
        if clean[row].any():
            tokens = int(lengths[row][clean[row]][0])
            predictor.observe(inputs[row], tokens, censored=tokens >= max_tokens)
        if progress is not None and number % 256 == 0:
            progress(number / len(order))
    return _forecast_of(LogTPredictions.of(mu, sigma, max_tokens, sample_mean=mean, sample_std=std))


def prediction_inputs(samples: LengthSamples, max_tokens: int | None = CAP) -> list[PredictionInput]:
    """Return each row as a PredictionInput."""
    texts, llms = column(samples, "prompt"), column(samples, "llm")
    if not len(samples):
        raise InputError("holds no rows to predict", source=samples.origin)
    if any(text is None for text in texts):
        raise InputError(
            "a row has no prompt", source=samples.origin, field="prompt", hint="give texts to predict from"
        )
    tokens = samples.table["input_tokens"].to_pylist()
    return [
        PredictionInput(text, llm, max_tokens, prompt_tokens)
        for text, llm, prompt_tokens in zip(texts, llms, tokens, strict=True)
    ]


TEST: Final = "test"


def evaluated_rows(samples: LengthSamples, split: str | None) -> tuple[LengthSamples, LengthSamples | None]:
    """Return the rows of `split` and those of the other splits; without splits, all rows and None.

    `split` None means `test` where there is one. A prompt is in one split only, so constants fitted to the other
    rows have not seen the evaluated prompts.
    """
    if split is None and TEST not in samples.splits:
        return samples, None
    chosen = samples.where(split=TEST if split is None else split)
    others = [name for name in samples.splits if name not in chosen.splits]
    return chosen, samples.where(split=others) if others else None


def evaluated_predictor(name: str, fit_on: LengthSamples | None) -> LengthPredictor | ConstantPredictor:
    """Return the predictor of this name; `constant` and `constant-corpus` are fitted to the rows `fit_on`."""
    spec = parse_predictor_spec(name)
    if spec.kind in CONSTANTS and fit_on is not None and len(fit_on):
        return ConstantPredictor.fit(fit_on, by_corpus=spec.kind != "constant")
    return resolve_predictor(spec)


def run(
    predictor: str,
    samples: LengthSamples,
    *,
    split: str | None = None,
    llm: Collection[str] | None = None,
    corpus: Collection[str] | None = None,
    limit: int | None = None,
    max_tokens: int = CAP,
    progress: Callable[[str, float], None] | None = None,
) -> Evaluation:
    """Evaluate a predictor by name on the rows of these LLMs and corpora that are in `split`.

    `limit` evaluates at most so many rows, evenly spread over all of them: for predictors that take seconds per prompt.
    """
    rows, reference = evaluated_rows(samples.where(llm=llm or None, corpus=corpus or None), split)
    if not len(rows):
        raise InputError("no rows left to evaluate on", source=samples.origin, hint="give fewer conditions")
    if limit is not None and limit < len(rows):
        chosen = (np.arange(limit) * len(rows) // limit).tolist()
        rows = replace(rows, table=rows.table.take(chosen))
    found = evaluated_predictor(predictor, reference)
    return evaluate(found, rows, name=predictor, reference=reference, max_tokens=max_tokens, progress=progress)
