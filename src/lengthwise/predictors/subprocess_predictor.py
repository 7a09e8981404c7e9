"""A predictor in a separate process, so that it does not hold the interpreter lock of the host.

Python runs one thread at a time: a predictor in a thread of the engine or the gateway would delay its steps. Here the
host's worker thread only writes inputs to a pipe and reads predictions from another. The process ends with the pipe,
however the host ends. A process that dies is started again, at most three times in all; open questions fail, and
history is used. What was learned at the last `state` or `restore` is restored; what was learned since is lost.
`python -m lengthwise.predictors.subprocess_predictor learning NAME [QUICK]` is that process (`fixed`: it does not
learn); QUICK is a second predictor.
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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any, Final, cast

from lengthwise.predictors.contract import PredictionInput, Predictions
from lengthwise.predictors.resolve import resolve_predictor
from lengthwise.predictors.served import Ending, Predicted, ServedPredictors, Taught, text_of

_LEARNING: Final = "learning"
_FIXED: Final = "fixed"
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

    def __init__(self, name: str, quick: str | None = None, *, learning: bool = False) -> None:
        self.name = name
        self.places = 1 if quick is None else 2
        """How many predictors the process has: the second takes less time."""
        self._arguments = [_LEARNING if learning else _FIXED, name, *(() if quick is None else (quick,))]
        self.cpu_s = 0.0
        """CPU time of its predictions so far."""
        self.given_up = False
        """Whether the process died so often that it is not started again."""
        self._tenants_apart = False
        self._learned: dict[str, bytes] = {}
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
        return self.serve(0, inputs, None).made

    def serve(self, place: int, inputs: Sequence[PredictionInput], numbers: Sequence[int] | None) -> Predicted:
        """Predict with the first predictor, or with the quick one (place 1); remember the requests by their numbers."""
        return cast("Predicted", self._call("serve", place, list(inputs), numbers))

    def end(self, endings: Sequence[Ending]) -> Taught:
        """Let what predicted these requests observe their lengths, and forget the requests."""
        if self._process is None:  # it died, and nothing remembers these requests
            return Taught(0, 0, ())
        return cast("Taught", self._call("end", list(endings)))

    def keep_tenants_apart(self, apart: bool) -> None:
        """Learn from each tenant apart, or from all together, now and after each restart of the process."""
        self._tenants_apart = apart
        self._call("keep_tenants_apart", apart)

    def state(self) -> dict[str, bytes]:
        """Return what is learned, in parts; the process continues from this after a restart."""
        self._learned = cast("dict[str, bytes]", self._call("state"))
        return self._learned

    def restore(self, parts: Mapping[str, bytes]) -> list[str]:
        """Continue from what `state` returned, now and after each restart of the process; return what is not used."""
        self._learned = dict(parts)
        return cast("list[str]", self._call("restore", self._learned))

    def reset(self) -> None:
        """Forget what is learned."""
        self._learned = {}
        self._call("reset")

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
            # -P: import nothing from the host's folder.
            command = [sys.executable, "-P", "-m", __name__, *self._arguments]
            environment = {**os.environ, **_ONE_THREAD}
            self._process = subprocess.Popen(  # noqa: S603  (this very interpreter)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                process_group=0,  # a terminal's Ctrl-C is for the host, also while this process is still importing
            )
            if self._closed.is_set():  # closed in the meantime
                self._process.kill()
            self._exchange(self._process, None)
            if self._tenants_apart:
                self._exchange(self._process, ("keep_tenants_apart", (True,)))
            if self._learned:
                self._exchange(self._process, ("restore", (self._learned,)))
        return self._process

    def _call(self, method: str, *arguments: object) -> object:
        return self._exchange(self._started(), (method, arguments))

    def _exchange(self, process: subprocess.Popen[bytes], call: tuple[str, tuple[object, ...]] | None) -> object:
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


def _serve(names: Sequence[str], *, learning: bool) -> None:
    """Load the predictors, then reply on stdout to calls from stdin until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host ends this by its pipe
    _use_last_cores()
    reader, writer = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not mix with the replies

    def reply(answer: object, error_text: str | None, cpu_s: float) -> None:
        pickle.dump((answer, error_text, cpu_s), writer, pickle.HIGHEST_PROTOCOL)
        writer.flush()

    with contextlib.suppress(EOFError, BrokenPipeError):  # the host has ended
        try:
            served = ServedPredictors(*(partial(resolve_predictor, name) for name in names), learning=learning)
        except Exception as error:  # sent to the host, which raises it
            reply(None, text_of(error), 0.0)
            return
        reply(None, None, 0.0)
        while True:
            method, arguments = cast("tuple[str, Any]", pickle.load(reader))  # noqa: S301  (written by the host that started this)
            began = time.process_time()
            answer, error_text = None, None
            try:
                answer = getattr(served, method)(*arguments)
            except Exception as error:  # sent to the host, which raises it
                error_text = text_of(error)
            reply(answer, error_text, time.process_time() - began)


if __name__ == "__main__":
    _serve(sys.argv[2:], learning=sys.argv[1] == _LEARNING)
