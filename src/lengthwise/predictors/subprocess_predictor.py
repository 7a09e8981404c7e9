"""A predictor in a separate process, so that it does not hold the interpreter lock of the host.

Python runs one thread at a time: a predictor in a thread of the engine or the gateway would delay its steps. Here the
host's worker thread only writes inputs to a pipe and reads predictions from another. The process ends with the pipe,
however the host ends. A process that dies is started again, at most three times in all; open questions fail, and
history is used. What a predictor that learns was restored from is restored again; what it has learned since is lost.
`python -m lengthwise.predictors.subprocess_predictor NAME [QUICK]` is that process; QUICK is a second predictor.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any, Final, cast

from lengthwise.predictors.contract import (
    LearningPredictor,
    LengthPredictor,
    Observation,
    PredictionInput,
    Predictions,
)
from lengthwise.predictors.resolve import resolve_predictor

_STARTS: Final = 3
_MIN_CORES: Final = 8
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The matrices are small: a second thread would only take a core from the host."""


class SubprocessError(Exception):
    """The predictor raised in its process, or the process ended."""


class _EndedError(SubprocessError):
    """The process ended."""


class SubprocessPredictor:
    """A LengthPredictor by name, in a separate process from `start` to `close`.

    One thread calls it; `close` may be called by any thread at any time, and an open call then fails.
    """

    def __init__(self, name: str, quick: str | None = None) -> None:
        self.name = name
        self.quick: LengthPredictor | None = None if quick is None else _Quick(self)
        """A second predictor in the same process, which takes less time."""
        self._names = [name] if quick is None else [name, quick]
        self.cpu_s = 0.0
        """CPU time of its predictions so far."""
        self.given_up = False
        """Whether the process died so often that it is not started again."""
        self.learns = False
        """Whether the predictor is a LearningPredictor; known once it is loaded."""
        self._restored: bytes | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"SubprocessPredictor({self.name!r}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """The id of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> SubprocessPredictor:
        """Start the process and wait until it has loaded its predictor; again if it dies meanwhile."""
        while True:
            try:
                self._started()
            except _EndedError:
                if self.given_up or self._closed.is_set():
                    raise
            else:
                return self

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return one prediction for each input, in order."""
        return self.ask(0, inputs)

    def ask(self, number: int, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return the predictions of one of the two predictors: 0, or 1 for the quick one."""
        return cast("Predictions", self._call("predict", (number, list(inputs))))

    def observe_all(self, observations: Sequence[Observation]) -> list[str]:
        """Let the predictor observe lengths; return the errors that it raised."""
        return cast("list[str]", self._call("observe_all", list(observations)))

    def state(self) -> bytes:
        """Return what the predictor has learned."""
        return cast("bytes", self._call("state", None))

    def restore(self, state: bytes) -> None:
        """Let the predictor continue from a state, now and after each restart of the process."""
        self._call("restore", state)
        self._restored = state

    def reset(self) -> None:
        """Let the predictor forget what it has learned: it is made again."""
        self._restored = None
        self._call("reset", None)

    def close(self) -> None:
        """End the process at once."""
        self._closed.set()
        if self._process is not None:
            _end(self._process)  # a waiting thread reads the end of the pipe

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            if self._closed.is_set() or self._starts == _STARTS:
                ended = "closed" if self._closed.is_set() else f"died {_STARTS} times"
                raise SubprocessError(f"the predictor's process has {ended}")
            self._starts += 1
            command = [sys.executable, "-P", "-m", __name__, *self._names]  # -P: import nothing from the host's folder
            environment = {**os.environ, **_ONE_THREAD}
            self._process = subprocess.Popen(  # noqa: S603  (this very interpreter)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            if self._closed.is_set():  # closed in the meantime
                self._process.kill()
            self.learns = bool(self._exchange(self._process, None))
            if self._restored is not None:
                self._exchange(self._process, ("restore", self._restored))
        return self._process

    def _call(self, method: str, argument: object) -> object:
        return self._exchange(self._started(), (method, argument))

    def _exchange(self, process: subprocess.Popen[bytes], call: tuple[str, object] | None) -> object:
        """Send a call and return its reply. None is not sent; its reply arrives when the predictors are loaded."""
        reader, writer = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stdin)
        try:
            if call is not None:
                pickle.dump(call, writer, pickle.HIGHEST_PROTOCOL)
                writer.flush()
            answer, error_text, cpu_s = pickle.load(reader)  # noqa: S301  (written by our own process)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:  # ValueError: closed in the meantime
            self._forget(process)
            raise _EndedError("the predictor's process ended") from error
        self.cpu_s += cpu_s
        if error_text is not None:
            if call is None:
                self._forget(process)
            raise SubprocessError(error_text)
        return answer

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        self.given_up = self._starts == _STARTS
        _end(process)


class _Quick:
    """The second predictor of a process."""

    def __init__(self, process: SubprocessPredictor) -> None:
        self._process = process

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return one prediction for each input, in order."""
        return self._process.ask(1, inputs)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, wait for it and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # unsent input
            cast("IO[bytes]", pipe).close()


def _use_last_cores() -> None:
    """With eight cores or more, run on the last quarter of them, away from the threads of the host."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) >= _MIN_CORES:
            os.sched_setaffinity(0, cores[-(len(cores) // 4) :])


class _Served:
    """The predictors of a process, and what its host may call."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._predictors = [resolve_predictor(name) for name in names]

    @property
    def learns(self) -> bool:
        return isinstance(self._predictors[0], LearningPredictor)

    @property
    def _learner(self) -> LearningPredictor:
        return cast("LearningPredictor", self._predictors[0])

    def predict(self, asked: tuple[int, list[PredictionInput]]) -> Predictions:
        number, inputs = asked
        return self._predictors[number].predict(inputs)

    def observe_all(self, observations: list[Observation]) -> list[str]:
        errors = []
        for request, tokens, censored in observations:
            try:
                self._learner.observe(request, tokens, censored=censored)
            except Exception as error:  # the others are still observed
                errors.append(_text_of(error))
        return errors

    def state(self, _: None) -> bytes:
        return bytes(self._learner.state())

    def restore(self, state: bytes) -> None:
        self._learner.restore(state)

    def reset(self, _: None) -> None:
        self._predictors[0] = resolve_predictor(self._names[0])


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _serve(names: Sequence[str]) -> None:
    """Load the predictors, then reply on stdout to calls from stdin until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which ends this by its pipe
    _use_last_cores()
    reader, writer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not mix with the replies

    def reply(answer: object, error_text: str | None, cpu_s: float) -> None:
        pickle.dump((answer, error_text, cpu_s), writer, pickle.HIGHEST_PROTOCOL)
        writer.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # the host has ended
        try:
            served = _Served(names)
        except Exception as error:  # sent to the host, which raises it
            reply(None, _text_of(error), 0.0)
            return
        reply(served.learns, None, 0.0)
        while True:
            method, argument = cast("tuple[str, Any]", pickle.load(reader))  # noqa: S301  (written by the host that started this)
            began = time.process_time()
            answer, error_text = None, None
            try:
                answer = getattr(served, method)(argument)
            except Exception as error:  # sent to the host, which raises it
                error_text = _text_of(error)
            reply(answer, error_text, time.process_time() - began)


if __name__ == "__main__":
    _serve(sys.argv[1:])
