"""A predictor in a process of its own, so that it never takes the interpreter from the host.

Python lets one thread run at a time: a predictor in a thread of the engine's or the gateway's process makes each of its
steps wait. Here the host's worker thread only writes questions to a pipe and reads predictions from one, asleep in between.
The process ends with the pipe, however the host ends. One that has died is started again a few times; what was asked
meanwhile has failed, and goes by history. `python -m lengthwise.predictors.subprocess_predictor NAME` is that process.
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
from typing import IO, TYPE_CHECKING, Any, Final, cast

from lengthwise.predictors.resolve import resolve_predictor

if TYPE_CHECKING:
    from lengthwise.predictors.contract import PredictionInput, Predictions

_STARTS: Final = 3
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A predictor's matrices are small: a second thread would only take a core from the host."""


class SubprocessError(Exception):
    """The predictor raised in its process, or the process is gone."""


class SubprocessPredictor:
    """A LengthPredictor by name or file, that runs in a process of its own from `start` to `close`.

    One thread calls it, but for `close`, which any may call at any time: a question that is out then fails.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.cpu_s = 0.0
        """CPU time of its predictions so far."""
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"SubprocessPredictor({self.name!r}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> SubprocessPredictor:
        """Start the process and wait until it has loaded its predictor."""
        self._started()
        return self

    def predict(self, inputs: Sequence[PredictionInput]) -> Predictions:
        """Return one prediction for each input, in order."""
        return cast("Predictions", self._ask(self._started(), list(inputs)))

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._closed.set()
        if self._process is not None:
            _bury(self._process)  # it holds nothing that could be lost; a thread that waits for it reads the pipe's end

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            if self._closed.is_set() or self._starts == _STARTS:
                ended = "closed" if self._closed.is_set() else f"died {_STARTS} times"
                raise SubprocessError(f"the predictor's process has {ended}")
            self._starts += 1
            command = [sys.executable, "-P", "-m", __name__, self.name]  # -P: not what lies in the host's folder
            environment = {**os.environ, **_ONE_THREAD}
            self._process = subprocess.Popen(  # noqa: S603  (this very interpreter)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            if self._closed.is_set():  # meanwhile
                self._process.kill()
            self._ask(self._process, None)
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], question: list[PredictionInput] | None) -> object:
        """What the process answers to what is asked; None, which is not sent, is answered once it has loaded."""
        reader, writer = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stdin)
        try:
            if question is not None:
                pickle.dump(question, writer, pickle.HIGHEST_PROTOCOL)
                writer.flush()
            answer, trouble, cpu_s = pickle.load(reader)  # noqa: S301  (written by our own process)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError) as error:  # ValueError: closed meanwhile
            self._forget(process)
            raise SubprocessError("the predictor's process is gone") from error
        self.cpu_s += cpu_s
        if trouble is not None:
            if question is None:
                self._forget(process)
            raise SubprocessError(trouble)
        return answer

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        _bury(process)


def _bury(process: subprocess.Popen[bytes]) -> None:
    """End a process and leave nothing of it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what could not be written to it
            cast("IO[bytes]", pipe).close()


def _serve(name: str) -> None:
    """Load the predictor, then answer questions from stdin on stdout until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which ends this by its pipe
    reader, writer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print among the answers

    def tell(answer: object, trouble: str | None, cpu_s: float) -> None:
        pickle.dump((answer, trouble, cpu_s), writer, pickle.HIGHEST_PROTOCOL)
        writer.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # the host has ended
        try:
            predictor = resolve_predictor(name)
        except Exception as error:  # told to the host, which raises it
            tell(None, f"{type(error).__name__}: {error}", 0.0)
            return
        tell(None, None, 0.0)
        while True:
            question: Any = pickle.load(reader)  # noqa: S301  (written by the host that started this)
            began = time.process_time()
            answer, trouble = None, None
            try:
                answer = predictor.predict(question)
            except Exception as error:  # told to the host, which raises it
                trouble = f"{type(error).__name__}: {error}"
            tell(answer, trouble, time.process_time() - began)


if __name__ == "__main__":
    _serve(sys.argv[1])
