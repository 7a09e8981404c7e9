"""Magnus's predictor (arXiv 2406.04785) beside ours on a stream of requests: a random forest that is trained again.

Its inputs are an embedding of the user's input, reduced, the application and the length of the input. The embedding
here is the mean word vector in the description of `fast`, and the application is CASTILLO's corpus, which the other
predictors do not know. Answers whose length is missed by more than 10 tokens or 10 % join its training data; after
every `every` answers it is trained again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.learning import known_prompts, learned
from experiments.study import Run, Study, table_of
from lengthwise.errors import InputError
from lengthwise.files import data_home
from lengthwise.lengths import wide_prior
from lengthwise.predictors import load_predictor
from lengthwise.predictors.contract import LogTPredictions, PredictionInput
from lengthwise.predictors.fast import FastPredictor
from lengthwise.predictors.history import History
from lengthwise.reports.tables import Table
from lengthwise.traffic.scores import kendall_tau
from lengthwise.training.fast.word_tables import MEANING
from lengthwise.workloads import LengthSamples, load_castillo

Floats = NDArray[np.float64]

ERROR_TOKENS: Final = 10.0
ERROR_SHARE: Final = 0.1
"""Errors from which an answer joins the training data, as in the paper."""
EMBEDDING: Final = 16
"""Numbers of the reduced embedding of the user's input."""
_SPREAD: Final = 0.02
"""Sigma of a prediction: a forest states none."""
NOTHING, STATIC, AGAIN = "forest from nothing", "forest trained offline", "forest trained offline and again"
HISTORY, FAST, LEARNER = "history", "fast", "fast, learning"


