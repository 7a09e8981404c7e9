"""Scores of a network's outputs on held-out prompts, and targets for a student from the outputs of several networks.

A teacher trained on a prompt mostly repeats its labels; the output of one that was not (out of fold, `oof`) depends on
the text only. The scores guide training; the figures on a model's card come from the served file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lengthwise.lengths import LogTColumns
from lengthwise.predictors.encoder import log_sigma
from lengthwise.traffic.scores import Forecast, average, score_predictions
from lengthwise.training.encoder.losses import LOG_T, NU, HeadKind
from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST, Pack

Array = NDArray[Any]

_MIN_SAMPLES: Final = 50
_LEVELS = (0.5, 0.9)
_UNSCORED: Final = ("SmolLM2",)


def score(
    mu: Array,
    sigma: Array | None,
    pack: Pack,
    prompts: NDArray[np.int64],
    *,
    leave_out: tuple[str, ...] = (),
    nu: float = NU,
) -> dict[str, float]:
    """Score medians exp(mu) and spreads (P, LLMs or more) of these prompts, within each LLM with lengths for them.

    Returns means over LLMs, rounded: tau, mae, and the coverage of the central intervals. LLMs whose names contain one
    of `leave_out` and those with fewer than three prompts are not scored.
    """
    parts = []
    for number, llm in enumerate(pack.llms):
        lengths = pack.lengths[prompts, number]
        here = np.flatnonzero((lengths > 0).any(1))
        if len(here) < 3 or any(part in llm for part in leave_out):
            continue
        medians = mu[prompts[here], number].astype(np.float64)
        if sigma is None:
            forecast = Forecast.of_intervals(np.exp(medians), {})
        else:
            spreads, caps = sigma[prompts[here], number].astype(np.float64), np.full(len(here), np.inf)
            forecast = Forecast.of(LogTColumns(medians, spreads, caps, nu), crps=False)
        parts.append(score_predictions(forecast, lengths[here], present=lengths[here] > 0))
    mean = average(parts)
    found = {"tau": round(mean.tau, 4), "mae": round(mean.mae_median, 1)}
    if sigma is not None and parts:
        found |= {"cover0.5": round(mean.coverage_50, 3), "cover0.9": round(mean.coverage_90, 3)}
    return found


@dataclass(frozen=True, eq=False)
class Member:
    """Outputs of one network (P, L + 1, 4) and the mask of the prompts it was trained on."""

    outputs: Array
    saw: NDArray[np.bool_]


def soft_targets(members: Sequence[Member], pack: Pack, *, oof: float = 0.5, disagreement: float = 1.0) -> Array:
    """Return targets (P, L, 4): locations are means, spreads are calibrated and widened where members disagree.

    Sigmas are scaled per LLM, then per corpus, so that the central intervals cover the lengths of prompts outside the
    training folds at their nominal rate. `oof` is the weight of out-of-fold outputs in a mean, where there are any.
    """
    outputs = np.stack([_bounded(member.outputs) for member in members])[:, :, :-1]
    fresh = np.stack([~member.saw for member in members])[:, :, None]
    fresh_mean = _mean_where(outputs, fresh)
    mean = np.nanmean(outputs, axis=0)
    blend = np.where(np.isfinite(fresh_mean), oof * fresh_mean + (1 - oof) * mean, mean)
    sigma = np.exp(np.where(np.isfinite(fresh_mean[..., 1]), fresh_mean[..., 1], mean[..., 1]))
    mu = np.where(np.isfinite(fresh_mean[..., 0]), fresh_mean[..., 0], mean[..., 0])
    seen = np.flatnonzero(fresh.any(axis=(0, 2)) & (pack.lengths > 0).any(axis=(1, 2)))
    spread = sigma * sigma_factors(mu, sigma, pack, seen)
    spread = spread * corpus_factors(mu, spread, pack, seen)[pack.corpus][:, None]
    spread = np.sqrt(spread**2 + disagreement * outputs[..., 0].var(axis=0))
    return np.stack([blend[..., 0], np.log(spread), blend[..., 2], blend[..., 3]], axis=-1)


def sigma_factors(mu: Array, sigma: Array, pack: Pack, prompts: Array) -> Array:
    """Return, per LLM, the factor on sigma at which 50 and 90 % intervals cover 50 and 90 % (the mean of both)."""
    return np.array([_factor(mu, sigma, pack, prompts, slice(n, n + 1)) for n in range(len(pack.llms))])


def corpus_factors(mu: Array, sigma: Array, pack: Pack, prompts: Array) -> Array:
    """Return the same per corpus over all LLMs, and last the largest, for texts of no corpus (number -1)."""
    by_corpus = [prompts[pack.corpus[prompts] == number] for number in range(len(pack.corpora))]
    factors = [_factor(mu, sigma, pack, some, slice(0, len(pack.llms))) for some in by_corpus]
    return np.array([*factors, max(factors)])


def _factor(mu: Array, sigma: Array, pack: Pack, prompts: Array, llms: slice) -> float:
    lengths = pack.lengths[prompts, llms].astype(np.float64)
    here = (lengths > 0) & ~pack.censored[prompts, llms]
    if here.sum() < _MIN_SAMPLES:
        return 1.0
    t = np.abs(np.log(np.maximum(lengths, 1.0)) - mu[prompts, llms, None]) / sigma[prompts, llms, None]
    needed = [np.quantile(t[here], level) / stats.t.ppf(0.5 + level / 2, NU) for level in _LEVELS]
    return float(np.mean(needed))


def scores_of(outputs: Array, pack: Pack, kind: HeadKind = LOG_T) -> dict[str, Any]:
    """Return scores on held-out, test and other corpora of a head of this kind, without those of SmolLM2.

    Where it predicts a spread, `calibrated` has the coverage after the sigma factors of the held-out prompts.
    """
    mu, sigma = kind.places_and_spreads(outputs)
    here = np.isfinite(mu[:, 0])
    held = np.flatnonzero((pack.part == HELD_OUT) & here)
    scaled = None if sigma is None else sigma[:, :-1] * sigma_factors(mu, sigma, pack, held)
    rows: dict[str, Any] = {}
    for label, part in (("held_out", HELD_OUT), ("test", TEST), ("alpaca", ELSEWHERE)):
        prompts = np.flatnonzero((pack.part == part) & here)
        if len(prompts) > 3:
            rows[label] = score(mu, sigma, pack, prompts, leave_out=_UNSCORED)
        if len(prompts) > 3 and scaled is not None:
            calibrated = score(mu, scaled, pack, prompts, leave_out=_UNSCORED)
            rows[label]["calibrated"] = [calibrated["cover0.5"], calibrated["cover0.9"]]
    return rows


def _bounded(outputs: Array) -> Array:
    bounded = outputs.astype(np.float64)
    bounded[..., 1] = log_sigma(bounded[..., 1])
    return bounded


def _mean_where(values: Array, where: NDArray[np.bool_]) -> Array:
    """Mean over the members that `where` selects; NaN where it selects none."""
    weight = where[..., None].astype(np.float64)
    count = weight.sum(axis=0)
    total = (values * weight).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, total / count, np.nan))
