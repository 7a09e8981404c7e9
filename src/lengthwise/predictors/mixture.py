"""A new LLM as a mixture of known ones, from a few of its own lengths.

With mu_l and sigma_l what a predictor predicts of the prompt for known LLM l, and y the log of a length:

    y = shift + sum_l weight_l * mu_l + tilt(kind) + factor * sigma * T,    sigma = prod_l sigma_l ^ likeness_l

with T Student-t and `tilt` linear in what kind of prompt it is. `likeness` is what the names say (`identity`), and
where the weights start: they are drawn to it, and the tilt to 0, by ridges whose strengths the lengths choose. Ridges
of several strengths are fitted by penalised likelihood, in which an answer cut off is "longer than"; each counts by how
likely it makes the lengths of prompts it has not seen, so that a hundred lengths of an LLM like no other move the
weights far, and those of one like its family hardly at all. The factor is split conformal on the errors for unseen
prompts, which are not too small as those of the fit would be.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from lengthwise.predictors.calibration import fit_calibration
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.llm_names import identify

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

STRENGTHS: Final = tuple(
    (weights, tilt) for weights in (3.0, 10.0, 30.0, 100.0, 1000.0) for tilt in (3.0, 30.0, 1000.0)
)
"""Of the ridges on weights and tilt: at s, moving one weight by 1 must make the lengths likelier by s/2 in logs."""
FOLDS: Final = 10
_OF_ALL: Final = 0.2
"""Share of the likeness that goes to LLMs of other families too."""
_LOG_SCALES: Final = (-3.0, 3.0)
"""A few lengths that follow a rule by chance do not make an LLM follow it to the token."""
_MOST_ODD: Final = 3.0
"""Standard deviations of a kind's number beyond which it says no more."""
_BY_PROMPT: Final = ("mu", "sigma", "kinds", "lengths", "present", "censored")


@dataclass(frozen=True, eq=False)
class Answers:
    """What a predictor predicts of n prompts for L known LLMs, and up to k lengths of the new LLM's answers to each."""

    mu: Floats
    """(n, L)"""
    sigma: Floats
    """(n, L)"""
    kinds: Floats
    """(n, kinds)"""
    lengths: Floats
    """(n, k)"""
    present: Mask
    """(n, k): there is such an answer."""
    censored: Mask
    """(n, k): it was cut off, and is at least that long."""
    nu: float

    def __len__(self) -> int:
        return len(self.mu)

    def take(self, prompts: NDArray[Any]) -> Answers:
        """Some of the prompts."""
        return replace(self, **{name: getattr(self, name)[prompts] for name in _BY_PROMPT})


@dataclass(frozen=True, eq=False)
class Tilt:
    """Weights of the numbers of a kind, in standard deviations from the mean of the prompts learned from."""

    weights: Floats
    centre: Floats
    spread: Floats

    @classmethod
    def of(cls, kinds: Floats) -> Tilt:
        """None yet, with the units of these prompts."""
        return cls(np.zeros(kinds.shape[1]), kinds.mean(axis=0), kinds.std(axis=0) + 1e-3)

    def units(self, kinds: Floats) -> Floats:
        """(n, kinds), of length 1 for an average prompt."""
        units = np.clip((kinds - self.centre) / self.spread, -_MOST_ODD, _MOST_ODD)
        return np.asarray(units / np.sqrt(len(self.centre)))


@dataclass(frozen=True, eq=False)
class Mixture:
    """mu = shift + sum of weight * mu + tilt; sigma = factor * product of sigma ^ likeness."""

    weights: Floats
    likeness: Floats
    shift: float
    factor: float
    tilt: Tilt

    def apply(self, mu: Floats, sigma: Floats, kinds: Floats) -> tuple[Floats, Floats]:
        """Mu and sigma of the new LLM from those of the known ones (n, L) and the kinds of the prompts."""
        moved = self.shift + mu @ self.weights + self.tilt.units(kinds) @ self.tilt.weights
        return moved, self.factor * np.exp(np.log(sigma) @ self.likeness)


