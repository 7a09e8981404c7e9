"""A new LLM as a mixture of known ones, from a few of its lengths, and the predictor that predicts with it.

With mu_l and sigma_l the prediction for known LLM l, and y the log of a length:

    y = shift + sum_l weight_l * mu_l + tilt(kind) + factor * sigma * T,    sigma = prod_l sigma_l ^ likeness_l

with T Student-t and `tilt` linear in the features of the prompt (`kinds`), within their range in the prompts learned
from. For a prompt outside of it the spread grows, by the tilt that is left out, and is not narrowed. `likeness` is the
share of each known LLM by the names (`llm_names`): ridge penalties draw the weights to it and the tilt to 0. Fits with
several penalty strengths maximise the penalised likelihood, in which a censored answer contributes its survival; they
are averaged by their likelihood on held-out folds. So a hundred lengths of an unusual LLM move the weights far, and
those of an LLM like its family hardly at all. The factor is split conformal on the errors for held-out prompts.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from lengthwise.errors import InputError
from lengthwise.lengths import log_t
from lengthwise.llm_names import identify, resolve_llm
from lengthwise.predictors.calibration import fit_calibration
from lengthwise.predictors.contract import (
    LoadedPredictor,
    LogTPredictions,
    PredictionInput,
    Predictions,
    as_inputs,
    as_logt,
)
from lengthwise.predictors.model_file import ADAPTED

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

STRENGTHS: Final = tuple(
    (weights, tilt) for weights in (3.0, 10.0, 30.0, 100.0, 1000.0) for tilt in (3.0, 30.0, 1000.0)
)
"""Penalties on weights and tilt: at s, moving one weight by 1 must raise the log likelihood by s/2."""
FOLDS: Final = 10
_OF_ALL: Final = 0.2
"""Share of the likeness that is spread over all LLMs."""
_LOG_SCALES: Final = (-3.0, 3.0)
"""Bounds of the log scale: a few lengths that fit by chance do not make predictions exact."""
_CLIP: Final = 3.0
"""Features are clipped at this number of standard deviations."""
_MAX_SIGMA: Final = 1.5
"""The spread of a prompt unlike those learned from grows to at most this."""
_BY_PROMPT: Final = ("mu", "sigma", "kinds", "lengths", "present", "censored")


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions for n prompts and L known LLMs, and up to k lengths of the new LLM's answers to each."""

    mu: Floats
    """(n, L)"""
    sigma: Floats
    """(n, L)"""
    kinds: Floats
    """(n, kinds)"""
    lengths: Floats
    """(n, k)"""
    present: Mask
    """(n, k): whether there is such an answer."""
    censored: Mask
    """(n, k): whether it was cut off, so that the length is a lower bound."""
    nu: float

    def __len__(self) -> int:
        return len(self.mu)

    def take(self, prompts: NDArray[Any]) -> Answers:
        """Return a subset of the prompts."""
        return replace(self, **{name: getattr(self, name)[prompts] for name in _BY_PROMPT})


@dataclass(frozen=True, eq=False)
class Tilt:
    """Weights of the prompt features, standardised by the prompts learned from."""

    weights: Floats
    centre: Floats
    spread: Floats
    low: Floats | float = -_CLIP
    """The smallest standardised feature of those prompts; a file of an earlier version has none."""
    high: Floats | float = _CLIP

    @classmethod
    def of(cls, kinds: Floats) -> Tilt:
        """Return zero weights, standardised by these prompts."""
        tilt = cls(np.zeros(kinds.shape[1]), kinds.mean(axis=0), kinds.std(axis=0) + 1e-3)
        features = tilt._features(kinds)
        return replace(tilt, low=features.min(axis=0), high=features.max(axis=0))

    def _features(self, kinds: Floats) -> Floats:
        return np.clip((kinds - self.centre) / self.spread, -_CLIP, _CLIP)

    def units(self, kinds: Floats) -> Floats:
        """Return the standardised features (n, kinds), in the range learned from; of norm 1 for an average prompt."""
        return np.asarray(np.clip(self._features(kinds), self.low, self.high) / np.sqrt(len(self.centre)))

    def beyond(self, kinds: Floats) -> Floats:
        """Return by how many standard deviations each feature (n, kinds) is outside the range learned from."""
        features = self._features(kinds)
        return np.asarray(features - np.clip(features, self.low, self.high))


@dataclass(frozen=True, eq=False)
class Mixture:
    """mu = shift + sum of weight * mu + tilt; sigma = factor * product of sigma ^ likeness."""

    weights: Floats
    likeness: Floats
    shift: float
    factor: float
    tilt: Tilt

    def apply(self, mu: Floats, sigma: Floats, kinds: Floats) -> tuple[Floats, Floats]:
        """Return mu and sigma of the new LLM from those of the known ones (n, L) and the prompt features."""
        moved = self.shift + mu @ self.weights + self.tilt.units(kinds) @ self.tilt.weights
        beyond = self.tilt.beyond(kinds)
        known = np.exp(-np.square(beyond).sum(axis=1) / 2)  # 1 for prompts like those learned from
        spread = np.exp(np.log(sigma) @ self.likeness) * self.factor ** (known if self.factor < 1 else 1.0)
        left_out = np.square(beyond * self.tilt.weights).sum(axis=1) / len(self.tilt.centre)
        return moved, np.minimum(np.sqrt(spread**2 + left_out), np.maximum(spread, _MAX_SIGMA))


