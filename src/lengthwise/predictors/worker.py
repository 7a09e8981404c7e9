"""The one thread that asks a predictor: it takes what waits in small batches, and outlives whatever goes wrong."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lengthwise.lengths import LengthDistribution
    from lengthwise.predictors.contract import PredictionInput
    from lengthwise.predictors.online import OnlineCalibrated

    Ticket = tuple[str, int]

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
