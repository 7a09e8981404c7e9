"""Asynchronous predictions for a host (the gateway or the vLLM plug-in).

The host's thread never waits for a predictor and never runs one: a worker thread calls it, in a separate process. The
host admits a request and gets the prediction from the LLM's history (`admit`), requests a prediction (`ask`), receives
finished predictions (`deliver`) and reports each answer's length (`ended`), which updates the history, the
predictor's calibration and prefix memory. Prefix memory belongs to the host's thread and improves the predictions of
both, the history and the predictor. A request whose prediction is on its way has the wide prior, not the history: the
first answers to finish are the short ones, and by a history of them every new request would be short. Nothing here
raises into the host. The clock is an argument; policies and HTTP are unknown here.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Final, NamedTuple

from lengthwise.errors import InputError
from lengthwise.files import atomic_path
from lengthwise.lengths import LengthDistribution, LogT
from lengthwise.predictors.contract import LengthPredictor, PredictionInput, answer_cap
from lengthwise.predictors.history import History
from lengthwise.predictors.prediction_worker import (
    Counts,
    Ended,
    Inquiry,
    Question,
    Reset,
    StateFile,
    Ticket,
    WaitLimits,
    Worker,
)
from lengthwise.predictors.prefix_memory import PrefixMemory
from lengthwise.predictors.resolve import (
    packaged_predictors,
    parse_predictor_spec,
    predictor_label,
    resolve_predictor,
)
from lengthwise.predictors.subprocess_predictor import SubprocessPredictor
from lengthwise.prefixes import Scopes

NO_PREDICTOR: Final = "none"
QUICK: Final = "fast"
"""The predictor that answers where another one cannot keep up."""
MEMORY_ON: Final = "on"
MEMORY_OFF: Final = "off"

_SAMPLES_PER_S: Final = 20.0
_SAMPLE_CORES: Final = 0.05  # CPU time per second that they may take in the predictor's process
_MAX_SAMPLES: Final = 40.0  # saved up
_MAX_UNLEARNED: Final = 256  # lengths that wait for the next request

_log = logging.getLogger(__name__)


class PredictionTrace(NamedTuple):
    """What the prediction of an admitted request is made of, for a log."""

    predictor: str
    history: LogT
    """Of the LLM's history at its arrival."""
    text: LogT | None
    """Of the predictor alone, before its online calibration."""
    prediction: LogT | None
    """Of the predictor, with online calibration and prefix memory."""
    scopes: Scopes | None


@dataclass(slots=True)
class _Open:
    llm: str
    start: LogT  # of the LLM's history, before prefix memory
    history: LengthDistribution | None
    scopes: Scopes | None
    ticket: Ticket  # identifies it in the worker: a host may use a key again
    text: LogT | None = None  # of the predictor, before prefix memory
    raw: LogT | None = None  # likewise, before online calibration
    latest: LogT | None = None  # of the predictor, with prefix memory
    asked: Worker | None = None  # the one that predicts it
    predictor: str = ""