def likeness(llm: str, known: Sequence[str]) -> Floats:
    """Return the share of each known LLM in a new one by the names: its family's, else all alike; sums to 1."""
    if llm in known:
        return np.array([float(each == llm) for each in known])
    family = identify(llm).family
    same = np.array([float(family is not None and identify(each).family == family) for each in known])
    uniform = np.full(len(known), 1.0 / len(known))
    return (1 - _OF_ALL) * same / same.sum() + _OF_ALL * uniform if same.any() else uniform


def fit_mixture(answers: Answers, like: Floats, *, folds: int = FOLDS) -> Mixture:
    """Fit a mixture to the lengths of at least 10 prompts."""
    sigma = np.exp(np.log(answers.sigma) @ like)
    tilt = Tilt.of(answers.kinds)
    columns = np.hstack([answers.mu, tilt.units(answers.kinds)])
    start = np.concatenate([like, tilt.weights])
    fold = np.random.default_rng(0).permutation(len(answers)) % min(folds, len(answers))
    unseen = np.empty((len(STRENGTHS), len(answers)))
    held_out_cost = np.zeros(len(STRENGTHS))
    for number in range(fold.max() + 1):
        held_out, training = fold == number, fold != number
        problem = _Problem.of(answers.take(training), columns[training], sigma[training], start)
        for place, (on_weights, on_tilt) in enumerate(STRENGTHS):
            found = problem.solve(np.where(np.arange(len(start)) < len(like), on_weights, on_tilt))
            unseen[place, held_out] = found.shift + columns[held_out] @ found.weights
            held_out_cost[place] += _negative_log_likelihood(
                answers.take(held_out), unseen[place, held_out], sigma[held_out] * found.scale
            )
    trust = np.exp(held_out_cost.min() - held_out_cost)
    trust /= trust.sum()
    whole = _Problem.of(answers, columns, sigma, start)
    fits = [whole.solve(np.where(np.arange(len(start)) < len(like), a, b)) for a, b in STRENGTHS]
    weights = np.asarray(trust @ np.array([fit.weights for fit in fits]))
    shift = float(trust @ np.array([fit.shift for fit in fits]))
    predictions = LogTPredictions.of(trust @ unseen, sigma, np.inf, nu=answers.nu)
    calibrated = fit_calibration(
        predictions, [""] * len(answers), answers.lengths, answers.present, censored=answers.censored
    )
    learned = replace(tilt, weights=weights[len(like) :])
    return Mixture(weights[: len(like)], like, shift + calibrated.others.shift, calibrated.others.factor, learned)


@dataclass(frozen=True, eq=False)
class _Fit:
    weights: Floats
    shift: float
    scale: float


@dataclass(frozen=True, eq=False)
class _Problem:
    """One row per length: its log minus the starting prediction, as a linear function of the columns."""

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
            # A prompt is one unit, however many answers it has: they are strongly correlated.
            weight=(1.0 / answers.present.sum(axis=1))[row],
            censored=answers.censored[row, place],
            centre=centre,
            start=start,
            nu=answers.nu,
        )

    def solve(self, strength: Floats) -> _Fit:
        """Maximise the penalised likelihood, in coordinates in which all directions are about equally steep."""
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
    log_density = log_t.log_density(z, nu)
    # The tail is a power law: the survival is never 0 here.
    hazard = np.exp(log_density) / longer
    # Censored and uncensored costs on one scale: the density's constant is included.
    return np.where(censored, -np.log(longer), -log_density), np.where(censored, hazard, slope)


def _negative_log_likelihood(answers: Answers, mu: Floats, sigma: Floats) -> float:
    """Return the negative log likelihood of the lengths, with weight 1 per prompt."""
    row, column = np.nonzero(answers.present)
    z = (np.log(np.maximum(answers.lengths, 1.0))[row, column] - mu[row]) / sigma[row]
    censored = answers.censored[row, column]
    cost = _cost(z, censored, answers.nu)[0] + np.where(censored, 0.0, np.log(sigma[row]))
    return float((cost / answers.present.sum(axis=1)[row]).sum())


NAMES: Final = (
    "characters", "words", "lines", "characters per word", "digits", "signs of code", "capitals", "beyond ASCII",
    "question mark", "backquote", "words of code", "ends asking",
)  # fmt: skip
"""Names of the features; part of the model file format."""

