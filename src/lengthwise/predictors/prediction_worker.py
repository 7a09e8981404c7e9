"""The thread that calls a predictor for a `PredictionService`: questions in, predictions out, lengths observed."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from lengthwise.files import atomic_path
from lengthwise.lengths import LengthDistribution, LogT
from lengthwise.predictors.calibration import OnlineCalibrated
from lengthwise.predictors.contract import LengthPredictor, Observation, PredictionInput
from lengthwise.predictors.subprocess_predictor import SubprocessPredictor

Ticket = tuple[str, int]
"""A host's key of a request, and a number: a host may use a key again."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """Counters. asked = answered + failed + dropped + open."""

    asked: int = 0
    answered: int = 0
    failed: int = 0
    """The predictor raised, or the prompt could not be read."""
    dropped: int = 0
    """Not predicted: the queue was full, the predictor hung, or the deadline had passed."""
    quick: int = 0
    """Of the answered: by the quick predictor, where the other one could not keep up or nothing depended on it."""
    late: int = 0
    """Of the answered: the request was no longer waiting when its prediction arrived."""
    hung: int = 0
    """Times the predictor was detected to hang."""
    observed: int = 0
    """Lengths that updated the predictor's calibration."""
    learned: int = 0
    """Lengths that the predictor itself observed, if it learns."""
    unlearned: int = 0
    """Lengths at which its `observe` raised, or whose process had ended."""
    cpu_s: float = 0.0
    age_s: float = 0.0
    """Sum over the answered of the seconds from request to prediction."""

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long a question waits: until it is dropped, and until the quick predictor answers it."""

    deadline_s: float
    keep_up_s: float


_MAX_BATCH: Final = 32
_AT_ONCE_S: Final = 0.002
"""CPU time of one batch. Python runs one thread at a time, and the host's thread has to run in between."""

_BATCH_S: Final = 0.1
"""Time of one batch in the predictor's process, which the questions behind it wait for."""

