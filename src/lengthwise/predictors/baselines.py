"""Baselines of every evaluation: constants that ignore the prompt, and the noise ceiling.

The noise ceiling predicts a sample from the other samples of the same prompt; no predictor can do better on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths import fit_logt
from lengthwise.predictors.contract import LogTPredictions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.contract import PredictionInput, Predictions
    from lengthwise.workloads import LengthSamples

    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

CAP: Final = 15_000
"""Tokens at which CASTILLO's answers were cut off."""

_FITTED: Final = 2_000


@runtime_checkable
class RowPredictor(Protocol):
    """Predicts rows of length samples and may read prompt, LLM and corpus: for baselines only."""

    def predict_rows(self, samples: LengthSamples, max_tokens: int = CAP) -> Predictions:
        """Return one prediction for each row, in order."""


@dataclass(frozen=True)
class _Constant:
    mu: float
    sigma: float
    sample_mean: float
    sample_std: float


@dataclass(frozen=True, eq=False)
class ConstantPerLlm:
    """The same prediction for every prompt of an LLM: a log-t fitted to all its clean samples.

    Its sampling mean and std are the medians over the prompts. An unknown LLM gets the constant of all LLMs together.
    """

    by_llm: Mapping[str, _Constant]
    everything: _Constant

    def __repr__(self) -> str:
        return f"ConstantPerLlm({len(self.by_llm)} LLMs)"

    @classmethod
    def fit(cls, samples: LengthSamples) -> ConstantPerLlm:
        """Fit to the clean samples of these rows."""
        by_llm = _fit_groups(samples, [(llm,) for llm in column(samples, "llm")])
        everything = _fit_groups(samples, [()] * len(samples))[()]
        return cls({llm: constant for (llm,), constant in by_llm.items()}, everything)

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return the LLM's constant for each input, whatever its text."""
        found = [self.by_llm.get(each.llm, self.everything) for each in inputs]
        return _predictions(found, np.array([each.cap for each in inputs], np.int64))


@dataclass(frozen=True, eq=False)
class ConstantPerLlmAndCorpus:
    """The same prediction for every prompt of an LLM and a corpus; without such rows, the LLM's constant.

    Requests have no corpus, so this is not a LengthPredictor.
    """

    by_both: Mapping[tuple[str, ...], _Constant]
    per_llm: ConstantPerLlm

    def __repr__(self) -> str:
        return f"ConstantPerLlmAndCorpus({len(self.by_both)} pairs)"

    @classmethod
    def fit(cls, samples: LengthSamples) -> ConstantPerLlmAndCorpus:
        """Fit to the clean samples of these rows."""
        keys = list(zip(column(samples, "llm"), column(samples, "corpus"), strict=True))
        return cls(_fit_groups(samples, keys), ConstantPerLlm.fit(samples))

    def predict_rows(self, samples: LengthSamples, max_tokens: int = CAP) -> Predictions:
        """Return the constant of each row's LLM and corpus."""
        rest = self.per_llm
        found = [
            self.by_both.get((llm, corpus), rest.by_llm.get(llm, rest.everything))
            for llm, corpus in zip(column(samples, "llm"), column(samples, "corpus"), strict=True)
        ]
        return _predictions(found, np.full(len(found), max_tokens))


@dataclass(frozen=True, eq=False)
class Ceiling:
    """A prompt's samples predicted from each other: no prediction from the prompt alone can do better on average.

    One half of the clean samples (every other one) is the prediction, the rest is the truth; NaN where a half is
    empty. Both sides have sampling noise, so the mean of all samples can be predicted better than this.
    """

    mean: Floats
    std: Floats
    true_mean: Floats
    true_std: Floats
    from_the_others: Floats
    """(rows, samples): |a sample - the mean of the other clean ones|; NaN where it is not clean."""
    crps: Floats
    """Of one sample under the distribution of the others: half the mean difference between two samples."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64], clean: Mask) -> Ceiling:
        """Split each row's clean samples."""
        odd = clean & (np.cumsum(clean, axis=1) % 2 == 1)
        even = clean & ~odd
        mean, std = clean_moments(lengths, odd)
        true_mean, true_std = clean_moments(lengths, even)
        return cls(mean, std, true_mean, true_std, _from_the_others(lengths, clean), _half_difference(lengths, clean))


