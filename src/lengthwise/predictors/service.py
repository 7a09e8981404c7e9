"""Asynchronous predictions for a host (the gateway or the vLLM plug-in).

The host's thread never waits for a predictor and never runs one: a worker thread calls it, in a separate process. The
host admits a request and gets the prediction from the LLM's history (`admit`), requests a prediction (`ask`), receives
finished predictions (`deliver`), and reports that a request runs (`started`) and how long its answer was (`ended`).
Answers are learned from in the order in which their requests started. The predictor learns in its own process
(`served`); the host's thread has the history of each LLM and a prefix memory over it, for requests that the predictor
does not predict. All that is learned is kept in one file (`state_file`).

A request whose prediction is on its way has the wide prior, not the history: the first answers to finish are the short
ones, and by a history of them every new request would be short. Nothing here raises into the host. The clock is an
argument; policies and HTTP are unknown here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from lengthwise.errors import InputError
from lengthwise.lengths import LengthDistribution, LogT
from lengthwise.predictors.contract import LengthPredictor, PredictionInput, answer_cap
from lengthwise.predictors.history import History
from lengthwise.predictors.prediction_worker import (
    Counts,
    Ended,
    Frame,
    Inquiry,
    Question,
    Reset,
    Separate,
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
from lengthwise.predictors.start_order import StartOrder
from lengthwise.predictors.state_file import Kept, StateFile, StateSaver, kind_of, part_name, tenant_of
from lengthwise.predictors.subprocess_predictor import SubprocessPredictor
from lengthwise.prefixes import Scopes
from lengthwise.traffic.scores import tau_within

NO_PREDICTOR: Final = "none"
QUICK: Final = "fast"
"""The predictor that answers where another one cannot keep up."""
RETIRED_MEMORY: Final = "is gone: prefix memory is part of `learning`, and is kept in `state`"
"""What a host answers to its old setting `memory`."""

HISTORY: Final = "history"
MEMORY: Final = "prefix memory"
PROGRESS: Final = "progress"
"""Kinds of parts of the learned state."""

MAX_TENANTS: Final = 128
"""Tenants whose history and prefix memory are held where they are apart; the least recently used ones are dropped."""
TENANT_MEMORY_BYTES: Final = 2 << 20

_SAMPLES_PER_S: Final = 20.0
_SAMPLE_CORES: Final = 0.05  # CPU time per second that they may take in the predictor's process
_MAX_SAMPLES: Final = 40.0  # saved up
_MAX_UNLEARNED: Final = 256  # lengths that wait for the next request
_RECENT: Final = 1000  # answers that predictions are scored on

_log = logging.getLogger(__name__)


class LearningProgress(NamedTuple):
    """What learning has brought so far: Kendall's tau within each LLM, averaged, over the same recent answers.

    Each was predicted before it was observed. NaN where tau is not defined yet.
    """

    answers: int
    """Answers learned from, those before a restart included."""
    recent: int
    """Complete answers with a prediction that tau is of, at most 1,000."""
    tau_alone: float
    """Of the model alone."""
    tau_learned: float
    """Of the predictions as they were made."""


class PredictionTrace(NamedTuple):
    """What the prediction of an admitted request is made of, for a log."""

    predictor: str
    history: LogT
    """Of the LLM's history at its arrival."""
    text: LogT | None
    """Of the model alone."""
    prediction: LogT | None
    """Of the predictor, with what it has learned from answers."""
    scopes: Scopes | None


@dataclass(slots=True, eq=False)
class _Learned:
    """What the host's thread has learned, of all requests or of those of one tenant."""

    history: History
    memory: PrefixMemory | None
    orders: dict[str, StartOrder[_Answer]] = field(default_factory=dict)
    """Of the LLMs that have running requests."""

    def parts(self, tenant: str | None) -> Iterator[tuple[str, History | PrefixMemory]]:
        """Yield its learners by the names of their parts in the learned state."""
        yield part_name(HISTORY, tenant), self.history
        if self.memory is not None:
            yield part_name(MEMORY, tenant), self.memory