def likeness(llm: str, known: Sequence[str]) -> Floats:
    """How much of each known LLM there is in a new one by their names: its family's, else everyone's; sums to 1."""
    if llm in known:
        return np.array([float(each == llm) for each in known])
    family = identify(llm).family
    same = np.array([float(family is not None and identify(each).family == family) for each in known])
    everyone = np.full(len(known), 1.0 / len(known))
    return (1 - _OF_ALL) * same / same.sum() + _OF_ALL * everyone if same.any() else everyone


def fit_mixture(answers: Answers, like: Floats, *, folds: int = FOLDS, seed: int = 0) -> Mixture:
    """Fit to the lengths of at least 10 prompts."""
    sigma = np.exp(np.log(answers.sigma) @ like)
    tilt = Tilt.of(answers.kinds)
    columns = np.hstack([answers.mu, tilt.units(answers.kinds)])
    start = np.concatenate([like, tilt.weights])
    fold = np.random.default_rng(seed).permutation(len(answers)) % min(folds, len(answers))
    unseen = np.empty((len(STRENGTHS), len(answers)))
    surprise = np.zeros(len(STRENGTHS))
    for number in range(fold.max() + 1):
        own, rest = fold == number, fold != number
        problem = _Problem.of(answers.take(rest), columns[rest], sigma[rest], start)
        for place, (on_weights, on_tilt) in enumerate(STRENGTHS):
            found = problem.solve(np.where(np.arange(len(start)) < len(like), on_weights, on_tilt))
            unseen[place, own] = found.shift + columns[own] @ found.weights
            surprise[place] += _surprise(answers.take(own), unseen[place, own], sigma[own] * found.scale)
    trust = np.exp(surprise.min() - surprise)
    trust /= trust.sum()
    whole = _Problem.of(answers, columns, sigma, start)
    fits = [whole.solve(np.where(np.arange(len(start)) < len(like), a, b)) for a, b in STRENGTHS]
    weights = np.asarray(trust @ np.array([fit.weights for fit in fits]))
    shift = float(trust @ np.array([fit.shift for fit in fits]))
    predictions = LogTPredictions.of(trust @ unseen, sigma, np.inf, nu=answers.nu)
    told = fit_calibration(
        predictions, [""] * len(answers), answers.lengths, answers.present, censored=answers.censored
    )
    learned = replace(tilt, weights=weights[len(like) :])
    return Mixture(weights[: len(like)], like, shift + told.others.shift, told.others.factor, learned)


@dataclass(frozen=True, eq=False)
class _Fit:
    weights: Floats
    shift: float
    scale: float


@dataclass(frozen=True, eq=False)
class _Problem:
    """One row per length: its log less what the start alone says, as a sum of columns."""

    y: Floats
    sigma: Floats
    columns: Floats
    weight: Floats
    censored: Mask
    centre: Floats
    start: Floats
    nu: float

    @classmethod
    def of(cls, answers: Answers, columns: Floats, sigma: Floats, start: Floats) -> _Problem:
        row, place = np.nonzero(answers.present)
        centre = columns.mean(axis=0)
        logs = np.log(np.maximum(answers.lengths, 1.0))[row, place]
        return cls(
            y=logs - (columns @ start)[row],
            sigma=sigma[row],
            columns=(columns - centre)[row],
            # A prompt is one unit, however many answers it has: they say nearly the same.
            weight=(1.0 / answers.present.sum(axis=1))[row],
            censored=answers.censored[row, place],
            centre=centre,
            start=start,
            nu=answers.nu,
        )

    def solve(self, strength: Floats) -> _Fit:
        """The penalised maximum of the likelihood, by steps in which all directions are about as steep."""
        pull = (self.columns * (self.weight / self.sigma**2)[:, None]).T @ self.columns
        turn = np.linalg.inv(np.linalg.cholesky(pull + np.diag(strength))).T
        start = np.zeros(2 + len(strength))
        start[0] = np.median(self.y)
        bounds = [(None, None), _LOG_SCALES, *[(None, None)] * len(strength)]
        found = optimize.minimize(self._objective, start, (turn, strength), "L-BFGS-B", jac=True, bounds=bounds)
        moved = turn @ found.x[2:]
        return _Fit(self.start + moved, float(found.x[0] - moved @ self.centre), float(np.exp(found.x[1])))

    def _objective(self, x: Floats, turn: Floats, strength: Floats) -> tuple[float, Floats]:
        steps = turn @ x[2:]
        scale = self.sigma * np.exp(x[1])
        z = (self.y - x[0] - self.columns @ steps) / scale
        cost, slope = _cost(z, self.censored, self.nu)
        cost = cost + np.where(self.censored, 0.0, np.log(scale))
        pull = self.weight * slope / scale
        gradient = np.empty(len(x))
        gradient[0] = -pull.sum()
        gradient[1] = self.weight @ (np.where(self.censored, 0.0, 1.0) - slope * z)
        gradient[2:] = (strength * steps - pull @ self.columns) @ turn
        return float(self.weight @ cost + steps @ (strength * steps) / 2), gradient


