"""An LLM that a predictor was not trained on: how well is it predicted after `adapt` on a few of its lengths?

A predictor trained without the LLM is adapted on lengths of prompts that no training uses, one answer each, as its
owner would collect them, and evaluated on official test prompts of six corpora. Beside it: the predictor trained with
all the LLM's lengths.

The recipe of `fast` is trained here, with and without each LLM, on lengths only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.study import Call, Run, Study
from lengthwise.errors import InputError
from lengthwise.files import data_home
from lengthwise.llm_names import resolve_llm
from lengthwise.predictors import LogTPredictions
from lengthwise.predictors.adapt import predict_known_llms
from lengthwise.predictors.baselines import CAP
from lengthwise.predictors.contract import LoadedPredictor, PredictionInput, as_logt
from lengthwise.predictors.mixture import Answers, fit_mixture, kinds, likeness
from lengthwise.reports.tables import Table, share, signed
from lengthwise.simulator.tasks import content_key
from lengthwise.traffic.scores import Forecast, PredictionScores, average, score_predictions
from lengthwise.training.data import load_samples
from lengthwise.training.encoder.config import DataConfig
from lengthwise.training.encoder.network import package_folder
from lengthwise.training.fast.train import FastRecipe, FastTrainer, calibrated
from lengthwise.training.fast.word_tables import Vocabulary
from lengthwise.training.pairs import PairTable
from lengthwise.workloads import LengthSamples, load_castillo

Floats = NDArray[np.float64]

Progress = Callable[[str, float], None]


LLMS: Final = ("Llama-3.1-8B", "gemma-3-4b", "Qwen2.5-14B", "Mixtral-8x7B")
CORPORA: Final = ("Apps", "BigCodeBench", "DS1000", "DollyDataset", "Mbpp", "ShareGPT")
LENGTHS: Final = (20, 100, 500)
DRAWS: Final = 10
HELD_OUT_SHARE: Final = 0.35
"""Share of the prompts that no training uses, by hash: enough to draw 500 from."""
SPLIT_SEED: Final = 0
TARGET_TAU: Final = 0.03
"""Largest accepted difference of tau between known and adapted LLM."""
TARGET_COVERAGE: Final = 0.03
"""How much further from 90 % the adapted LLM's coverage may be than the known one's."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """An LLM's prompts: the pool for adaptation, and those for evaluation."""

    llm: str
    keys: tuple[tuple[str, str], ...]
    """Corpus and prompt id."""
    texts: tuple[str, ...]
    lengths: NDArray[np.int64]
    clean: NDArray[np.bool_]
    test: NDArray[np.bool_]
    """Used for evaluation; the others are the pool."""

    @classmethod
    def of(cls, samples: LengthSamples, llm: str) -> Prompts:
        """The pool is the held-out prompts of validate, which has the test's mix of corpora; train has not."""
        rows = samples.where(llm=llm, corpus=CORPORA)
        held = split_rows(rows)["held"]
        unseen = set(zip(held.table["corpus"].to_pylist(), held.table["prompt_id"].to_pylist(), strict=True))
        columns = (rows.table[name].to_pylist() for name in ("corpus", "prompt_id", "split", "prompt"))
        corpora, ids, splits, texts = columns
        keys = list(zip(corpora, ids, strict=True))
        clean = rows.clean_mask()
        test_texts = {text for text, split in zip(texts, splits, strict=True) if split == "test"}
        use = [
            i
            for i, split in enumerate(splits)
            if clean[i].any()
            and (split == "test" or (split == "validate" and keys[i] in unseen and texts[i] not in test_texts))
        ]
        return cls(
            llm=rows.llms[0],
            keys=tuple(keys[i] for i in use),
            texts=tuple(texts[i] for i in use),
            lengths=rows.lengths_matrix()[use],
            clean=clean[use],
            test=np.array([splits[i] == "test" for i in use], bool),
        )


def split_rows(rows: LengthSamples) -> Mapping[str, LengthSamples]:
    """Rows held out of every training, and the rest; a prompt is on one side."""
    return rows.split_by_prompt({"held": HELD_OUT_SHARE, "rest": 1.0 - HELD_OUT_SHARE}, SPLIT_SEED)


@dataclass(frozen=True, eq=False)
class KnownPredictions:
    """Predictions for an LLM's prompts by a predictor trained without it: for each known LLM and an unknown one."""

    llms: tuple[str, ...]
    mu: Floats
    """(prompts, LLMs + 1), the unknown LLM last."""
    sigma: Floats
    nu: float

    @classmethod
    def by(cls, predictor: LoadedPredictor, prompts: Prompts, progress: Progress | None = None) -> KnownPredictions:
        """Predict every prompt as each known LLM."""
        if prompts.llm in predictor.llms:
            raise InputError(f"this predictor knows {prompts.llm}", hint="give one that was trained without it")
        mu, sigma, nu = predict_known_llms(predictor, prompts.llm, prompts.texts, progress)
        return cls(predictor.llms, mu, sigma, nu)