@dataclass(slots=True)
class _Open:
    llm: str
    learned: _Learned
    start: LogT  # of the LLM's history, before prefix memory
    history: LengthDistribution | None
    scopes: Scopes | None
    ticket: Ticket  # identifies it in the worker: a host may use a key again
    alone: LogT | None = None  # of the model alone
    latest: LogT | None = None  # of the predictor, with what it has learned
    asked: Worker | None = None  # the one that predicts it
    predictor: str = ""
    started: bool = False


class _Answer(NamedTuple):
    """How a request ended."""

    request: _Open
    tokens: int | None
    censored: bool


class PredictionService:
    """The predictions of one host. All methods are for the host's thread; only the worker runs the predictor.

    `load` is called by the worker, at `warm` or the first question; None means no predictor, only history. At most
    `max_waiting` questions wait, none longer than `deadline_s`: enough for a batch that arrives at once. A predictor
    that has not returned for `patience_s`, or has not loaded for `load_patience_s`, hangs, and gets no questions until
    it returns. `process` is the subprocess that it runs in, if any: its CPU time is counted, and it ends with the
    service. Without `learning`, no length is observed by anything, and predictions are the predictor's own. With
    `tenants_apart`, the answers of one tenant change the predictions of no other. What is learned is restored from
    `state` and saved there. `frame` is that of a measurement.

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
        load_patience_s: float = 60.0,
        deadline_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        process: SubprocessPredictor | None = None,
        memory: PrefixMemory | None = None,
        state: StateFile | None = None,
        predictor: str = "",
        quick: LengthPredictor | None = None,
        keep_up_s: float = 0.5,
        learning: bool = True,
        tenants_apart: bool = False,
        frame: Frame | None = None,
    ) -> None:
        self.predictor = predictor
        """The name of the predictor, for logs."""
        self.learning = learning
        """Whether the lengths of answers change predictions."""
        self._tenants_apart = tenants_apart
        self._remembers = memory is not None
        self._learned: OrderedDict[str | None, _Learned] = OrderedDict({None: _Learned(History(), memory)})
        self._open: dict[str, _Open] = {}
        self._unlearned: list[tuple[_Open, int, bool]] = []  # with tokens, and whether they are censored
        self._numbers = itertools.count()
        self._max_waiting = max_waiting
        self._patience_s = patience_s
        self._load_patience_s = load_patience_s
        self._clock = clock
        self._hangs = False
        self._counts = Counts()
        self._process = process
        self._limits = WaitLimits(deadline_s, keep_up_s)
        self._observed = 0
        self._answers = 0
        self._recent: deque[tuple[str, float, float, int]] = deque(maxlen=_RECENT)  # LLM, two medians (log), tokens
        self._unused = Kept() if state is None else self._restore(state)
        """State that was learned with another predictor, which `use` may still bring."""
        kept = self._kept_for(predictor)
        self._worker = None
        if load is not None:
            self._worker = Worker(
                load,
                clock,
                self._limits,
                quick,
                predictor=predictor,
                learning=learning,
                tenants_apart=tenants_apart,
                kept=kept,
                frame=frame,
            )
        self.saver = None if state is None else StateSaver(state, self._collected, lambda: self._observed)
        """What saves the learned state, if it is kept."""
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
        """Whether predictions can be made at once: the predictor is loaded and idle, or there is none."""
        return self._worker is None or self._worker.idle

    def use(self, process: SubprocessPredictor, predictor: str) -> None:
        """Use another predictor, which has been started, from now on.

        Questions that the old one has received are still answered by it; then its process ends. The new one learns
        anew; the history and its prefix memory go on.
        """
        if self._worker is not None:
            self._replaced.append((self._worker, self._process))
        self.predictor, self._process = predictor, process
        self._forget_progress()
        kept = self._kept_for(predictor)
        self._worker = Worker(
            lambda: process,
            self._clock,
            self._limits,
            predictor=predictor,
            learning=self.learning,
            tenants_apart=self._tenants_apart,
            kept=kept,
        )
        self._worker.start()
        self._hangs = False
        self._end_replaced()

    @property
    def remembers(self) -> bool:
        """Whether prefix memory is on, and has not failed."""
        return self._remembers

    @property
    def memory_nodes(self) -> int:
        """Nodes of prefix memory, of all tenants."""
        return sum(each.memory.held for each in self._learned.values() if each.memory is not None)

    @property
    def tenants_apart(self) -> bool:
        """Whether the answers of one tenant change the predictions of no other; it may be changed at any time."""
        return self._tenants_apart

    @tenants_apart.setter
    def tenants_apart(self, apart: bool) -> None:
        self._tenants_apart = apart
        if self._worker is not None:
            self._worker.put(Separate(apart), start=False)

    def reset(self) -> None:
        """Forget all that is learned."""
        shared = self._learned[None].memory
        memory = None if shared is None else PrefixMemory(shared.max_bytes)
        self._learned = OrderedDict({None: _Learned(History(), memory)})
        self._unlearned.clear()
        self._forget_progress()
        if self._worker is not None:
            self._worker.put(Reset(), start=False)

    def warm(self) -> None:
        """Load the predictor now instead of at the first question."""
        if self._worker is not None:
            self._worker.start()

    def admit(
        self, key: str, llm: str, max_tokens: int | None, scopes: Scopes | None = None, tenant: str | None = None
    ) -> LengthDistribution | None:
        """Register a request and return the prediction from its LLM's history; None (the wide prior) without history.

        With its scopes, prefix memory improves this prediction. Every admitted key must be passed to `ended`.
        """
        self.learn()
        learned = self._learned_of(tenant)
        start = learned.history.prediction(llm, answer_cap(max_tokens))
        history = self._remembered(learned, start, scopes) if learned.history.pooled.seen else None
        ticket = (key, next(self._numbers))
        self._open[key] = _Open(llm, learned, start, history, scopes, ticket, predictor=self.predictor)
        return history

    def from_history(self, llm: str, max_tokens: int | None, tenant: str | None = None) -> LengthDistribution | None:
        """Return the prediction from an LLM's history; None (the wide prior) without history."""
        self.learn()
        history = self._learned_of(tenant).history
        return history.prediction(llm, answer_cap(max_tokens)) if history.pooled.seen else None

    def _learned_of(self, tenant: str | None) -> _Learned:
        """Return what is learned of a tenant, or of all where they are not apart."""
        if tenant is None or not self._tenants_apart:
            return self._learned[None]
        found = self._learned.get(tenant)
        if found is None:
            memory = PrefixMemory(TENANT_MEMORY_BYTES) if self._remembers else None
            found = self._learned[tenant] = _Learned(History(), memory)
            if len(self._learned) > MAX_TENANTS + 1:
                del self._learned[next(each for each in self._learned if each is not None)]
        self._learned.move_to_end(tenant)
        return found

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
        """Return whether to predict a request that no decision waits for: the predictor learns from its answer.

        At most 20 per second are due, and as many as take a twentieth of a core.
        """
        if not self.learning:
            return False
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
            if state is None or state.ticket != ticket or not take(key, self._noted(state, prediction, raw)):
                self._counts.late += 1

    def trace(self, key: str) -> PredictionTrace | None:
        """Return what the prediction of an admitted request is made of; None if it has ended."""
        state = self._open.get(key)
        if state is None:
            return None
        return PredictionTrace(state.predictor, state.start, state.alone, state.latest, state.scopes)

    def started(self, key: str) -> None:
        """Report that an admitted request runs on an engine; a second report is ignored.

        Answers of an LLM are learned from in this order, that of a request which was not reported at once.
        """
        state = self._open.get(key)
        if state is not None and self.learning and not state.started:
            state.started = True
            state.learned.orders.setdefault(state.llm, StartOrder()).started(state.ticket)

    def ended(self, key: str, tokens: int | None, *, censored: bool = False) -> None:
        """Report that an admitted request ended, with its length (None if unknown). A second report is ignored.

        `censored`: cut by max_tokens or by its client, so that the length is a lower bound. An answer that was cut
        before its first token is not used.
        """
        state = self._open.pop(key, None)
        if state is None:
            return
        answer = _Answer(state, None if tokens is None or (censored and tokens < 1) else tokens, censored)
        orders = state.learned.orders
        order = orders.get(state.llm) if state.started else None
        if order is None:
            self._use(answer)
            return
        for each in order.ended(state.ticket, answer):
            self._use(each)
        if not order:
            del orders[state.llm]

    def _use(self, answer: _Answer) -> None:
        """Learn from an answer."""
        state, tokens, censored = answer
        if tokens is not None and self.learning:
            self._observed += 1
            self._note(state, tokens, censored=censored)
            self._unlearned.append((state, tokens, censored))
            if len(self._unlearned) >= _MAX_UNLEARNED:
                self.learn()
        if state.asked is not None:
            state.asked.put(Ended(state.ticket, tokens, censored))

    def _note(self, state: _Open, tokens: int, *, censored: bool) -> None:
        """Count an answer that was predicted, and keep it for the scores if it is complete."""
        if state.alone is not None and state.latest is not None:
            self._answers += 1
            if not censored:
                self._recent.append((state.llm, state.alone.mu, state.latest.mu, tokens))

    def _forget_progress(self) -> None:
        self._answers = 0
        self._recent.clear()

    def progress(self) -> LearningProgress:
        """Return what learning has brought. It takes milliseconds: any thread may call it, the host's should not."""
        recent = list(self._recent)
        llms, alone, learned, tokens = zip(*recent, strict=True) if recent else ((), (), (), ())
        groups = np.array(llms, object)
        taus = (tau_within(groups, medians, tokens) if recent else math.nan for medians in (alone, learned))
        return LearningProgress(self._answers, len(recent), *taus)

    def learn(self) -> None:
        """Update history and prefix memory by the lengths so far, as is done before every prediction from them.

        The lengths of requests that end together take less CPU time together: code and data are in the CPU's caches.
        """
        if self._unlearned:
            lengths, self._unlearned = self._unlearned, []
            for state, tokens, censored in lengths:
                state.learned.history.observe(state.llm, tokens, censored=censored)
            for state, tokens, censored in lengths:
                self._memorise(state, tokens, censored=censored)

    def close(self) -> None:
        """Stop the worker and the predictor's process; a thread that hangs is left behind and ends with the host."""
        for order in [order for each in self._learned.values() for order in each.orders.values()]:
            for answer in order.rest():
                self._use(answer)
        if self._worker is not None:
            self._replaced.append((self._worker, self._process))
        for worker, process in self._replaced:
            _stop(worker, process)
        self.learn()
        if self.saver is not None:
            self.saver.close()

    def _restore(self, file: StateFile) -> Kept:
        """Restore history and prefix memory; return the rest, which the predictor's worker restores."""
        kept = file.read()
        tenants = [tenant_of(name) for name in kept.parts if kind_of(name) == HISTORY and tenant_of(name) is not None]
        for tenant in (None, *tenants[-MAX_TENANTS:]):
            if tenant is not None:
                memory = PrefixMemory(TENANT_MEMORY_BYTES) if self._remembers else None
                self._learned[tenant] = _Learned(History(), memory)
            for name, learner in self._learned[tenant].parts(tenant):
                try:
                    if name in kept.parts:
                        learner.restore(kept.parts[name])
                except InputError as error:
                    _log.warning("the learned %s in %s is not used: %s", name, file.path, error)
        parts = {name: part for name, part in kept.parts.items() if kind_of(name) not in (HISTORY, MEMORY)}
        progress = parts.pop(PROGRESS, None)
        if progress is not None and kept.predictor == self.predictor:
            with contextlib.suppress(ValueError, TypeError):  # only what is shown depends on it
                answers, recent = json.loads(progress)
                rows = [(str(llm), float(alone), float(made), int(tokens)) for llm, alone, made, tokens in recent]
                self._answers = int(answers)
                self._recent.extend(rows)
        if parts and kept.predictor != self.predictor:
            _log.warning("%s was learned with %s: %s learns anew", *(file.path, kept.predictor, self.predictor))
        return Kept(kept.predictor, parts)

    def _kept_for(self, predictor: str) -> Mapping[str, bytes]:
        """Return the state that was learned with this predictor, once."""
        if self._unused.predictor != predictor:
            return {}
        kept, self._unused = self._unused.parts, Kept()
        return kept

    def _collected(self) -> Kept:
        """Return all that is learned; the thread that saves calls this."""
        learned = list(self._learned.items())
        parts = {name: part.state() for tenant, each in learned for name, part in each.parts(tenant)}
        parts[PROGRESS] = json.dumps([self._answers, list(self._recent)]).encode()
        worker = self._worker
        return Kept(self.predictor, parts) if worker is None else Kept(worker.predictor, {**parts, **worker.learned()})

    def _end_replaced(self) -> None:
        """End the predictors that were replaced and have answered their questions."""
        for worker, process in [each for each in self._replaced if not each[0].open_questions]:
            self._replaced.remove((worker, process))
            self._counts += _counts(worker, process)
            threading.Thread(target=_stop, args=(worker, process), daemon=True).start()  # ending takes milliseconds

    @staticmethod
    def _noted(state: _Open, prediction: LogT, alone: LogT | None) -> LogT:
        state.alone, state.latest = alone, prediction
        return prediction

    def _remembered(self, learned: _Learned, start: LogT, scopes: Scopes | None) -> LogT:
        """Return the prediction that prefix memory makes of that of the history."""
        if learned.memory is None or scopes is None:
            return start
        try:
            return learned.memory.predict(scopes, start, text=False)
        except Exception as error:  # nothing raises into the host
            self._drop_memory(error)
            return start

    def _memorise(self, state: _Open, tokens: int, *, censored: bool) -> None:
        memory = state.learned.memory
        if memory is None or state.scopes is None:
            return
        try:
            memory.observe(state.scopes, state.start, tokens, text=False, censored=censored)
        except Exception as error:  # nothing raises into the host
            self._drop_memory(error)

    def _drop_memory(self, error: Exception) -> None:
        self._remembers = False
        for each in self._learned.values():
            each.memory = None
        _log.warning("prefix memory failed (%.300r); predictions come without it", error)

    def _found_hanging(self, worker: Worker) -> bool:
        since = worker.busy_since
        patience_s = self._patience_s if worker.loaded else self._load_patience_s
        hangs = since is not None and self._clock() - since > patience_s
        if hangs and not self._hangs:
            self._counts.hung += 1
            if self._counts.hung == 1:
                _log.warning(
                    "the predictor has not returned for %.0f s: it gets no requests until it does; predictions "
                    "come from the history of each LLM",
                    patience_s,
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
    *,
    frame: Frame | None = None,
    learning: bool = True,
    tenants_apart: bool = False,
    state: StateFile | None = None,
) -> PredictionService:
    """Return the service of a predictor by name, in a separate process; `none` uses history only.

    `state` is the file that what is learned is kept in, if any; `frame` is that of a measurement.
    """
    memory = PrefixMemory() if learning else None
    state = state if learning else None
    if name in (NO_PREDICTOR, "history"):
        return PredictionService(
            None, memory=memory, state=state, predictor=name, learning=learning, tenants_apart=tenants_apart
        )
    process = SubprocessPredictor(name, None if name == QUICK else QUICK, learning=learning)
    return PredictionService(
        process.start,
        process=process,
        memory=memory,
        state=state,
        predictor=predictor_label(name),
        learning=learning,
        tenants_apart=tenants_apart,
        frame=frame,
    )


def known_predictor(name: str) -> str:
    """Return the name, or a model file's full path; InputError where a host cannot serve such a predictor."""
    if name in (NO_PREDICTOR, *packaged_predictors()):
        return name
    spec = parse_predictor_spec(name)
    if spec.learns:
        raise InputError(
            f"'{name}' is for simulations and evaluations",
            hint="a server learns and has prefix memory: give the predictor alone, or none",
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