class PredictionService:
    """The predictions of one host. All methods are for the host's thread; only the worker runs the predictor.

    `load` is called by the worker, at `warm` or the first question; None means no predictor, only history. At most
    `max_waiting` questions wait, none longer than `deadline_s`: enough for a batch that arrives at once. A predictor
    that has not returned for `patience_s` hangs, and gets no questions until it returns. `process` is the subprocess
    that it runs in, if any: its CPU time is counted, and it ends with the service. The state of `memory` is written to
    `memory_file` at the end, that of a predictor that learns (`learns` False: it is not taught) beside it.

    Where requests arrive faster than the predictor answers, predictions would come after their requests have left the
    queue. A question that has waited for `keep_up_s` is therefore answered by `quick`, another predictor. It
    runs in the same process, because in a thread of the host it would delay the steps of an engine.
    """

    def __init__(
        self,
        load: Callable[[], LengthPredictor] | None,
        *,
        max_waiting: int = 16_384,
        patience_s: float = 10.0,
        deadline_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        process: SubprocessPredictor | None = None,
        memory: PrefixMemory | None = None,
        memory_file: Path | None = None,
        predictor: str = "",
        quick: LengthPredictor | None = None,
        keep_up_s: float = 0.5,
        learns: bool = True,
    ) -> None:
        self.predictor = predictor
        """The name of the predictor, for logs."""
        self.memory = memory
        """Prefix memory; None where it is off or has failed."""
        self._memory_file = memory_file
        self._history = History()
        self._open: dict[str, _Open] = {}
        self._unlearned: list[tuple[_Open, int, bool]] = []  # with tokens, and whether they are censored
        self._numbers = itertools.count()
        self._max_waiting = max_waiting
        self._patience_s = patience_s
        self._clock = clock
        self._hangs = False
        self._counts = Counts()
        self._process = process
        self._limits = WaitLimits(deadline_s, keep_up_s)
        taught, kept = (process, self._state_file(predictor)) if learns else (None, None)
        self._worker = None if load is None else Worker(load, clock, self._limits, quick, taught, kept)
        self._replaced: list[tuple[Worker, SubprocessPredictor | None]] = []
        self._samples, self._sampled_at = _MAX_SAMPLES, clock()

    @property
    def predicts(self) -> bool:
        """Whether there is a predictor at all."""
        return self._worker is not None

    @property
    def counts(self) -> Counts:
        """The counters so far: those of the host's thread and those of the worker."""
        running = [] if self._worker is None else [(self._worker, self._process)]
        return sum(starmap(_counts, [*self._replaced, *running]), self._counts)

    @property
    def works(self) -> bool:
        """Whether predictions come from the predictor; False where it failed for good or hangs, and history is used."""
        if self._worker is None or self._worker.unloadable is not None or self._found_hanging(self._worker):
            return False
        return self._process is None or not self._process.given_up

    @property
    def ready(self) -> bool:
        """Whether predictions can be made at once: the predictor is loaded, or there is none."""
        return self._worker is None or self._worker.loaded

    def use(self, process: SubprocessPredictor, predictor: str) -> None:
        """Use another predictor, which has been started, from now on.

        Questions that the old one has received are still answered by it; then its process ends. The calibration of
        the new one starts anew; history and prefix memory go on.
        """
        if self._worker is not None:
            self._replaced.append((self._worker, self._process))
        self.predictor, self._process = predictor, process
        kept = self._state_file(predictor)
        self._worker = Worker(lambda: process, self._clock, self._limits, process.quick, process, kept)
        self._worker.start()
        self._hangs = False
        self._end_replaced()

    def reset(self) -> None:
        """Forget the history, the predictor's calibration and what prefix memory has learned."""
        self._history = History()
        self._unlearned.clear()
        if self.memory is not None:
            self.memory = PrefixMemory(self.memory.max_bytes)
        if self._worker is not None:
            self._worker.put(Reset(), start=False)

    def warm(self) -> None:
        """Load the predictor now instead of at the first question."""
        if self._worker is not None:
            self._worker.start()

    def admit(
        self, key: str, llm: str, max_tokens: int | None, scopes: Scopes | None = None
    ) -> LengthDistribution | None:
        """Register a request and return the prediction from its LLM's history; None (the wide prior) without history.

        With its scopes, prefix memory improves this prediction and that of the predictor. Every admitted key must be
        passed to `ended`.
        """
        self.learn()
        start = self._history.prediction(llm, answer_cap(max_tokens))
        history = self._remembered(start, scopes, text=False) if self._history.pooled.seen else None
        ticket = (key, next(self._numbers))
        self._open[key] = _Open(llm, start, history, scopes, ticket, predictor=self.predictor)
        return history

    def from_history(self, llm: str, max_tokens: int | None) -> LengthDistribution | None:
        """Return the prediction from an LLM's history; None (the wide prior) without history."""
        self.learn()
        if not self._history.pooled.seen:
            return None
        return self._history.prediction(llm, answer_cap(max_tokens))

    def predict(self, request: PredictionInput) -> Future[LengthDistribution] | None:
        """Return a prediction to come, of no admitted request; None where the predictor takes no questions now."""
        if self._worker is None or self._found_hanging(self._worker) or self._worker.waiting >= self._max_waiting:
            return None
        done: Future[LengthDistribution] = Future()
        self._worker.put(Inquiry(request, done))
        return done

    def ask(self, key: str, read: Callable[[], PredictionInput], *, quick: bool = False) -> bool:
        """Request a prediction for an admitted request; return whether `deliver` will pass one.

        The worker calls `read`, so reading costs the host nothing. `quick`: of the quick predictor, if there is one.
        """
        state = self._open.get(key)
        if self._worker is None or state is None or state.asked is not None:
            return False
        self._counts.asked += 1
        if self._found_hanging(self._worker) or self._worker.waiting >= self._max_waiting:
            self._counts.dropped += 1
            return False
        state.asked = self._worker
        self._worker.put(Question(state.ticket, read, self._clock(), quick))
        return True

    def ask_to_learn(self, key: str, read: Callable[[], PredictionInput]) -> None:
        """Request a prediction that no decision waits for, if a sample is due."""
        if self.sample_due():
            self.ask(key, read)

    def sample_due(self) -> bool:
        """Return whether to predict a request that no decision waits for: calibration and memory learn by its answer.

        At most 20 per second are due, and as many as take a twentieth of a core.
        """
        now, rate = self._clock(), _SAMPLES_PER_S
        if self._worker is not None and self._process is not None and self._process.cpu_s > 0.0:
            made = self._worker.counts.answered - self._worker.counts.quick
            rate = min(rate, _SAMPLE_CORES * made / self._process.cpu_s)
        self._samples = min(_MAX_SAMPLES, self._samples + rate * (now - self._sampled_at))
        self._sampled_at = now
        if self._samples < 1.0:
            return False
        self._samples -= 1.0
        return True

    def deliver(self, take: Callable[[str, LengthDistribution], bool]) -> None:
        """Pass finished predictions to `take`, which returns whether the request was waiting.

        Where the predictor failed, that of the history is passed, as `admit` returned it.
        """
        if self._worker is None:
            return
        self._found_hanging(self._worker)
        for worker, _ in self._replaced:
            self._deliver(worker, take)
        self._deliver(self._worker, take)
        if self._replaced:
            self._end_replaced()

    def _deliver(self, worker: Worker, take: Callable[[str, LengthDistribution], bool]) -> None:
        while (arrived := worker.next_arrived()) is not None:
            ticket, prediction, raw = arrived
            key, _ = ticket
            state = self._open.get(key)
            if prediction is None:
                if state is not None and state.ticket == ticket and state.history is not None:
                    take(key, state.history)
                continue
            # A request that ended before its prediction arrived has no further use for it.
            if state is None or state.ticket != ticket or not take(key, self._with_memory(state, prediction, raw)):
                self._counts.late += 1

    def trace(self, key: str) -> PredictionTrace | None:
        """Return what the prediction of an admitted request is made of; None if it has ended."""
        state = self._open.get(key)
        if state is None:
            return None
        return PredictionTrace(state.predictor, state.start, state.raw, state.latest, state.scopes)

    def ended(self, key: str, tokens: int | None, *, censored: bool = False) -> None:
        """Report that an admitted request ended, with its length (None if unknown). A second report is ignored.

        `censored`: cut by max_tokens or by its client, so that the length is a lower bound. An answer that was cut
        before its first token is not used.
        """
        state = self._open.pop(key, None)
        if state is None:
            return
        known = None if tokens is None or (censored and tokens < 1) else tokens
        if known is not None:
            self._unlearned.append((state, known, censored))
            if len(self._unlearned) >= _MAX_UNLEARNED:
                self.learn()
        if state.asked is not None:
            state.asked.put(Ended(state.ticket, known, censored))

    def learn(self) -> None:
        """Update history and prefix memory by the lengths so far, as is done before every prediction from them.

        The lengths of requests that end together take less CPU time together: code and data are in the CPU's caches.
        """
        if self._unlearned:
            lengths, self._unlearned = self._unlearned, []
            for state, tokens, censored in lengths:
                self._history.observe(state.llm, tokens, censored=censored)
            for state, tokens, censored in lengths:
                self._memorise(state, tokens, censored=censored)

    def close(self) -> None:
        """Stop the worker and the predictor's process; a thread that hangs is left behind and ends with the host."""
        if self._worker is not None:
            self._replaced.append((self._worker, self._process))
        for worker, process in self._replaced:
            _stop(worker, process)
        self._save_memory()

    def _state_file(self, predictor: str) -> StateFile | None:
        """Return where a predictor that learns is saved: beside prefix memory."""
        return None if self._memory_file is None else StateFile(self._memory_file.with_suffix(".predictor"), predictor)

    def _end_replaced(self) -> None:
        """End the predictors that were replaced and have answered their questions."""
        for worker, process in [each for each in self._replaced if not each[0].open_questions]:
            self._replaced.remove((worker, process))
            self._counts += _counts(worker, process)
            threading.Thread(target=_stop, args=(worker, process), daemon=True).start()  # ending takes milliseconds

    def _with_memory(self, state: _Open, prediction: LengthDistribution, raw: LogT | None) -> LengthDistribution:
        if not isinstance(prediction, LogT):
            return prediction
        self.learn()
        state.text, state.raw = prediction, raw
        state.latest = self._remembered(prediction, state.scopes, text=True)
        return state.latest

    def _remembered(self, start: LogT, scopes: Scopes | None, *, text: bool) -> LogT:
        """Return the prediction that prefix memory makes of another."""
        if self.memory is None or scopes is None:
            return start
        try:
            return self.memory.predict(scopes, start, text=text)
        except Exception as error:  # nothing raises into the host
            self._drop_memory(error)
            return start

    def _memorise(self, state: _Open, tokens: int, *, censored: bool) -> None:
        if self.memory is None or state.scopes is None:
            return
        start, text = (state.start, False) if state.text is None else (state.text, True)
        try:
            self.memory.observe(state.scopes, start, tokens, text=text, censored=censored)
        except Exception as error:  # nothing raises into the host
            self._drop_memory(error)

    def _drop_memory(self, error: Exception) -> None:
        self.memory = None
        _log.warning("prefix memory failed (%.300r); predictions come without it", error)

    def _save_memory(self) -> None:
        self.learn()
        if self.memory is None or self._memory_file is None:
            return
        try:
            with atomic_path(self._memory_file) as new:  # several processes may share the file
                new.write_bytes(self.memory.state())
        except (OSError, InputError) as error:
            _log.warning("prefix memory is not saved to %s: %s", self._memory_file, error)

    def _found_hanging(self, worker: Worker) -> bool:
        since = worker.busy_since
        hangs = since is not None and self._clock() - since > self._patience_s
        if hangs and not self._hangs:
            self._counts.hung += 1
            if self._counts.hung == 1:
                _log.warning(
                    "the predictor has not returned for %.0f s: it gets no requests until it does; predictions "
                    "come from the history of each LLM",
                    self._patience_s,
                )
        self._hangs = hangs
        return hangs