@dataclass(frozen=True)
class LeftOut:
    """One LLM: known from training, unknown, and adapted on each draw of a few of its lengths.

    Scores are on official test prompts, without degenerate samples.
    """

    llm: str
    pool: int
    """Number of prompts in the pool."""
    lengths: int
    known: PredictionScores
    unknown: PredictionScores
    draws: tuple[PredictionScores, ...]

    @property
    def adapted(self) -> PredictionScores:
        """The mean of the draws."""
        return average(self.draws)

    @property
    def met(self) -> bool:
        """Whether tau and coverage reach their targets."""
        off, known_off = (abs(each.coverage_90 - 0.9) for each in (self.adapted, self.known))
        return self.adapted.tau >= self.known.tau - TARGET_TAU and off <= known_off + TARGET_COVERAGE


def known_as(predictor: LoadedPredictor, prompts: Prompts) -> PredictionScores:
    """Scores of a predictor trained with the LLM's lengths."""
    inputs = [PredictionInput(text, prompts.llm, CAP) for text in np.array(prompts.texts, object)[prompts.test]]
    return _score(as_logt(predictor.predict(inputs)), prompts)


def leave_out(
    predicted: KnownPredictions,
    prompts: Prompts,
    known: PredictionScores,
    *,
    lengths: int = 100,
    draws: int = DRAWS,
    seed: int = 0,
) -> LeftOut:
    """Adapt on each draw of `lengths` prompts of the pool, one clean length each, and score."""
    pool, test = np.flatnonzero(~prompts.test), np.flatnonzero(prompts.test)
    if len(pool) < lengths:
        raise InputError(f"{len(pool)} prompts to draw {lengths} from", hint="ask for fewer lengths")
    like, kind = likeness(prompts.llm, predicted.llms), kinds(prompts.texts)
    mu, sigma = predicted.mu[:, :-1], predicted.sigma[:, :-1]
    found = []
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        drawn = rng.choice(pool, lengths, replace=False)
        one = np.where(prompts.clean[drawn], rng.random(prompts.clean[drawn].shape), np.inf).argmin(axis=1)
        observed = prompts.lengths[drawn, one].astype(np.float64)[:, None]
        nothing = np.zeros(observed.shape, bool)
        mixture = fit_mixture(
            Answers(mu[drawn], sigma[drawn], kind[drawn], observed, ~nothing, nothing, predicted.nu), like
        )
        predictions = LogTPredictions.of(*mixture.apply(mu[test], sigma[test], kind[test]), CAP, nu=predicted.nu)
        found.append(_score(predictions, prompts))
    unknown = LogTPredictions.of(predicted.mu[test, -1], predicted.sigma[test, -1], CAP, nu=predicted.nu)
    return LeftOut(prompts.llm, len(pool), lengths, known, _score(unknown, prompts), tuple(found))


def _score(predictions: LogTPredictions, prompts: Prompts) -> PredictionScores:
    lengths, clean = prompts.lengths[prompts.test], prompts.clean[prompts.test]
    return score_predictions(Forecast.of(predictions, crps=False), lengths, present=clean)


@dataclass(frozen=True)
class LeftOutGrid:
    """The recipe that is trained without an LLM, and the draws of its lengths."""

    networks: int = 4
    epochs: int = 10
    vectors: Path | None = None
    """File that stores the words' embeddings between runs."""
    llms: tuple[str, ...] = LLMS
    lengths: tuple[int, ...] = LENGTHS
    draws: int = DRAWS


@dataclass(frozen=True)
class LeftOutResult:
    """One row per LLM and number of lengths."""

    grid: LeftOutGrid
    rows: tuple[LeftOut, ...]


def measure(run: Run, grid: LeftOutGrid) -> LeftOutResult:
    """Train with all LLMs and without each, adapt and score every LLM."""
    samples = run.castillo()
    wanted = [resolve_llm(name, samples.llms) for name in grid.llms]
    recipe = FastRecipe(networks=grid.networks, epochs=grid.epochs)
    vectors = stored_vectors(run, grid.vectors, _table().texts)
    without = [Call(train_without, (recipe, vectors, llm, grid.lengths, grid.draws)) for llm in wanted]
    known, *trained = run.results("trainings", [Call(train_with_all, (recipe, vectors, tuple(wanted))), *without])
    rows = []
    for llm, found in zip(wanted, trained, strict=True):
        for row in found["rows"]:
            of_known, of_unknown = (PredictionScores(**each) for each in (known[llm], row["unknown"]))
            draws = tuple(PredictionScores(**each) for each in row["draws"])
            rows.append(LeftOut(llm, row["pool"], row["lengths"], of_known, of_unknown, draws))
    return LeftOutResult(grid, tuple(rows))


def train_with_all(recipe: FastRecipe, vectors: Path, scored: tuple[str, ...]) -> dict[str, Any]:
    """Train the recipe with all LLMs, and score it on each of some; no training sees the pools."""
    table, samples = _table(), load_castillo()
    with one_thread():
        trainer = FastTrainer(Vocabulary.stored(vectors, table.texts), recipe)
        fitted, _ = calibrated(trainer, table, 0.0, SPLIT_SEED)
        return {llm: asdict(known_as(fitted, Prompts.of(samples, llm))) for llm in scored}


