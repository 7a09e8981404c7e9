"""Magnus (arXiv 2406.04785): a random forest on an embedding of the prompt, retrained on what it got wrong.

As in the paper: an embedding, the prompt's length, a random forest, and online retraining on the requests whose
prediction was off by more than 10 tokens or 10 %. Different here: the embedding is hashed words (the paper's is a
sentence encoder), the LLM's family and size are features, the target is the log of the length, and the answer is a
prediction, with the spread that the forest's own recent errors have. scikit-learn grows the trees; it is an extra.
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from lengthwise.errors import InputError
from lengthwise.predictors.contract import LogTPredictions
from lengthwise.predictors.history import History, Tracker
from lengthwise.predictors.identity import identify
from lengthwise.predictors.nearest import hashed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lengthwise.predictors.contract import PredictionInput

    Floats = NDArray[np.float64]

MISS_TOKENS: Final = 10
MISS_SHARE: Final = 0.1
_DIMENSIONS: Final = 64
_TREES: Final = 50
_FIRST_FIT: Final = 50  # requests before there is a forest at all
_START_SCALE: Final = 0.6  # of the log error, until errors have been seen


class Regressor(Protocol):
    """What grows from features to a number."""

    def fit(self, x: Floats, y: Floats) -> Any:  # noqa: ANN401
        """Forget, and learn these rows."""

    def predict(self, x: Floats) -> Any:  # noqa: ANN401
        """One number for each row."""


def sklearn_forest(seed: int = 0) -> Regressor:
    """A random forest of scikit-learn; an InputError where that is not installed."""
    try:
        ensemble = importlib.import_module("sklearn.ensemble")
    except ImportError as error:
        raise InputError(
            "the random forest needs scikit-learn", source="forest", hint="pip install 'lengthwise[train]'"
        ) from error
    forest: Regressor = ensemble.RandomForestRegressor(
        n_estimators=_TREES, min_samples_leaf=3, max_features=1 / 3, n_jobs=1, random_state=seed
    )
    return forest


def is_miss(predicted: float, length: int) -> bool:
    """Whether Magnus learns from this request: off by more than 10 tokens or by more than 10 %."""
    off = abs(predicted - length)
    return off > MISS_TOKENS or off > MISS_SHARE * length


@dataclass
class Forest:
    """Magnus as a predictor: learns from the answers it is told, in the background of its own `observe`.

    The first 50 requests are all learned from, later ones where they were missed; a fit follows every
    `retrain_every` of them, on the last `capacity`. Before the first fit the prediction is the LLM's history. A cut-off
    answer that is longer than predicted counts with the tokens it had; a shorter one says nothing and is left out.
    """

    make: Callable[[], Regressor] = sklearn_forest
    retrain_every: int = 200
    capacity: int = 5000
    history: History = field(default_factory=History)
    fits: int = 0
    _forest: Regressor | None = None
    _errors: Tracker = field(default_factory=lambda: Tracker.starting(0.0, _START_SCALE, 10.0))
    _new: int = 0

    def __post_init__(self) -> None:
        self._rows: deque[tuple[Floats, float]] = deque(maxlen=self.capacity)

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        """Return one prediction for each input, in order."""
        if self._forest is None or not inputs:
            return self.history.predict(inputs)
        centre = np.asarray(self._forest.predict(np.stack([features(each) for each in inputs])), np.float64)
        caps = np.array([each.cap for each in inputs], np.float64)
        return LogTPredictions.of(centre + self._errors.location, self._errors.scale, caps)

    def observe(self, request: PredictionInput, length: int, *, censored: bool = False) -> None:
        """Take in one answer, and learn from it where it was missed."""
        row, log_length = features(request), math.log(max(1, length))
        centre = None if self._forest is None else float(self._forest.predict(row[None, :])[0])
        self.history.observe(request.llm, length, censored=censored)
        if centre is not None:
            self._errors.observe(log_length - centre, censored=censored)
            predicted = math.exp(centre)
            if not is_miss(predicted, length) or (censored and predicted >= length):
                return
        elif censored:
            return
        self._rows.append((row, log_length))
        self._new += 1
        if self._new >= (_FIRST_FIT if self._forest is None else self.retrain_every):
            self._retrain()

    def _retrain(self) -> None:
        forest = self.make()
        forest.fit(np.stack([row for row, _ in self._rows]), np.array([y for _, y in self._rows]))
        self._forest, self._new = forest, 0
        self.fits += 1


def features(request: PredictionInput) -> Floats:
    """Hashed words, the prompt's length (in tokens where known, else in words) and what the LLM's name says."""
    tokens = request.prompt_tokens
    length = math.log1p(len(request.text.split()) if tokens is None else tokens)
    extra = [length, float(tokens is None), math.log1p(len(request.text))]
    return np.concatenate([hashed_words(request.text, _DIMENSIONS), extra, identify(request.llm).features()])