def clean_moments(lengths: NDArray[np.int64], clean: Mask) -> tuple[Floats, Floats]:
    """Mean and (population) std of each row's clean samples; NaN where none is, and a std of one sample."""
    count = clean.sum(axis=1)
    mean = _divide(np.where(clean, lengths, 0).sum(axis=1), count)
    deviation = np.where(clean, lengths - np.where(count > 0, mean, 0.0)[:, None], 0.0)
    std = np.sqrt(_divide((deviation**2).sum(axis=1), count))
    return mean, np.where(count > 1, std, np.nan)


def column(samples: LengthSamples, name: str) -> NDArray[np.object_]:
    """A text column as an array of strings."""
    return np.array(samples.table[name].to_pylist(), object)


def _fit_groups(samples: LengthSamples, keys: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], _Constant]:
    lengths, clean = samples.lengths_matrix(), samples.clean_mask()
    mean, std = clean_moments(lengths, clean)
    rows: dict[tuple[str, ...], list[int]] = {}
    for row in np.flatnonzero(clean.any(axis=1)).tolist():
        rows.setdefault(keys[row], []).append(row)
    if not rows:
        raise InputError("holds no clean sample to fit a constant to", source=samples.origin, field="lengths")
    return {key: _constant(lengths[of][clean[of]], mean[of], std[of]) for key, of in rows.items()}


def _constant(lengths: NDArray[np.int64], mean: Floats, std: Floats) -> _Constant:
    prediction = fit_logt(_thinned(lengths))
    known = std[np.isfinite(std)]
    return _Constant(
        prediction.mu, prediction.sigma, float(np.median(mean)), float(np.median(known)) if len(known) else 0.0
    )


def _thinned(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """At most _FITTED of the lengths, evenly spaced in sorted order: the same distribution, fitted quickly."""
    ordered = np.sort(lengths)
    if len(ordered) <= _FITTED:
        return ordered
    return ordered[((np.arange(_FITTED) + 0.5) * len(ordered) / _FITTED).astype(np.intp)]


def _predictions(constants: Sequence[_Constant], cap: NDArray[np.int64]) -> LogTPredictions:
    table = np.array([(c.mu, c.sigma, c.sample_mean, c.sample_std) for c in constants]).reshape(-1, 4)
    return LogTPredictions.of(table[:, 0], table[:, 1], cap, sample_mean=table[:, 2], sample_std=table[:, 3])


def _from_the_others(lengths: NDArray[np.int64], clean: Mask) -> Floats:
    kept = np.where(clean, lengths, 0)
    others = clean.sum(axis=1, keepdims=True) - 1
    mean = _divide(kept.sum(axis=1, keepdims=True) - kept, np.broadcast_to(others, kept.shape))
    return np.where(clean, np.abs(lengths - mean), np.nan)


def _half_difference(lengths: NDArray[np.int64], clean: Mask) -> Floats:
    """Half the mean |x - y| over pairs of different samples, from the sorted row in one pass."""
    count = clean.sum(axis=1)
    ordered = np.sort(np.where(clean, lengths.astype(np.float64), np.inf), axis=1)
    place = np.arange(lengths.shape[1])
    weight = 2 * place + 1 - count[:, None]
    inside = place < count[:, None]
    pairs = np.where(inside, weight * np.where(inside, ordered, 0.0), 0.0).sum(axis=1)
    return _divide(pairs, count * (count - 1))


def _divide(top: NDArray[np.number], bottom: NDArray[np.number]) -> Floats:
    ratio: Floats = np.full(np.shape(top), np.nan)
    np.divide(top, bottom, out=ratio, where=np.asarray(bottom) > 0)
    return ratio