def train_without(recipe: FastRecipe, vectors: Path, llm: str, lengths: tuple[int, ...], draws: int) -> dict[str, Any]:
    """Train the recipe without an LLM, and adapt it on each number of lengths."""
    table, prompts = _table(), Prompts.of(load_castillo(), llm)
    with one_thread():
        trainer = FastTrainer(Vocabulary.stored(vectors, table.texts), recipe)
        fitted, _ = calibrated(trainer, _without(table, llm), 0.0, SPLIT_SEED)
        predicted = KnownPredictions.by(fitted, prompts)
        later = PredictionScores()  # known after the training with all LLMs
        rows = [leave_out(predicted, prompts, later, lengths=count, draws=draws) for count in lengths]
    return {"rows": [asdict(row) for row in rows]}


@cache
def _table() -> PairTable:
    """Return what may be trained on; kept for the other trainings of this process."""
    rows = split_rows(load_samples(DataConfig(smollm2=True)).where(corpus=CORPORA))["rest"]
    table = PairTable.of(rows)
    return table.take(table.trainable())


def stored_vectors(run: Run, given: Path | None, texts: Sequence[str]) -> Path:
    """Return a file with the words of these texts and their vectors, which takes long to make: given, or in the cache.

    Trainings in several processes read it.
    """
    path = given or run.cache.folder / f"words-{content_key(texts=list(texts))[:16]}.npz"
    run.report("word vectors", 0.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Vocabulary.stored(path, texts)
    return path


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread: trainings run side by side, and small networks gain little from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _without(table: PairTable, llm: str) -> PairTable:
    """Return the table without the pairs of an LLM."""
    keep = table.llm != table.llms.index(llm)
    pairs = {name: getattr(table, name)[keep] for name in ("prompt", "llm", "lengths", "censored")}
    return replace(table, **pairs)


def tables(found: LeftOutResult) -> list[Table]:
    """One row per LLM: known, unknown, adapted."""

    def spread(values: Sequence[float]) -> str:
        return f"{min(values):.3f} to {max(values):.3f}"

    grid = found.grid
    columns = [
        "LLM", "lengths", "pool", "known tau", "in 90 %", "unknown tau", "in 90 %", "adapted tau", "draws",
        "to known", "in 50 %", "in 90 %", "draws", "met",
    ]  # fmt: skip
    rows = [
        [
            row.llm.rsplit("/", 1)[-1],
            str(row.lengths),
            str(row.pool),
            f"{row.known.tau:.3f}",
            share(row.known.coverage_90),
            f"{row.unknown.tau:.3f}",
            share(row.unknown.coverage_90),
            f"{row.adapted.tau:.3f}",
            spread([each.tau for each in row.draws]),
            signed(row.adapted.tau - row.known.tau),
            share(row.adapted.coverage_50),
            share(row.adapted.coverage_90),
            spread([each.coverage_90 for each in row.draws]),
            "yes" if row.met else "no",
        ]
        for row in found.rows
    ]
    trained = f"the recipe of fast, {grid.networks} networks, {grid.epochs} epochs, lengths only"
    notes = [
        f"known: {trained}; mean of {grid.draws} draws",
        "one length of each held-out prompt drawn from validate",
        f"met: tau at most {TARGET_TAU} below the known one, coverage at most {TARGET_COVERAGE} further from 90 %",
    ]
    return [Table("Left out of training, then adapted: fast", columns, rows, notes)]


def lacks_minilm() -> str | None:
    """Say how to install the encoder whose words the networks are trained on, None if it is there."""
    try:
        package_folder()
    except InputError as error:
        return f"needs the encoder of the networks: {error}"
    return None


def _needs(_: LeftOutGrid) -> str | None:
    home = data_home()
    if home is None or not (home / "castillo").is_dir():
        return "needs LENGTHWISE_DATA with castillo/ and smollm2/"
    return lacks_minilm()


def answer(found: LeftOutResult) -> str:
    """How many of the LLMs are as good as trained ones, by the number of lengths."""
    counts = []
    for lengths in sorted({row.lengths for row in found.rows}):
        rows = [row for row in found.rows if row.lengths == lengths]
        gap = float(np.mean([row.adapted.tau - row.known.tau for row in rows]))
        counts.append(
            f"{sum(row.met for row in rows)} of {len(rows)} after {lengths} lengths (tau {gap:+.3f} on average)"
        )
    return f"As good as an LLM of the training are {'; '.join(counts)}."


STUDY: Study[LeftOutGrid, LeftOutResult] = Study(
    name="left_out",
    title="LLMs left out of training, then adapted",
    question="How well is an LLM predicted that training left out, after adapting on 20 to 500 lengths?",
    source="CASTILLO, SmolLM2's lengths",
    grid=LeftOutGrid(),
    quick=LeftOutGrid(llms=("gemma-3-4b",), lengths=(100,), draws=2, networks=1, epochs=1),
    minutes=(20, 0.8),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