def _cost(z: Floats, censored: Mask, nu: float) -> tuple[Floats, Floats]:
    """-log density of T at z, up to a constant, or -log P(T > z) where censored; and its slope in z."""
    log1p = np.log1p(z * z / nu)
    ended, slope = (nu + 1) / 2 * log1p, (nu + 1) * z / (nu + z * z)
    if not censored.any():
        return ended, slope
    longer = special.stdtr(nu, -z)
    log_constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
    # Above every number of a length the tail is a power: no survival here is 0.
    hazard = np.exp(log_constant - ended) / longer
    # Both kinds on one scale: the density's constant is part of the cost.
    return np.where(censored, -np.log(longer), ended - log_constant), np.where(censored, hazard, slope)


def _surprise(answers: Answers, mu: Floats, sigma: Floats) -> float:
    """-log likelihood of the lengths, each prompt's as one."""
    row, column = np.nonzero(answers.present)
    z = (np.log(np.maximum(answers.lengths, 1.0))[row, column] - mu[row]) / sigma[row]
    censored = answers.censored[row, column]
    cost = _cost(z, censored, answers.nu)[0] + np.where(censored, 0.0, np.log(sigma[row]))
    return float((cost / answers.present.sum(axis=1)[row]).sum())


NAMES: Final = (
    "characters", "words", "lines", "characters per word", "digits", "signs of code", "capitals", "beyond ASCII",
    "question mark", "backquote", "words of code", "ends asking",
)  # fmt: skip
"""What the numbers are; part of a model file's format."""

_READ: Final = 10_000  # characters of the beginning and of the end each that are looked at
_DIGITS, _CAPITALS = string.digits.encode(), string.ascii_uppercase.encode()
_SIGNS: Final = b"(){}[]<>=_;"
_BEYOND: Final = bytes(range(128, 256))
_CODE: Final = (b"def ", b"import ", b"class ", b"return", b"function", b"```")


def kinds(texts: Sequence[str]) -> NDArray[np.float64]:
    """(texts, len(NAMES))"""
    return np.array([_kind(text) for text in texts], np.float64).reshape(-1, len(NAMES))


def _kind(text: str) -> tuple[float, ...]:
    seen = text if len(text) <= 2 * _READ else f"{text[:_READ]}\n{text[-_READ:]}"
    raw = seen.encode("utf-8", "replace")
    words, size = len(raw.split()), len(raw) + 1
    return (
        math.log1p(len(text)),
        math.log1p(words),
        math.log1p(raw.count(b"\n")),
        math.log(size / (words + 1)),
        *((size - 1 - len(raw.translate(None, some))) / size for some in (_DIGITS, _SIGNS, _CAPITALS, _BEYOND)),
        float(b"?" in raw),
        float(b"`" in raw),
        float(any(word in raw for word in _CODE)),
        float(raw.rstrip().endswith(b"?")),
    )