_READ: Final = 10_000  # characters read from the beginning and from the end
_DIGITS, _CAPITALS = string.digits.encode(), string.ascii_uppercase.encode()
_SIGNS: Final = b"(){}[]<>=_;"
_BEYOND: Final = bytes(range(128, 256))
_CODE: Final = (b"def ", b"import ", b"class ", b"return", b"function", b"```")


def kinds(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return simple features of each text, (texts, len(NAMES)): size, code, questions.

    Few and without vocabulary: a hundred lengths cannot teach the meaning of words.
    """
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


_MAX_NAMES: Final = 10_000  # names come from clients: memory stays bounded
_MIN_LOG, _MAX_LOG = 0.0, 12.0


@dataclass(eq=False)
class AdaptedPredictor:
    """The predictions of `base`, and for adapted LLMs mixtures of its predictions for known LLMs."""

    base: LoadedPredictor
    adapted: Mapping[str, Mixture]
    card: Mapping[str, Any] = field(default_factory=dict)
    _mixtures: dict[str, Mixture | None] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"AdaptedPredictor({self.base!r}, {len(self.adapted)} adapted)"

    @property
    def llms(self) -> tuple[str, ...]:
        """All known LLMs."""
        return tuple(dict.fromkeys([*self.base.llms, *self.adapted]))

    def predict(
        self, inputs: Sequence[PredictionInput] | Sequence[str], llms: Sequence[str] | None = None
    ) -> Predictions:
        """Return one prediction for each input, in order; bare prompts need as many LLM names."""
        asked = as_inputs(inputs, llms)
        found = [self._mixture_of(each.llm) for each in asked]
        if not any(found):
            return self.base.predict(asked)
        questions: list[PredictionInput] = []
        starts = []
        for each, mixture in zip(asked, found, strict=True):
            starts.append(len(questions))
            questions += [each] if mixture is None else [replace(each, llm=llm) for llm in self.base.llms]
        predictions = as_logt(self.base.predict(questions))
        table = np.stack([predictions.mu, predictions.sigma, predictions.sample_mean, predictions.sample_std])
        out = table[:, starts]
        for number, (start, mixture) in enumerate(zip(starts, found, strict=True)):
            if mixture is not None:
                known = table[:, None, start : start + len(self.base.llms)]
                out[:, number] = mixed(mixture, known, kinds([asked[number].text]))[:, 0]
        caps = predictions.cap[starts]
        return LogTPredictions.of(out[0], out[1], caps, nu=predictions.nu, sample_mean=out[2], sample_std=out[3])

    def _mixture_of(self, name: str) -> Mixture | None:
        """Return the mixture of an adapted LLM; None for other names, which the base predicts."""
        if name not in self._mixtures:
            try:
                found = self.adapted.get(resolve_llm(name, self.llms))
            except InputError:
                found = None
            if len(self._mixtures) >= _MAX_NAMES:
                return found
            self._mixtures[name] = found
        return self._mixtures[name]


def mixed(mixture: Mixture, predictions: Floats, kind: Floats) -> Floats:
    """Return mu, sigma, sampling mean and std of the new LLM (4, n) from those of the known LLMs (4, n, L).

    Sampling mean and std have the same ratio to the median as for the known LLMs, averaged by likeness.
    """
    mu, sigma = mixture.apply(predictions[0], predictions[1], kind)
    mu = np.clip(mu, _MIN_LOG, _MAX_LOG)
    ratios = [np.log(np.maximum(predictions[row], 0.5)) - predictions[0] for row in (2, 3)]
    mean, std = (np.exp(mu + ratio @ mixture.likeness) for ratio in ratios)
    return np.stack([mu, sigma, mean, std])


def to_part(adapted: Mapping[str, Mixture], llms: Sequence[str]) -> bytes:
    """Return the part of a model file that `from_part` reads."""
    tree = {
        name: {
            "weights": dict(zip(llms, each.weights.tolist(), strict=True)),
            "likeness": dict(zip(llms, each.likeness.tolist(), strict=True)),
            "shift": each.shift,
            "factor": each.factor,
            "tilt": {
                kind: numbers.tolist()
                for kind, numbers in zip(NAMES, np.stack(np.broadcast_arrays(*astuple(each.tilt)), axis=1), strict=True)
            },
        }
        for name, each in adapted.items()
    }
    return json.dumps(tree, indent=1).encode()


def from_part(data: bytes, llms: Sequence[str], source: str | Path) -> dict[str, Mixture]:
    """Return mixtures by LLM name; `llms` must be the LLMs of the base predictor."""
    try:
        return {
            str(name): Mixture(
                np.array([each["weights"][llm] for llm in llms], np.float64),
                np.array([each["likeness"][llm] for llm in llms], np.float64),
                float(each["shift"]),
                float(each["factor"]),
                Tilt(*np.array([each["tilt"][kind] for kind in NAMES], np.float64).T),
            )
            for name, each in json.loads(data).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"part '{ADAPTED}' is invalid", source=source, hint="adapt it again") from error
