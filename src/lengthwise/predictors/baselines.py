"""Baselines of every evaluation: constants that ignore the prompt, and the noise ceiling.

The noise ceiling predicts a sample from the other samples of the same prompt; no predictor can do better on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import fit_logt
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.traffic.scores import moments

if TYPE_CHECKING:
    from lengthwise.workloads import LengthSamples

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CAP: Final = 15_000
"""Tokens at which CASTILLO's answers were cut off."""

_FITTED: Final = 2_000


@dataclass(frozen=True)
class _Constant:
    mu: float
    sigma: float
    sample_mean: float
    sample_std: float


@dataclass(frozen=True, eq=False)
class ConstantPredictor:
    """The same prediction for every prompt of an LLM, or of an LLM and a corpus: a log-t fitted to its clean samples.

    Its sampling mean and std are the medians over the prompts. An unknown corpus gets the constant of its LLM, an
    unknown LLM that of all LLMs together. Requests have no corpus, so this predicts rows of length samples only.
    """

    constants: Mapping[tuple[str, ...], _Constant]
    """By (LLM, corpus), by (LLM,), and by () for all."""

    def __repr__(self) -> str:
        return f"ConstantPredictor({len(self.constants)} constants)"

    @classmethod
    def fit(cls, samples: LengthSamples, *, by_corpus: bool = False) -> ConstantPredictor:
        """Fit to the clean samples of these rows."""
        lengths, clean = samples.lengths_matrix(), samples.clean_mask()
        mean, std = moments(lengths, clean)
        rows: dict[tuple[str, ...], list[int]] = {}
        keys = _keys(samples)
        for row in np.flatnonzero(clean.any(axis=1)).tolist():
            for size in range(3 if by_corpus else 2):
                rows.setdefault(keys[row][:size], []).append(row)
        if not rows:
            raise InputError("holds no clean sample to fit a constant to", source=samples.origin, field="lengths")
        return cls({key: _constant(lengths[of][clean[of]], mean[of], std[of]) for key, of in rows.items()})

    def predict_rows(self, samples: LengthSamples, max_tokens: int = CAP) -> LogTPredictions:
        """Return the constant of each row, in order."""
        known = self.constants
        found = [known.get(key) or known.get(key[:1]) or known[()] for key in _keys(samples)]
        table = np.array([(c.mu, c.sigma, c.sample_mean, c.sample_std) for c in found]).reshape(-1, 4)
        return LogTPredictions.of(table[:, 0], table[:, 1], max_tokens, sample_mean=table[:, 2], sample_std=table[:, 3])


def _keys(samples: LengthSamples) -> list[tuple[str, str]]:
    return list(zip(column(samples, "llm"), column(samples, "corpus"), strict=True))


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
        mean, std = moments(lengths, odd)
        true_mean, true_std = moments(lengths, even)
        return cls(mean, std, true_mean, true_std, _from_the_others(lengths, clean), _half_difference(lengths, clean))


def column(samples: LengthSamples, name: str) -> NDArray[np.object_]:
    """A text column as an array of strings."""
    return np.array(samples.table[name].to_pylist(), object)


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
