"""`lengthwise adapt`: from a model file and an LLM's lengths to a model file that knows the LLM."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors import scores
from lengthwise.predictors.adapt.kinds import kinds
from lengthwise.predictors.adapt.mixture import Answers, fit_mixture, likeness
from lengthwise.predictors.adapt.predictor import AdaptedPredictor, to_part
from lengthwise.predictors.calibration import as_logt
from lengthwise.predictors.contract import LogTPredictions, PredictionInput
from lengthwise.predictors.file import read_model_file, write_model_file
from lengthwise.predictors.load import ADAPTED, load_predictor, model_path
from lengthwise.workloads.length_samples import resolve_llm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lengthwise.predictors.adapt.observed import Observed
    from lengthwise.predictors.load import LoadedPredictor

    Floats = NDArray[np.float64]

_SCORED_FOLDS: Final = 5
_BATCH: Final = 16


@dataclass(frozen=True)
class Scores:
    """On lengths of prompts that were not learned from; NaN where there is nothing to tell."""

    tau: float
    crps: float
    mae: float
    """Of the median against each length."""
    coverage_50: float
    coverage_90: float


@dataclass(frozen=True)
class Report:
    """What was learned about the LLM, and what it is worth."""

    llm: str
    base: str
    replaced: bool
    lengths: int
    prompts: int
    cut_off: int
    shift: float
    factor: float
    weights: dict[str, float]
    before: Scores
    after: Scores


def adapt_file(
    model: str | Path, observed: Observed, out: Path, *, progress: Callable[[str, float], None] | None = None
) -> Report:
    """Add the LLM to a packaged predictor or a model file, and write the result; an LLM of that name is replaced."""
    path = model_path(model)
    file, loaded = read_model_file(path), load_predictor(path)
    base, adapted = (loaded.base, loaded.adapted) if isinstance(loaded, AdaptedPredictor) else (loaded, {})
    llm = _meant(observed.llm, base.llms)
    mu, sigma, nu = ask(base, llm, observed.texts, progress)
    answers = Answers(
        mu=mu[:, :-1],
        sigma=sigma[:, :-1],
        kinds=kinds(observed.texts),
        lengths=observed.lengths,
        present=observed.present,
        censored=observed.censored,
        nu=nu,
    )
    before = LogTPredictions.of(mu[:, -1], sigma[:, -1], observed.caps, nu=nu)
    like = likeness(llm, base.llms)
    after = _unseen(answers, like, observed.caps, progress)
    mixture = fit_mixture(answers, like)
    report = Report(
        llm=llm,
        base=str(file.card["name"]),
        replaced=llm in adapted or llm in base.llms,
        lengths=observed.count,
        prompts=len(observed.texts),
        cut_off=observed.cut_off,
        shift=mixture.shift,
        factor=mixture.factor,
        weights=dict(zip(base.llms, mixture.weights.tolist(), strict=True)),
        before=_score(before, answers),
        after=_score(after, answers),
    )
    said = {key: value for key, value in asdict(report).items() if key not in ("llm", "base", "replaced", "weights")}
    card = {key: value for key, value in file.card.items() if key != "format"}
    card["adapted"] = {**card.get("adapted", {}), llm: said}
    parts = {**file.parts, ADAPTED: to_part({**adapted, llm: mixture}, base.llms)}
    write_model_file(out, card, parts)
    return report


def _meant(name: str, known: tuple[str, ...]) -> str:
    """A known LLM by a short name is that LLM; any other name is a new one's."""
    try:
        return resolve_llm(name, known)
    except InputError:
        return name


@contextmanager
def _quiet() -> Iterator[None]:
    """That the LLM is not known is why we are here."""
    logger = logging.getLogger("lengthwise.predictors")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def ask(
    predictor: LoadedPredictor, llm: str, texts: Sequence[str], progress: Callable[[str, float], None] | None = None
) -> tuple[Floats, Floats, float]:
    """Mu and sigma (texts, LLMs + 1) for every LLM it knows and, last, for this one as it takes it; and nu."""
    found = []
    with _quiet():
        for start in range(0, len(texts), _BATCH):
            some = texts[start : start + _BATCH]
            said = as_logt(
                predictor.predict([PredictionInput(text, n) for text in some for n in (*predictor.llms, llm)])
            )
            found.append(np.stack([said.mu, said.sigma]).reshape(2, len(some), -1))
            if progress is not None:
                progress("reading prompts", min(1.0, (start + _BATCH) / len(texts)))
    mu, sigma = np.concatenate(found, axis=1)
    return mu, sigma, said.columns.nu


def _unseen(
    answers: Answers, like: Floats, caps: Floats, progress: Callable[[str, float], None] | None
) -> LogTPredictions:
    """Predictions about each prompt, learned from the others only."""
    mu, sigma = np.empty(len(answers)), np.empty(len(answers))
    fold = np.random.default_rng(1).permutation(len(answers)) % _SCORED_FOLDS
    for number in range(_SCORED_FOLDS):
        own = fold == number
        mixture = fit_mixture(answers.take(~own), like)
        mu[own], sigma[own] = mixture.apply(answers.mu[own], answers.sigma[own], answers.kinds[own])
        if progress is not None:
            progress("scoring", (number + 1) / _SCORED_FOLDS)
    return LogTPredictions.of(mu, sigma, caps, nu=answers.nu)


def _score(predictions: LogTPredictions, answers: Answers) -> Scores:
    """An answer cut off is inside an interval that reaches where it was cut: the predictions end there too."""
    lengths, present = answers.lengths, answers.present
    mean = np.where(present, lengths, 0.0).sum(axis=1) / present.sum(axis=1)
    median = predictions.quantile(0.5)
    quantiles = np.stack([predictions.quantile(float(level)) for level in scores.CRPS_LEVELS], axis=1)
    low_50, high_50, low_90, high_90 = (predictions.quantile(q) for q in (0.25, 0.75, 0.05, 0.95))
    return Scores(
        tau=scores.kendall_tau(median, mean),
        crps=float(scores.crps(quantiles, lengths, present).mean()),
        mae=float(np.abs(lengths - median[:, None])[present].mean()),
        coverage_50=scores.coverage(low_50, high_50, lengths, present),
        coverage_90=scores.coverage(low_90, high_90, lengths, present),
    )
