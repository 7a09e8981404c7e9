"""What several networks predict together, as targets for one student. NumPy only.

A teacher that was trained on a prompt mostly repeats its labels; one that was not says what can be told from the
prompt. `oof` (out of fold) is the share of the latter in a target, where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lengthwise.predictors.encoder.readout import log_sigma, places_and_spreads
from lengthwise.training.encoder import student_t
from lengthwise.training.encoder.metrics import as_row, score
from lengthwise.training.encoder.pack import ELSEWHERE, HELD_OUT, TEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lengthwise.training.encoder.pack import Pack

    Array = NDArray[Any]

_LEAST_SAMPLES: Final = 50


@dataclass(frozen=True, eq=False)
class Member:
    """One network's outputs (P, L + 1, 4) and which prompts it was trained on."""

    outputs: Array
    saw: NDArray[np.bool_]


def average(members: Sequence[Member]) -> Array:
    """The plain mean of the outputs, log sigma bounded: what an ensemble would serve."""
    return np.asarray(np.mean([_bounded(member.outputs) for member in members], axis=0))


def soft_targets(members: Sequence[Member], pack: Pack, *, oof: float = 0.5, disagreement: float = 1.0) -> Array:
    """Targets (P, L, 4): places are means; spreads are honest ones, widened where members disagree.

    Members' sigmas are scaled per LLM, then per corpus, so that lengths of prompts they were not trained on fall into
    the central intervals as often as they should: a student then learns from the text where it must be modest.
    """
    said = np.stack([_bounded(member.outputs) for member in members])[:, :, :-1]
    fresh = np.stack([~member.saw for member in members])[:, :, None]
    apart = _mean_where(said, fresh)
    together = np.nanmean(said, axis=0)
    blend = np.where(np.isfinite(apart), oof * apart + (1 - oof) * together, together)
    sigma = np.exp(np.where(np.isfinite(apart[..., 1]), apart[..., 1], together[..., 1]))
    mu = np.where(np.isfinite(apart[..., 0]), apart[..., 0], together[..., 0])
    seen = np.flatnonzero(fresh.any(axis=(0, 2)) & (pack.lengths > 0).any(axis=(1, 2)))
    honest = sigma * sigma_factors(mu, sigma, pack, seen)
    honest = honest * corpus_factors(mu, honest, pack, seen)[pack.corpus][:, None]
    honest = np.sqrt(honest**2 + disagreement * said[..., 0].var(axis=0))
    return np.stack([blend[..., 0], np.log(honest), blend[..., 2], blend[..., 3]], axis=-1)


def sigma_factors(mu: Array, sigma: Array, pack: Pack, prompts: Array) -> Array:
    """Per LLM, the factor on sigma at which 50 and 90 % intervals hold what they say (the mean of both)."""
    return np.array([_factor(mu, sigma, pack, prompts, slice(n, n + 1)) for n in range(len(pack.llms))])


def corpus_factors(mu: Array, sigma: Array, pack: Pack, prompts: Array) -> Array:
    """The same per corpus over all LLMs; one more, the largest, for texts of no corpus (number -1)."""
    by_corpus = [prompts[pack.corpus[prompts] == number] for number in range(len(pack.corpora))]
    factors = [_factor(mu, sigma, pack, some, slice(0, len(pack.llms))) for some in by_corpus]
    return np.array([*factors, max(factors)])


def _factor(mu: Array, sigma: Array, pack: Pack, prompts: Array, llms: slice) -> float:
    lengths = pack.lengths[prompts, llms].astype(np.float64)
    here = (lengths > 0) & ~pack.censored[prompts, llms]
    if here.sum() < _LEAST_SAMPLES:
        return 1.0
    t = np.abs(np.log(np.maximum(lengths, 1.0)) - mu[prompts, llms, None]) / sigma[prompts, llms, None]
    needed = [np.quantile(t[here], level) / student_t.quantile(0.5 + level / 2) for level in (0.5, 0.9)]
    return float(np.mean(needed))


def scores_of(outputs: Array, pack: Pack, leave_out: tuple[str, ...] = ("SmolLM2",)) -> dict[str, Any]:
    """Held-out, test and other corpora's scores, before and after the sigma factors of the held-out prompts."""
    mu, said = places_and_spreads(outputs, "logt")
    sigma = np.asarray(said)
    here = np.isfinite(mu[:, 0])
    scaled = sigma[:, :-1] * sigma_factors(mu, sigma, pack, np.flatnonzero((pack.part == HELD_OUT) & here))
    rows = {}
    for label, part in (("held_out", HELD_OUT), ("test", TEST), ("alpaca", ELSEWHERE)):
        prompts = np.flatnonzero((pack.part == part) & here)
        if len(prompts) > 3:
            raw, fair = (as_row(score(mu, s, pack, prompts, leave_out=leave_out)) for s in (sigma, scaled))
            rows[label] = {**raw, "calibrated": [fair["cover0.5"], fair["cover0.9"]]}
    return rows


def _bounded(outputs: Array) -> Array:
    said = outputs.astype(np.float64)
    said[..., 1] = log_sigma(said[..., 1])
    return said


def _mean_where(values: Array, where: NDArray[np.bool_]) -> Array:
    """Mean over members that count; NaN where none does."""
    weight = where[..., None].astype(np.float64)
    count = weight.sum(axis=0)
    total = (values * weight).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, total / count, np.nan))