@dataclass(eq=False)
class Forest:
    """A predictor of one LLM: a random forest on embedding, application (a request's template) and size."""

    text: FastPredictor
    every: int = 100
    """Answers after which it is trained again, if there are new ones to learn from; 0: never."""
    trees: int = 100
    seed: int = 0
    _rows: list[Floats] = field(default_factory=list)
    _tokens: list[float] = field(default_factory=list)
    _applications: dict[str | None, int] = field(default_factory=dict)
    _model: Callable[[Floats], Floats] | None = None
    _known: dict[PredictionInput, float] = field(default_factory=dict)
    """What was last predicted."""
    _answers: int = 0
    _trained_on: int = 0

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return the length that the forest predicts, with a narrow spread; the wide prior before it is trained."""
        tokens = self._predict(np.array([self._row(each) for each in inputs]))
        self._known = dict(zip(inputs, tokens.tolist(), strict=True))
        return LogTPredictions.of(np.log(np.maximum(tokens, 1.0)), _SPREAD, [each.cap for each in inputs])

    def observe(self, request: PredictionInput, tokens: int, *, censored: bool = False) -> None:
        """Keep an answer that was missed; train again after `every` answers."""
        row = self._row(request)
        known = self._known.get(request)
        error = abs((float(self._predict(row[None])[0]) if known is None else known) - tokens)
        if error > ERROR_TOKENS or error > ERROR_SHARE * tokens:
            self._rows.append(row)
            self._tokens.append(float(tokens))
        self._answers += 1
        if self.every and self._answers % self.every == 0 and len(self._rows) > self._trained_on:
            self._train()

    def fit(self, inputs: Sequence[PredictionInput], tokens: Sequence[float]) -> None:
        """Train offline."""
        self._rows += [self._row(each) for each in inputs]
        self._tokens += tokens
        self._train()

    def _train(self) -> None:
        from sklearn.decomposition import PCA  # type: ignore[import-untyped]
        from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped]

        self._known.clear()
        rows = np.array(self._rows)
        reduced = PCA(min(EMBEDDING, len(rows)), random_state=self.seed).fit(rows[:, :MEANING])

        def columns(given: Floats) -> Floats:
            return np.column_stack([reduced.transform(given[:, :MEANING]), given[:, MEANING:]])

        forest = RandomForestRegressor(self.trees, random_state=self.seed).fit(columns(rows), self._tokens)
        self._model = lambda given: np.asarray(forest.predict(columns(given)), np.float64)
        self._trained_on = len(rows)

    def _predict(self, rows: Floats) -> Floats:
        return np.full(len(rows), math.exp(wide_prior().mu)) if self._model is None else self._model(rows)

    def _row(self, request: PredictionInput) -> Floats:
        embedding = self.text.tables.describe(self.text.reader.read(request.text))[-MEANING:]
        application = self._applications.setdefault(request.template, len(self._applications))
        return np.array([*embedding, application, len(request.text)], np.float64)


@dataclass(frozen=True)
class MagnusGrid:
    """The streams."""

    llms: int = 0
    """The first so many LLMs; 0: all."""
    orders: int = 1
    every: int = 100
    requests: int = 0
    """Of a stream, at most; 0: all of the official test."""
    trees: int = 100


@dataclass(frozen=True)
class Streamed:
    """A predictor on the streams of all LLMs, means."""

    predictor: str
    tau: float
    mae: float
    """Of the predicted median, in tokens, against the one answer that came."""
    late_tau: float
    late_mae: float
    """Of the second half of each stream."""


def stream_scores(llm: str, order: int, grid: MagnusGrid) -> dict[str, list[float]]:
    """Return tau and mean absolute error of each predictor on one stream, and those of its second half."""
    test, train = (_rows_of(part, llm) for part in ("test", "rest"))
    rng = np.random.default_rng([order, 4])
    chosen = rng.permutation(len(test[0]))[: grid.requests or None]
    inputs = [test[0][row] for row in chosen]
    tokens = [int(rng.choice(test[1][row])) for row in chosen]
    usual = np.array([test[1][row].mean() for row in chosen])
    text = load_predictor("fast")
    if not isinstance(text, FastPredictor):
        raise InputError("is no network on words", source="fast")
    forest = partial(Forest, text, trees=grid.trees, seed=order)
    offline, again = forest(every=0), forest(every=grid.every)
    for each in (offline, again):
        each.fit(train[0], [float(lengths.mean()) for lengths in train[1]])
    known = known_prompts("fast", inputs)
    asked = [PredictionInput(str(number), llm) for number in range(len(inputs))]
    medians = {
        HISTORY: _streamed(History(), inputs, tokens),
        FAST: np.exp(known.mu),
        LEARNER: np.exp(learned(known, asked, tokens).mu),
        NOTHING: _streamed(forest(every=grid.every), inputs, tokens),
        STATIC: np.exp(offline.predict(inputs).mu),
        AGAIN: _streamed(again, inputs, tokens),
    }
    late = slice(len(inputs) // 2, None)
    return {
        name: [
            figure
            for part in (slice(None), late)
            for figure in (kendall_tau(found[part], usual[part]), float(np.abs(found - tokens)[part].mean()))
        ]
        for name, found in medians.items()
    }


def _streamed(predictor: Any, inputs: Sequence[PredictionInput], tokens: Sequence[int]) -> Floats:
    """Return the medians of requests one after another, each predicted with the answers of those before it."""
    medians = []
    for request, length in zip(inputs, tokens, strict=True):
        medians.append(float(predictor.predict([request]).quantile(0.5)[0]))
        predictor.observe(request, length)
    return np.array(medians)


def _rows_of(part: str, llm: str) -> tuple[list[PredictionInput], list[NDArray[Any]]]:
    """Return the requests of an LLM in a part, with the corpus as the template, and the clean lengths of each."""
    rows = _castillo(part).where(llm=llm)
    lengths, clean = rows.lengths_matrix(), rows.clean_mask()
    columns = zip(rows.table["prompt"].to_pylist(), rows.table["corpus"].to_pylist(), strict=True)
    inputs = [PredictionInput(text, llm, template=corpus) for text, corpus in columns]
    usable = np.flatnonzero(clean.any(axis=1))
    return [inputs[row] for row in usable], [lengths[row][clean[row]] for row in usable]


@lru_cache(maxsize=2)
def _castillo(part: str) -> LengthSamples:
    """Return the official test or the other rows, without Alpaca."""
    samples = load_castillo()
    samples = samples.where(corpus=[corpus for corpus in samples.corpora if corpus != "Alpaca"])
    return samples.where(split="test" if part == "test" else ["train", "validate"])


def measure(run: Run, grid: MagnusGrid) -> tuple[Streamed, ...]:
    """Score every LLM and order."""
    llms = _castillo("test").llms[: grid.llms or None]
    cells = [(llm, order, grid) for llm in llms for order in range(grid.orders)]
    found = run.each("streams", stream_scores, cells)
    return tuple(Streamed(name, *np.mean([each[name] for each in found], axis=0).tolist()) for name in found[0])


def tables(found: tuple[Streamed, ...]) -> list[Table]:
    """One row per predictor."""
    return [
        table_of(
            "Magnus's predictor on CASTILLO's official test, one stream per LLM",
            found,
            [
                ("predictor", lambda each: each.predictor),
                ("tau", lambda each: f"{each.tau:.3f}"),
                ("mean absolute error", lambda each: f"{each.mae:.1f}"),
                ("tau, second half", lambda each: f"{each.late_tau:.3f}"),
                ("mean absolute error, second half", lambda each: f"{each.late_mae:.1f}"),
            ],
            [
                "means over LLMs and orders; each request is predicted, then its answer observed",
                "tau with the mean of a prompt's samples, error in tokens against the one answer that came",
            ],
        )
    ]


def answer(found: tuple[Streamed, ...]) -> str:
    """What training again brings, beside learning on `fast`."""
    by = {each.predictor: each for each in found}
    return (
        f"Trained offline, the forest has tau {by[STATIC].tau:.3f} and misses by {by[STATIC].mae:.0f} tokens; trained "
        f"again, {by[AGAIN].tau:.3f} and {by[AGAIN].mae:.0f}. `fast` has {by[FAST].tau:.3f} and {by[FAST].mae:.0f}, "
        f"learning {by[LEARNER].tau:.3f} and {by[LEARNER].mae:.0f}."
    )


def _needs(_: MagnusGrid) -> str | None:
    home = data_home()
    return None if home is not None and (home / "castillo").is_dir() else "needs LENGTHWISE_DATA with castillo/"


STUDY: Study[MagnusGrid, tuple[Streamed, ...]] = Study(
    name="magnus",
    title="Magnus's predictor on a stream",
    question="Does a random forest that is trained again on its errors predict as well as `fast`, alone or learning?",
    paper="Magnus, arXiv 2406.04785",
    source="CASTILLO",
    grid=MagnusGrid(),
    quick=MagnusGrid(llms=2, orders=1, requests=300, trees=20),
    minutes=(15, 0.4),
    measure=measure,
    tables=tables,
    answer=answer,
    needs=_needs,
)
