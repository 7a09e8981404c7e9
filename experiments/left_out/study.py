"""An LLM that a predictor has never heard of: how well it is known after `adapt` on a few of its lengths.

A predictor trained without the LLM is adapted on lengths of prompts that it was not trained on either, one answer each,
as its owner would have collected them; and judged on official test prompts. Beside it: the predictor that was trained
with all the LLM's lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors import LogTPredictions, scores
from lengthwise.predictors.adapt import predict_known_llms
from lengthwise.predictors.baselines import CAP, clean_moments
from lengthwise.predictors.contract import PredictionInput, as_logt
from lengthwise.predictors.mixture import Answers, fit_mixture, kinds, likeness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.resolve import LoadedPredictor
    from lengthwise.workloads import LengthSamples

    Floats = NDArray[np.float64]
    Progress = Callable[[str, float], None]

LLMS: Final = ("Llama-3.1-8B", "gemma-3-4b", "Qwen2.5-14B", "Mixtral-8x7B")
CORPORA: Final = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp", "ShareGPT")
LENGTHS: Final = 100
DRAWS: Final = 10
HELD_OUT: Final = 0.1
"""Share of the prompts that no training sees: by hash, the same ones in every training (`data.held_out`)."""
SPLIT_SEED: Final = 0
TARGET_TAU: Final = 0.03
"""How much less than the known LLM's an adapted LLM's tau may be."""
TARGET_COVERAGE: Final = (0.85, 0.95)


@dataclass(frozen=True, eq=False)
class Prompts:
    """An LLM's prompts: those it may be adapted on, and those it is judged on."""

    llm: str
    keys: tuple[tuple[str, str], ...]
    """Corpus and prompt id."""
    texts: tuple[str, ...]
    lengths: NDArray[np.int64]
    clean: NDArray[np.bool_]
    test: NDArray[np.bool_]
    """Which are judged on; the others are the pool."""

    @classmethod
    def of(cls, samples: LengthSamples, llm: str, pool: Sequence[str] = ("validate",)) -> Prompts:
        """The pool is the held-out prompts of these splits; validate has the test's mix of corpora, train has not."""
        rows = samples.where(llm=llm, corpus=CORPORA)
        held = rows.split_by_prompt({"held": HELD_OUT, "rest": 1.0 - HELD_OUT}, SPLIT_SEED)["held"]
        unseen = set(zip(held.table["corpus"].to_pylist(), held.table["prompt_id"].to_pylist(), strict=True))
        columns = (rows.table[name].to_pylist() for name in ("corpus", "prompt_id", "split", "prompt"))
        corpora, ids, splits, texts = columns
        keys = list(zip(corpora, ids, strict=True))
        clean = rows.clean_mask()
        judged = {text for text, split in zip(texts, splits, strict=True) if split == "test"}
        use = [
            i
            for i, split in enumerate(splits)
            if clean[i].any() and (split == "test" or (split in pool and keys[i] in unseen and texts[i] not in judged))
        ]
        return cls(
            llm=rows.llms[0],
            keys=tuple(keys[i] for i in use),
            texts=tuple(texts[i] for i in use),
            lengths=rows.lengths_matrix()[use],
            clean=clean[use],
            test=np.array([splits[i] == "test" for i in use], bool),
        )


@dataclass(frozen=True, eq=False)
class Said:
    """What a predictor that has never heard of an LLM says of its prompts: for the LLMs it knows, and for any other."""

    llms: tuple[str, ...]
    mu: Floats
    """(prompts, LLMs + 1), the unknown LLM last."""
    sigma: Floats
    nu: float

    @classmethod
    def by(cls, predictor: LoadedPredictor, prompts: Prompts, progress: Progress | None = None) -> Said:
        """Ask it."""
        if prompts.llm in predictor.llms:
            raise InputError(f"this predictor knows {prompts.llm}", hint="give one that was trained without it")
        mu, sigma, nu = predict_known_llms(predictor, prompts.llm, prompts.texts, progress)
        return cls(predictor.llms, mu, sigma, nu)


@dataclass(frozen=True)
class Judged:
    """On official test prompts, degenerate samples out."""

    tau: float
    coverage_50: float
    coverage_90: float


@dataclass(frozen=True)
class LeftOut:
    """One LLM: known from training, unknown, and after each draw of a few of its lengths."""

    llm: str
    pool: int
    """Prompts the lengths were drawn from."""
    lengths: int
    known: Judged
    unknown: Judged
    draws: tuple[Judged, ...]

    @property
    def adapted(self) -> Judged:
        """The mean of the draws."""
        columns = zip(*((each.tau, each.coverage_50, each.coverage_90) for each in self.draws), strict=True)
        return Judged(*(float(np.mean(column)) for column in columns))

    @property
    def met(self) -> bool:
        """Whether the target is."""
        low, high = TARGET_COVERAGE
        return self.adapted.tau >= self.known.tau - TARGET_TAU and low <= self.adapted.coverage_90 <= high


def known_as(predictor: LoadedPredictor, prompts: Prompts) -> Judged:
    """How well a predictor that was trained with the LLM's lengths knows it."""
    asked = [PredictionInput(text, prompts.llm, CAP) for text in np.array(prompts.texts, object)[prompts.test]]
    return _judge(as_logt(predictor.predict(asked)), prompts)


def leave_out(
    said: Said, prompts: Prompts, known: Judged, *, lengths: int = LENGTHS, draws: int = DRAWS, seed: int = 0
) -> LeftOut:
    """Adapt on each draw of `lengths` prompts of the pool, one clean length each, and judge."""
    pool, test = np.flatnonzero(~prompts.test), np.flatnonzero(prompts.test)
    if len(pool) < lengths:
        raise InputError(f"{len(pool)} prompts to draw {lengths} from", hint="ask for fewer lengths")
    like, kind = likeness(prompts.llm, said.llms), kinds(prompts.texts)
    mu, sigma = said.mu[:, :-1], said.sigma[:, :-1]
    found = []
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        some = rng.choice(pool, lengths, replace=False)
        one = np.where(prompts.clean[some], rng.random(prompts.clean[some].shape), np.inf).argmin(axis=1)
        told = prompts.lengths[some, one].astype(np.float64)[:, None]
        nothing = np.zeros(told.shape, bool)
        mixture = fit_mixture(Answers(mu[some], sigma[some], kind[some], told, ~nothing, nothing, said.nu), like)
        predictions = LogTPredictions.of(*mixture.apply(mu[test], sigma[test], kind[test]), CAP, nu=said.nu)
        found.append(_judge(predictions, prompts))
    unknown = LogTPredictions.of(said.mu[test, -1], said.sigma[test, -1], CAP, nu=said.nu)
    return LeftOut(prompts.llm, len(pool), lengths, known, _judge(unknown, prompts), tuple(found))


def _judge(predictions: LogTPredictions, prompts: Prompts) -> Judged:
    lengths, clean = prompts.lengths[prompts.test], prompts.clean[prompts.test]
    inside = [
        scores.coverage(
            predictions.quantile((1 - c) / 2), predictions.quantile((1 + c) / 2), lengths.astype(np.float64), clean
        )
        for c in (0.5, 0.9)
    ]
    return Judged(scores.kendall_tau(predictions.mu, clean_moments(lengths, clean)[0]), *inside)
