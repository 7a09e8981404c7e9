"""Predictions while a host serves: asked for at once, made beside it, taken in before the host next decides.

The host's own thread never waits for a predictor and never runs one: a worker thread asks it, in a process of its
own. It admits a request, which gives it the LLM's history to go by meanwhile; asks; takes in what has come
(`deliver`); and tells how each answer ended, which teaches the history and the predictor's calibration. Nothing here
raises into the host. Knows no clock but the one it is given, and neither policies nor HTTP.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lengthwise.lengths import LengthDistribution
from lengthwise.predictors.calibration import OnlineCalibrated
from lengthwise.predictors.contract import LengthPredictor, PredictionInput
from lengthwise.predictors.history import History
from lengthwise.predictors.resolve import (
    packaged_predictors,
    parse_predictor_spec,
    resolve_predictor,
)
from lengthwise.predictors.subprocess_predictor import SubprocessPredictor

Ticket = tuple[str, int]

NO_PREDICTOR: Final = "none"

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
    if name in (NO_PREDICTOR, "history"):
        return PredictionService(None)
    apart = SubprocessPredictor(name)
    return PredictionService((lambda: seen_as(apart.start())) if seen_as else apart.start, apart=apart)


def known_predictor(name: str) -> str:
    """Return the name, or a model file's full path; InputError where a host cannot serve such a predictor."""
    if name in (NO_PREDICTOR, *packaged_predictors()):
        return name
    spec = parse_predictor_spec(name)
    if spec.kind != "ask":  # its server may start later
        resolve_predictor(spec)
    return str(Path(name).resolve()) if spec.kind == "model" else name


_MOST: Final = 32
_AT_ONCE_S: Final = 0.002
"""CPU time of one batch. Python lets one thread run at a time, and the host's has to come through in between."""

_PAUSE_S: Final = 50e-6  # long enough for a waiting thread to take over, which sleep(0) is not
_JOIN_S: Final = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Question:
    """A prediction is wanted for this request."""

    ticket: Ticket
    read: Callable[[], PredictionInput]
    at: float


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that was asked about is over; `tokens` is None where its length is not known."""

    ticket: Ticket
    tokens: int | None
    censored: bool


@dataclass(frozen=True, slots=True)
class Arrived:
    """A prediction."""

    ticket: Ticket
    prediction: LengthDistribution


class Worker:
    """Questions and ends in, predictions out, each by a queue of which the other end is the host's.

    The figures are written by the worker alone, and may be read at any time.
    """

    def __init__(self, load: Callable[[], OnlineCalibrated], clock: Callable[[], float], deadline_s: float) -> None:
        self._load = load
        self._clock = clock
        self._deadline_s = deadline_s
        self._predictor: OnlineCalibrated | None = None
        self._unloadable: Exception | None = None
        self._told = False
        self._stopping = False
        self._inbox: queue.SimpleQueue[Question | Ended | None] = queue.SimpleQueue()
        self._outbox: deque[Arrived] = deque()
        self._inputs: dict[Ticket, PredictionInput] = {}
        self._thread: threading.Thread | None = None
        self._prompt_cpu_s = _AT_ONCE_S
        self.busy_since: float | None = None
        """When the predictor was called, while it has not returned."""
        self.answered = self.failed = self.expired = self.observed = 0
        self.cpu_s = self.age_s = 0.0

    @property
    def waiting(self) -> int:
        """What is in the queue."""
        return self._inbox.qsize()

    def put(self, message: Question | Ended) -> None:
        """Hand something to the worker, and start it if it is not there yet."""
        self._inbox.put(message)
        self.start()

    def next_arrived(self) -> Arrived | None:
        """The next prediction, None where there is no more."""
        return self._outbox.popleft() if self._outbox else None

    def start(self) -> None:
        """Start the thread, which first loads the predictor."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lengthwise-predictions", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Have the thread end after what it has in hand, and give it a moment."""
        self._stopping = True
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(_JOIN_S)

    def work(self, *, wait: bool) -> None:
        """Take one batch of what is in the queue."""
        batch = self._batch(wait=wait)
        began = time.thread_time()
        self.busy_since = self._clock()
        questions = [message for message in batch if isinstance(message, Question)]
        self._answer(questions)
        for message in batch:
            # A request's end is put after its question, so its prediction is known by now.
            if isinstance(message, Ended):
                self._observe(message)
        self.busy_since = None
        spent = time.thread_time() - began
        self.cpu_s += spent
        if questions:
            self._prompt_cpu_s += 0.2 * (spent / len(questions) - self._prompt_cpu_s)

    def _run(self) -> None:
        self.busy_since = self._clock()
        with contextlib.suppress(Exception):  # told when it came; every question will fail with it
            self._loaded()
        self.busy_since = None
        while not self._stopping:
            self.work(wait=True)
            time.sleep(_PAUSE_S)

    def _batch(self, *, wait: bool) -> list[Question | Ended | None]:
        most = min(_MOST, 1 + int(_AT_ONCE_S / max(self._prompt_cpu_s, 1e-6)))
        batch: list[Question | Ended | None] = []
        try:
            while len(batch) < most:
                batch.append(self._inbox.get(block=wait and not batch))
        except queue.Empty:
            pass
        return batch

    def _answer(self, questions: Sequence[Question]) -> None:
        now = self._clock()
        read: list[tuple[Question, PredictionInput]] = []
        for question in questions:
            if now - question.at > self._deadline_s:
                self.expired += 1
                continue
            try:
                read.append((question, question.read()))
            except Exception as error:  # a prompt that cannot be read must not stop the others
                self._fail("a prompt could not be read", error)
        self._predict(read)

    def _predict(self, read: Sequence[tuple[Question, PredictionInput]]) -> None:
        if not read:
            return
        try:
            predictor = self._loaded()
            predictions = predictor.predict([request for _, request in read])
            found = [predictions[row] for row in range(len(read))]
        except Exception as error:  # whatever a predictor does, the host goes on by history
            if len(read) > 1:  # one bad prompt is found by asking for each alone
                for one in read:
                    self._predict([one])
                return
            self._fail("the predictor failed", error)
            return
        now = self._clock()
        for (question, request), prediction in zip(read, found, strict=True):
            self._inputs[question.ticket] = request
            self.answered += 1
            self.age_s += now - question.at
            self._outbox.append(Arrived(question.ticket, prediction))

    def _observe(self, ended: Ended) -> None:
        request = self._inputs.pop(ended.ticket, None)
        if request is None or ended.tokens is None:
            return
        try:
            self._loaded().observe(request, ended.tokens, censored=ended.censored)
        except Exception as error:  # the prediction was given all the same
            self._tell("an answer's length could not be learned from", error)
        else:
            self.observed += 1

    def _loaded(self) -> OnlineCalibrated:
        if self._unloadable is not None:
            raise self._unloadable
        if self._predictor is None:
            try:
                self._predictor = self._load_patiently()
            except Exception as error:
                self._unloadable = error
                self._tell("the predictor cannot be loaded", error)
                raise
        return self._predictor

    def _load_patiently(self) -> OnlineCalibrated:
        try:
            return self._load()
        except SystemError:  # Python 3.11 now and then fails to compile in two threads at once (cpython issue 106905)
            return self._load()

    def _fail(self, what: str, error: Exception) -> None:
        self.failed += 1
        self._tell(what, error)

    def _tell(self, what: str, error: Exception) -> None:
        """Log the first trouble; the rest is in the figures. What comes of stopping is none."""
        if not self._told and not self._stopping:
            self._told = True
            _log.warning("%s (%s: %s); requests go by the history of their LLM", what, type(error).__name__, error)
