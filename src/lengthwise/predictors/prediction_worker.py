"""The thread that calls a predictor for a `PredictionService`: questions in, predictions out, lengths observed."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from typing import Final, Protocol

from lengthwise.lengths import LengthDistribution, LogT
from lengthwise.predictors.contract import LengthPredictor, PredictionInput, as_logt
from lengthwise.predictors.served import Ending, Served, ServedPredictors, Taught

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
    """Lengths that were learned from."""
    learned: int = 0
    """Of these: by a predictor of another package, which learns by itself."""
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
_COLLECT_S: Final = 10.0


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
class Separate:
    """Tenants are learned from apart from now on, or no longer."""

    apart: bool


@dataclass(frozen=True, slots=True)
class Collect:
    """What is learned is collected, to be saved."""

    done: threading.Event


Message = Question | Ended | Inquiry | Reset | Separate | Collect


class Frame(Protocol):
    """How a measurement sees requests and lengths: another LLM's, on another scale."""

    def asked(self, request: PredictionInput) -> PredictionInput:
        """Return the request as the predictor gets it."""

    def predicted(self, prediction: LogT, cap: int) -> LogT:
        """Return a prediction as the host gets it."""

    def observed(self, tokens: int) -> int:
        """Return a length as the predictor gets it."""


class Worker:
    """The thread that calls the predictor, in small batches. It survives every exception.

    Questions and ends arrive in one queue, predictions leave in another. The counters are written by the worker only
    and may be read at any time. The predictor observes the length of every answer that was predicted, once no question
    waits or a batch is full, so at most a batch of lengths waits for it. Without `learning`, nothing is observed; with
    `tenants_apart`, each tenant's answers change its own predictions only. `kept` is learned state, which is restored
    once the predictor is loaded. `frame` changes requests and lengths on the way.
    """

    def __init__(
        self,
        load: Callable[[], LengthPredictor],
        clock: Callable[[], float],
        limits: WaitLimits,
        quick: LengthPredictor | None = None,
        *,
        predictor: str = "",
        learning: bool = True,
        tenants_apart: bool = False,
        kept: Mapping[str, bytes] | None = None,
        frame: Frame | None = None,
    ) -> None:
        self.predictor = predictor
        """The name of the predictor."""
        self._load = load
        self._quick = quick
        self._frame = frame
        self._learning = learning
        self._tenants_apart = tenants_apart
        self._kept: Mapping[str, bytes] = kept or {}
        self._collecting: threading.Event | None = None
        self._endings: list[Ending] = []
        self._learning_logged = False
        self._clock = clock
        self._limits = limits
        self._served: Served | None = None
        self._loaded_at = 0.0
        self.unloadable: Exception | None = None
        """Why the predictor cannot be loaded."""
        self._logged = False
        self._stopping = False
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._outbox: deque[tuple[Ticket, LogT | None, LogT | None]] = deque()
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
        return self._served is not None

    @property
    def idle(self) -> bool:
        """Whether the predictor is loaded and has nothing to do."""
        return self.loaded and self.busy_since is None and not self.waiting

    def put(self, message: Message, *, start: bool = True) -> None:
        """Send a message to the worker; start it if necessary."""
        self._asked += isinstance(message, Question)
        self._inbox.put(message)
        if start:
            self.start()

    def next_arrived(self) -> tuple[Ticket, LogT | None, LogT | None] | None:
        """Return the next finished question, its prediction and that of the model alone, None where it failed.

        None if there is none.
        """
        return self._outbox.popleft() if self._outbox else None

    def start(self) -> None:
        """Start the thread; it loads the predictor first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lengthwise-predictions", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current batch; wait at most a second, longer for what the predictor has learned."""
        self._stopping = True
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(_COLLECT_S if self._learning else _JOIN_S)

    def learned(self) -> Mapping[str, bytes]:
        """Return the learned state, in parts; of a predictor that does not return in time, as it was. For any thread.

        After `stop` it is what was learned until then.
        """
        if self._thread is not None and self._thread.is_alive() and not self._stopping:
            if self._collecting is None or self._collecting.is_set():  # else the last call still waits for it
                self._collecting = threading.Event()
                self._inbox.put(Collect(self._collecting))
            self._collecting.wait(_COLLECT_S)
        return self._kept

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
            elif isinstance(message, Separate):
                self._separate(message.apart)
            elif isinstance(message, Collect):
                self._collect()
                message.done.set()
        if len(self._endings) >= _MAX_BATCH or not self.waiting:
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
        self._drain()
        self._collect()

    def _batch(self, *, wait: bool) -> list[Message | None]:
        cpu, real = _AT_ONCE_S / max(self._prompt_cpu_s, 1e-6), _BATCH_S / max(self._prompt_s, 1e-6)
        most = min(_MAX_BATCH, 1 + int(cpu), 1 + int(real))
        batch: list[Message | None] = []
        try:
            while len(batch) < most and not (batch and isinstance(batch[-1], Reset | Separate)):
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
        self._predict(soon, quick=True)
        self._predict(others, quick=False)

    def _predict(self, read: Sequence[tuple[Question, PredictionInput]], *, quick: bool) -> None:
        if not read:
            return
        frame, place = self._frame, 0
        try:
            served = self._loaded()
            place = min(int(quick), served.places - 1)
            requests = [request if frame is None else frame.asked(request) for _, request in read]
            made, alone = served.serve(place, requests, [question.ticket[1] for question, _ in read])
            pair = [as_logt(each) for each in (made, made if alone is None else alone)]
            found = [tuple(each[row] for each in pair) for row in range(len(read))]
            if frame is not None:
                caps = [request.cap for _, request in read]
                found = [
                    tuple(frame.predicted(one, cap) for one in each) for each, cap in zip(found, caps, strict=True)
                ]
        except Exception as error:  # the host continues with history
            if len(read) > 1:  # find the bad prompt by predicting each alone
                for one in read:
                    self._predict([one], quick=quick)
                return
            self._fail(read[0][0], "the predictor failed", error)
            return
        self.busy_since = now = self._clock()  # it has returned: what it learns from the same batch is another call
        for (question, _), (prediction, text) in zip(read, found, strict=True):
            # Counted last: `open_questions` is 0 only once it can be taken.
            self._outbox.append((question.ticket, prediction, text))
            self.counts.age_s += now - question.at
            self.counts.quick += place
            self.counts.answered += 1

    def _inquire(self, inquiry: Inquiry) -> None:
        if not inquiry.done.set_running_or_notify_cancel():
            return
        try:
            inquiry.done.set_result(self._loaded().serve(0, [inquiry.request], None).made[0])
        except Exception as error:
            inquiry.done.set_exception(error)

    def _observe(self, ended: Ended) -> None:
        if self._learning:
            tokens = ended.tokens
            if tokens is not None and self._frame is not None:
                tokens = self._frame.observed(tokens)
            self._endings.append(Ending(ended.ticket[1], tokens, ended.censored))

    def _learn(self) -> None:
        """Let the predictor observe the lengths that wait for it."""
        if self._served is None or not self._endings:
            return
        endings, self._endings = self._endings, []
        try:
            taught = self._served.end(endings)
        except Exception as error:  # its process ended
            taught = Taught(0, 0, (str(error),) * sum(each.tokens is not None for each in endings))
        self.counts.observed += taught.observed
        self.counts.learned += taught.learned
        self.counts.unlearned += len(taught.errors)
        if taught.errors and not self._learning_logged:
            self._learning_logged = True
            _log.warning("the predictor could not observe a length (%.300r); it goes on predicting", taught.errors[0])

    def _restore(self) -> None:
        """Continue from the state that was kept; a part that cannot be used is logged, and learned anew."""
        served = self._loaded()
        if self._learning:
            served.keep_tenants_apart(self._tenants_apart)
            for error in served.restore(self._kept) if self._kept else ():
                _log.warning("what was learned is not used, and is learned anew: %.300s", error)

    def _drain(self) -> None:
        """Observe the lengths that have arrived and answer no questions: the host has ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._inbox.get_nowait()
                if isinstance(message, Ended):
                    self._observe(message)
                elif isinstance(message, Collect):
                    message.done.set()

    def _collect(self) -> None:
        """Keep what is learned so far; a predictor that raises keeps what it had."""
        if not self._learning or self._served is None:
            return
        self._learn()
        try:
            self._kept = self._served.state()
        except Exception as error:  # of a predictor of any package, or its process ended
            if not self._learning_logged:
                self._learning_logged = True
                _log.warning("what the predictor has learned is not saved (%.300r)", error)

    def _loaded(self) -> Served:
        if self.unloadable is not None:
            raise self.unloadable
        if self._served is None:
            try:
                with contextlib.suppress(SystemError):
                    # Python 3.11 now and then fails to compile in two threads at once (cpython issue 106905).
                    self._served = self._made()
                self._served = self._served or self._made()
            except Exception as error:
                self.unloadable = error
                self._log_once("the predictor cannot be loaded", error)
                raise
        return self._served

    def _made(self) -> Served:
        loaded, quick = self._load(), self._quick
        if isinstance(loaded, Served):
            return loaded
        loads = [lambda: loaded] if quick is None else [lambda: loaded, lambda: quick]
        return ServedPredictors(*loads, learning=self._learning)

    def _separate(self, apart: bool) -> None:
        self._tenants_apart = apart
        if self._served is not None and self._learning:
            try:
                self._served.keep_tenants_apart(apart)
            except Exception as error:  # its process ended
                self._log_once("tenants could not be kept apart", error)

    def _reset(self) -> None:
        self._endings.clear()
        self._kept = {}
        if self._served is not None:
            try:
                self._served.reset()
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