_PAUSE_S: Final = 50e-6  # long enough for a waiting thread to take over, which sleep(0) is not
_GATHER_S: Final = 0.004  # after the last message: those that arrive meanwhile are one batch
_JOIN_S: Final = 1.0
_SAVE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Question:
    """A prediction is requested."""

    ticket: Ticket
    read: Callable[[], PredictionInput]
    at: float
    quick: bool = False
    """Whether the quick predictor answers it, if there is one: nothing depends on its accuracy."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request with a question ended; `tokens` is None if its length is unknown."""

    ticket: Ticket
    tokens: int | None
    censored: bool


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A prediction is requested that no admitted request waits for."""

    request: PredictionInput
    done: Future[LengthDistribution]


@dataclass(frozen=True, slots=True)
class Reset:
    """The calibration starts anew."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """The file that a predictor that learns continues from and is saved to at the end: its name, then its state."""

    path: Path
    predictor: str

    def read(self) -> bytes | None:
        """Return the state; None without a file, or where it is that of another predictor."""
        try:
            name, _, state = self.path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        if name != self.predictor.encode():
            _log.warning("%s is the state of another predictor, and is replaced at the end", self.path)
            return None
        return state

    def write(self, state: bytes) -> None:
        """Replace the state."""
        with atomic_path(self.path) as new:
            new.write_bytes(self.predictor.encode() + b"\n" + state)


class Worker:
    """The thread that calls the predictor, in small batches. It survives every exception.

    Questions and ends arrive in one queue, predictions leave in another. The counters are written by the worker only
    and may be read at any time. `learner` is the process of the predictor: if that learns, it observes the length of
    every answer that was predicted, once no question waits or a batch is full, so at most a batch of lengths waits for
    it. Its state is restored from `state_file` at the start and saved there at the end.
    """

    def __init__(
        self,
        load: Callable[[], LengthPredictor],
        clock: Callable[[], float],
        limits: WaitLimits,
        quick: LengthPredictor | None = None,
        learner: SubprocessPredictor | None = None,
        state_file: StateFile | None = None,
    ) -> None:
        self._load = load
        self._learner = learner
        self._state_file = state_file
        self._observations: list[Observation] = []
        self._learning_logged = False
        self._clock = clock
        self._limits = limits
        self._predictor: OnlineCalibrated | None = None
        self._quick = None if quick is None else OnlineCalibrated(quick)
        self._loaded_at = 0.0
        self.unloadable: Exception | None = None
        """Why the predictor cannot be loaded."""
        self._logged = False
        self._stopping = False
        self._inbox: queue.SimpleQueue[Question | Ended | Inquiry | Reset | None] = queue.SimpleQueue()
        self._outbox: deque[tuple[Ticket, LengthDistribution | None, LogT | None]] = deque()
        self._predicted: dict[Ticket, tuple[PredictionInput, OnlineCalibrated]] = {}
        self._thread: threading.Thread | None = None
        self._prompt_cpu_s = _AT_ONCE_S
        self._prompt_s = _AT_ONCE_S
        self.busy_since: float | None = None
        """When the predictor was called, while it has not returned."""
        self.counts = Counts()
        self._asked = 0

    @property
    def open_questions(self) -> int:
        """Questions whose prediction has not been taken."""
        return self._asked - self.counts.answered - self.counts.failed - self.counts.dropped + len(self._outbox)

    @property
    def waiting(self) -> int:
        """Messages in the queue."""
        return self._inbox.qsize()

    @property
    def loaded(self) -> bool:
        """Whether the predictor is loaded."""
        return self._predictor is not None

    def put(self, message: Question | Ended | Inquiry | Reset, *, start: bool = True) -> None:
        """Send a message to the worker; start it if necessary."""
        self._asked += isinstance(message, Question)
        self._inbox.put(message)
        if start:
            self.start()

    def next_arrived(self) -> tuple[Ticket, LengthDistribution | None, LogT | None] | None:
        """Return the next finished question, its prediction and the same without calibration, None where it failed.

        None if there is none.
        """
        return self._outbox.popleft() if self._outbox else None

    def start(self) -> None:
        """Start the thread; it loads the predictor first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lengthwise-predictions", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current batch; wait at most a second, longer to save what the predictor learned."""
        self._stopping = True
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(_JOIN_S if self._state_file is None or not self._learns else _SAVE_S)

    def work(self, *, wait: bool) -> None:
        """Process one batch of the queue."""
        batch = self._batch(wait=wait)
        began, began_cpu = time.perf_counter(), time.thread_time()
        self.busy_since = self._clock()
        questions = [message for message in batch if isinstance(message, Question)]
        self._answer(questions)
        for message in batch:
            # A request's end is put after its question, so its prediction is known by now.
            if isinstance(message, Ended):
                self._observe(message)
            elif isinstance(message, Inquiry):
                self._inquire(message)
            elif isinstance(message, Reset):
                self._reset()
        if len(self._observations) >= _MAX_BATCH or not self.waiting:
            self._learn()
        self.busy_since = None
        spent = time.thread_time() - began_cpu
        self.counts.cpu_s += spent
        if questions:
            self._prompt_cpu_s += 0.2 * (spent / len(questions) - self._prompt_cpu_s)
            self._prompt_s += 0.2 * ((time.perf_counter() - began) / len(questions) - self._prompt_s)

    def _run(self) -> None:
        self.busy_since = self._clock()
        with contextlib.suppress(Exception):  # logged where it was raised; every question fails with it
            self._loaded()
            self._restore()
        self._loaded_at = self._clock()  # questions that waited for it do not show that it cannot keep up
        self.busy_since = None
        while not self._stopping:
            self.work(wait=True)
            time.sleep(_PAUSE_S if self.waiting else _GATHER_S)
        self._save()

    def _batch(self, *, wait: bool) -> list[Question | Ended | Inquiry | Reset | None]:
        cpu, real = _AT_ONCE_S / max(self._prompt_cpu_s, 1e-6), _BATCH_S / max(self._prompt_s, 1e-6)
        most = min(_MAX_BATCH, 1 + int(cpu), 1 + int(real))
        batch: list[Question | Ended | Inquiry | Reset | None] = []
        try:
            while len(batch) < most and not (batch and isinstance(batch[-1], Reset)):
                batch.append(self._inbox.get(block=wait and not batch))
        except queue.Empty:
            pass
        return batch

    def _answer(self, questions: Sequence[Question]) -> None:
        now = self._clock()
        read: list[tuple[Question, PredictionInput]] = []
        for question in questions:
            if now - question.at > self._limits.deadline_s:
                self._outbox.append((question.ticket, None, None))
                self.counts.dropped += 1
                continue
            try:
                read.append((question, question.read()))
            except Exception as error:  # a prompt that cannot be read must not stop the others
                self._fail(question, "a prompt could not be read", error)
        soon: list[tuple[Question, PredictionInput]] = []
        others: list[tuple[Question, PredictionInput]] = []
        for each in read:
            waited_s = now - max(each[0].at, self._loaded_at)
            (soon if each[0].quick or waited_s > self._limits.keep_up_s else others).append(each)
        quick = self._quick
        self._predict(soon, self._loaded if quick is None else lambda: quick)
        self._predict(others, self._loaded)

    def _predict(self, read: Sequence[tuple[Question, PredictionInput]], load: Callable[[], OnlineCalibrated]) -> None:
        if not read:
            return
        try:
            predictor = load()
            predictions = predictor.predict([request for _, request in read])
            found = [predictions[row] for row in range(len(read))]
        except Exception as error:  # the host continues with history
            if len(read) > 1:  # find the bad prompt by predicting each alone
                for one in read:
                    self._predict([one], load)
                return
            self._fail(read[0][0], "the predictor failed", error)
            return
        now = self._clock()
        for (question, request), prediction in zip(read, found, strict=True):
            self._predicted[question.ticket] = request, predictor
            # Counted last: `open_questions` is 0 only once it can be taken.
            self._outbox.append((question.ticket, prediction, predictor.uncalibrated(prediction, request.llm)))
            self.counts.age_s += now - question.at
            self.counts.quick += predictor is self._quick
            self.counts.answered += 1

    def _inquire(self, inquiry: Inquiry) -> None:
        if not inquiry.done.set_running_or_notify_cancel():
            return
        try:
            inquiry.done.set_result(self._loaded().predict([inquiry.request])[0])
        except Exception as error:
            inquiry.done.set_exception(error)

    def _observe(self, ended: Ended) -> None:
        predicted = self._predicted.pop(ended.ticket, None)
        if predicted is None or ended.tokens is None:
            return
        request, predictor = predicted
        if self._learns:
            self._observations.append(Observation(request, ended.tokens, ended.censored))
        try:
            predictor.observe(request, ended.tokens, censored=ended.censored)
        except Exception as error:  # the prediction itself succeeded
            self._log_once("an answer's length could not be observed", error)
        else:
            self.counts.observed += 1

    @property
    def _learns(self) -> bool:
        return self._learner is not None and self._learner.learns

    def _learn(self) -> None:
        """Let the predictor observe the lengths that wait for it."""
        if self._learner is None or not self._observations:
            return
        observations, self._observations = self._observations, []
        try:
            errors = self._learner.observe_all(observations)
        except Exception as error:  # its process ended
            errors = [str(error)] * len(observations)
        self.counts.learned += len(observations) - len(errors)
        self.counts.unlearned += len(errors)
        if errors and not self._learning_logged:
            self._learning_logged = True
            _log.warning("the predictor could not observe a length (%.300r); it goes on predicting", errors[0])

    def _restore(self) -> None:
        if self._learner is None or not self._learns or self._state_file is None:
            return
        try:
            if (state := self._state_file.read()) is not None:
                self._learner.restore(state)
        except Exception as error:  # of the file or of the predictor, which starts afresh
            _log.warning("the predictor's state in %s is not used (%.300r)", self._state_file.path, error)

    def _save(self) -> None:
        """Observe the lengths that have arrived, and save what the predictor has learned."""
        if self._learner is None or not self._learns or self._state_file is None:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, Ended):
                    self._observe(message)
        self._learn()
        try:
            self._state_file.write(self._learner.state())
        except Exception as error:  # of the file, or of the predictor
            _log.warning("the predictor's state is not saved to %s (%.300r)", self._state_file.path, error)

    def _loaded(self) -> OnlineCalibrated:
        if self.unloadable is not None:
            raise self.unloadable
        if self._predictor is None:
            try:
                with contextlib.suppress(SystemError):
                    # Python 3.11 now and then fails to compile in two threads at once (cpython issue 106905).
                    self._predictor = OnlineCalibrated(self._load())
                self._predictor = self._predictor or OnlineCalibrated(self._load())
            except Exception as error:
                self.unloadable = error
                self._log_once("the predictor cannot be loaded", error)
                raise
        return self._predictor

    def _reset(self) -> None:
        if self._predictor is not None:
            self._predictor = OnlineCalibrated(self._predictor.predictor)
        if self._quick is not None:
            self._quick = OnlineCalibrated(self._quick.predictor)
        self._observations.clear()
        if self._learner is not None and self._learns:
            try:
                self._learner.reset()
            except Exception as error:  # its process ended, and what it learned with it
                self._log_once("the predictor could not be reset", error)

    def _fail(self, question: Question, what: str, error: Exception) -> None:
        self._outbox.append((question.ticket, None, None))
        self.counts.failed += 1
        self._log_once(what, error)

    def _log_once(self, what: str, error: Exception) -> None:
        """Log the first error; later ones are only counted. Errors caused by stopping are not logged."""
        if not self._logged and not self._stopping:
            self._logged = True
            # The text may quote a client's: %r escapes control characters.
            _log.warning("%s (%.300r); predictions come from the history of each LLM", what, error)