def _counts(worker: Worker, process: SubprocessPredictor | None) -> Counts:
    return worker.counts + Counts(cpu_s=0.0 if process is None else process.cpu_s)


def _stop(worker: Worker, process: SubprocessPredictor | None) -> None:
    worker.stop()
    if process is not None:
        process.close()


def prediction_service(
    name: str,
    seen_as: Callable[[LengthPredictor], LengthPredictor] | None = None,
    *,
    memory: str = MEMORY_OFF,
) -> PredictionService:
    """Return the service of a predictor by name, in a separate process; `none` uses history only.

    `seen_as` may wrap the predictor. `memory` is a setting of prefix memory, as `known_memory` returns it.
    """
    file = None if memory in (MEMORY_ON, MEMORY_OFF) else Path(memory)
    learned = None if memory == MEMORY_OFF else PrefixMemory()
    if learned is not None and file is not None and file.exists():
        learned.restore(file.read_bytes(), str(file))
    if name in (NO_PREDICTOR, "history"):
        return PredictionService(None, memory=learned, memory_file=file, predictor=name)
    process = SubprocessPredictor(name, None if name == QUICK else QUICK)
    wrapped = seen_as or (lambda predictor: predictor)
    return PredictionService(
        lambda: wrapped(process.start()),
        process=process,
        memory=learned,
        memory_file=file,
        predictor=predictor_label(name),
        quick=None if process.quick is None else wrapped(process.quick),
        learns=seen_as is None,
    )


