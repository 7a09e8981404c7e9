"""Predictions while a host serves: asked for at once, made beside it, taken in before the host next decides.

The host's own thread never waits for a predictor and never runs one: a worker thread asks it, in a process of its
own. It admits a request, which gives it the LLM's history to go by meanwhile; asks; takes in what has come
(`deliver`); and tells how each answer ended, which teaches the history and the predictor's calibration. Nothing here
raises into the host. Knows no clock but the one it is given, and neither policies nor HTTP.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lengthwise.lengths import LengthDistribution
from lengthwise.predictors.contract import LengthPredictor, PredictionInput
from lengthwise.predictors.history import History
from lengthwise.predictors.load import load_predictor, packaged_predictors
from lengthwise.predictors.online import OnlineCalibrated
from lengthwise.predictors.subprocess_predictor import SubprocessPredictor
from lengthwise.predictors.worker import Ended, Question, Worker

NO_PREDICTOR: Final = "none"
DEFAULT_PREDICTOR: Final = "fast"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Counts:
    """What has happened so far. asked = answered + failed + dropped + those still open."""

    asked: int
    answered: int
    failed: int
    """The predictor raised, or the prompt could not be read."""
    dropped: int
    """Never put to the predictor: too many wait, it hangs, or the question had grown old."""
    late: int
    """Of the answered: the request waited no longer when its prediction came."""
    hung: int
    """Times the predictor was found not to return."""
    observed: int
    """Ends that the predictor's calibration was told."""
    cpu_s: float
    age_s: float
    """Sum over the answered: from the question to the prediction."""


@dataclass(slots=True)
class _Open:
    llm: str
    ticket: tuple[str, int]  # what the worker knows it by: a host may use a key again
    asked: bool = False
    delivered: bool = False


class PredictionService:
    """The predictions of one host. All methods are the host thread's; only the worker runs the predictor.

    `load` is called by the worker, at `warm` or the first question; None means no predictor, only history. At most
    `max_waiting` questions wait, none longer than `deadline_s`: enough for a batch that comes all at once, whose last
    requests wait far longer than their predictions. A predictor that has not returned for `patience_s` hangs, and is asked
    nothing until it does return. `apart` is the process that it runs in, where that is not this one: its CPU time
    counts, and it ends with the service.
    """

    def __init__(
        self,
        load: Callable[[], LengthPredictor] | None,
        *,
        max_waiting: int = 16_384,
        patience_s: float = 10.0,
        deadline_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        apart: SubprocessPredictor | None = None,
    ) -> None:
        self._history = History()
        self._open: dict[str, _Open] = {}
        self._numbers = itertools.count()
        self._max_waiting = max_waiting
        self._patience_s = patience_s
        self._clock = clock
        self._hangs = False
        self._asked = self._dropped = self._late = self._hung = 0
        self._apart = apart
        self._worker = None if load is None else Worker(lambda: OnlineCalibrated(load()), clock, deadline_s)

    @property
    def predicts(self) -> bool:
        """Whether there is a predictor at all."""
        return self._worker is not None

    @property
    def counts(self) -> Counts:
        """What has happened so far."""
        work = self._worker
        return Counts(
            asked=self._asked,
            answered=0 if work is None else work.answered,
            failed=0 if work is None else work.failed,
            dropped=self._dropped + (0 if work is None else work.expired),
            late=self._late,
            hung=self._hung,
            observed=0 if work is None else work.observed,
            cpu_s=(0.0 if work is None else work.cpu_s) + (0.0 if self._apart is None else self._apart.cpu_s),
            age_s=0.0 if work is None else work.age_s,
        )

    def warm(self) -> None:
        """Have the predictor loaded now, not at the first question."""
        if self._worker is not None:
            self._worker.start()

    def admit(self, key: str, llm: str, max_tokens: int | None) -> LengthDistribution | None:
        """A request has come: what its LLM's history says of it. None, the wide prior, where there is no history.

        Every key that is admitted must end (`ended`).
        """
        self._open[key] = _Open(llm, (key, next(self._numbers)))
        if not self._history.pooled.seen:
            return None
        return self._history.prediction(llm, PredictionInput("", llm, max_tokens).cap)

    def ask(self, key: str, read: Callable[[], PredictionInput]) -> None:
        """Want a prediction for an admitted request. The worker calls `read`, so that reading costs the host nothing."""
        state = self._open.get(key)
        if self._worker is None or state is None or state.asked:
            return
        self._asked += 1
        if self._found_hanging(self._worker) or self._worker.waiting >= self._max_waiting:
            self._dropped += 1
            return
        state.asked = True
        self._worker.put(Question(state.ticket, read, self._clock()))

    def is_open(self, key: str) -> bool:
        """Whether a prediction was asked for and has not been delivered yet."""
        state = self._open.get(key)
        return state is not None and state.asked and not state.delivered

    def deliver(self, take: Callable[[str, LengthDistribution], bool]) -> None:
        """Hand over the predictions that have come. `take` says whether the request was still waiting."""
        if self._worker is None:
            return
        self._found_hanging(self._worker)
        while (arrived := self._worker.next_arrived()) is not None:
            key, _ = ticket = arrived.ticket
            state = self._open.get(key)
            if state is not None and state.ticket == ticket:
                state.delivered = True
            # One that ended before its prediction came is nobody's any more.
            if state is None or state.ticket != ticket or not take(key, arrived.prediction):
                self._late += 1

    def ended(self, key: str, tokens: int | None, *, censored: bool = False) -> None:
        """An admitted request is over: its answer's length, None where that is not known; told twice, counts once.

        `censored`: cut by max_tokens or by its client, so that it would have been at least this long. An answer
        that was cut before its first token says nothing.
        """
        state = self._open.pop(key, None)
        if state is None:
            return
        known = None if tokens is None or (censored and tokens < 1) else tokens
        if known is not None:
            self._history.observe(state.llm, known, censored=censored)
        if state.asked and self._worker is not None:
            self._worker.put(Ended(state.ticket, known, censored))

    def close(self) -> None:
        """Stop the worker and the predictor's process; a thread that hangs is left behind and ends with the host."""
        if self._worker is not None:
            self._worker.stop()
        if self._apart is not None:
            self._apart.close()

    def _found_hanging(self, worker: Worker) -> bool:
        since = worker.busy_since
        hangs = since is not None and self._clock() - since > self._patience_s
        if hangs and not self._hangs:
            self._hung += 1
            if self._hung == 1:
                _log.warning(
                    "the predictor has not returned for %.0f s: it is asked nothing until it does, and requests go "
                    "by the history of their LLM",
                    self._patience_s,
                )
        self._hangs = hangs
        return hangs


def prediction_service(
    name: str, seen_as: Callable[[LengthPredictor], LengthPredictor] | None = None
) -> PredictionService:
    """The service of a predictor by name or file, in a process of its own; `none` has history only.

    `seen_as` may wrap what it is asked and answers.
    """
    if name == NO_PREDICTOR:
        return PredictionService(None)
    apart = SubprocessPredictor(name)
    return PredictionService((lambda: seen_as(apart.start())) if seen_as else apart.start, apart=apart)


def known_predictor(name: str) -> str:
    """The same name, or a file's full path; InputError where there is no such predictor or its file is no good."""
    if name == NO_PREDICTOR or name in packaged_predictors():
        return name
    load_predictor(name)
    return str(Path(name).resolve())