def known_memory(setting: str | bool) -> str:
    """Return a setting of prefix memory: on, off, or the path of the file that it continues from and is saved to."""
    if isinstance(setting, bool):  # what YAML reads `on` and `off` as
        return MEMORY_ON if setting else MEMORY_OFF
    if setting in (MEMORY_ON, MEMORY_OFF):
        return setting
    file = Path(setting)
    if file.suffix != ".npz":
        raise InputError(f"prefix memory '{setting}'", hint="give on, off, or a file that ends in .npz")
    if not file.parent.is_dir():
        raise InputError(f"there is no folder {file.parent}", source=setting, hint="create it first")
    return str(file.resolve())


def known_predictor(name: str) -> str:
    """Return the name, or a model file's full path; InputError where a host cannot serve such a predictor."""
    if name in (NO_PREDICTOR, *packaged_predictors()):
        return name
    spec = parse_predictor_spec(name)
    if spec.kind == "memory":
        raise InputError(
            f"'{name}' is for simulations and evaluations",
            hint="a server has prefix memory unless it is off: give the predictor alone, or none",
        )
    if spec.kind != "ask":  # its server may start later
        found = resolve_predictor(spec)
        if spec.kind == "plugin":
            _check_learner(name, found)
    return str(Path(name).resolve()) if spec.kind == "model" else name


def _check_learner(name: str, predictor: LengthPredictor) -> None:
    """Raise InputError for a predictor with a part of what one that learns has."""
    parts = ("observe", "state", "restore")
    missing = [part for part in parts if not callable(getattr(predictor, part, None))]
    if 0 < len(missing) < len(parts):
        raise InputError(f"{name} has no {' and no '.join(missing)}", hint=f"one that learns has {', '.join(parts)}")
