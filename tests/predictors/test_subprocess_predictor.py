"""A predictor in a child process gives the same predictions, and no process outlives its host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.predictors import subprocess_predictor as module
from lengthwise.predictors.contract import PredictionInput
from lengthwise.predictors.resolve import load_predictor
from lengthwise.predictors.service import prediction_service
from lengthwise.predictors.subprocess_predictor import SubprocessError, SubprocessPredictor

LLM = "meta-llama/Llama-3.1-8B-Instruct"
INPUTS = [PredictionInput(f"Write {n} lines about foxes. 🦊 \ud800", LLM, max_tokens=100 * n) for n in range(1, 9)]


@pytest.fixture
def fast() -> Iterator[SubprocessPredictor]:
    made = SubprocessPredictor("fast")
    yield made
    made.close()


def until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.01)


@pytest.mark.parametrize(("cores", "used"), [(16, {12, 13, 14, 15}), (9, {7, 8}), (7, None)])
def test_it_runs_on_the_last_quarter_of_many_cores(
    cores: int, used: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, given: chosen.append(set(given)), raising=False)
    module._use_last_cores()  # the process calls it before it loads a predictor
    assert chosen == ([] if used is None else [used])


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("name", ["fast", "default", "rank"])
def test_predictions_equal_those_in_this_process(name: str) -> None:
    here, there = load_predictor(name), SubprocessPredictor(name)
    try:
        predictions = there.predict(INPUTS)
        mine = here.predict(INPUTS)
        for q in (0.1, 0.5, 0.9):
            np.testing.assert_allclose(predictions.quantile(q), mine.quantile(q), rtol=1e-5)
        assert there.cpu_s > 0
    finally:
        there.close()


def test_a_second_predictor_answers_from_the_same_process() -> None:
    both = SubprocessPredictor("default", "fast")
    try:
        quick, pid = both.serve(1, INPUTS, None).made, both.pid
        np.testing.assert_allclose(quick.quantile(0.5), load_predictor("fast").predict(INPUTS).quantile(0.5), rtol=1e-5)
        np.testing.assert_allclose(
            both.predict(INPUTS).quantile(0.5), load_predictor("default").predict(INPUTS).quantile(0.5), rtol=1e-5
        )
        assert both.pid == pid
    finally:
        both.close()


def test_a_failed_prediction_leaves_the_process_usable(fast: SubprocessPredictor) -> None:
    with pytest.raises(SubprocessError, match="Error"):
        fast.predict([None])  # type: ignore[list-item]
    assert len(fast.predict(INPUTS)) == len(INPUTS)


def test_a_predictor_that_cannot_be_loaded_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SubprocessError, match=r"InputError: .*no-such-file\.lw"):
        SubprocessPredictor(str(tmp_path / "no-such-file.lw")).start()


def test_a_process_that_dies_is_restarted_a_bounded_number_of_times(fast: SubprocessPredictor) -> None:
    for _ in range(module._STARTS):
        assert len(fast.predict(INPUTS)) == len(INPUTS)
        pid = fast.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SubprocessError, match="ended"):
            fast.predict(INPUTS)
    with pytest.raises(SubprocessError, match="died"):
        fast.predict(INPUTS)
    assert fast.pid is None


def test_a_process_that_dies_while_it_loads_is_restarted(
    fast: SubprocessPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def killing(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        if len(started) <= kills:
            started[-1].kill()
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", killing)
    kills = 2
    assert len(fast.start().predict(INPUTS)) == len(INPUTS)
    assert len(started) == 3
    started.clear()
    kills = 3
    with pytest.raises(SubprocessError, match="ended"):
        SubprocessPredictor("fast").start()
    assert len(started) == 3


def test_close_releases_a_thread_that_waits_for_a_hanging_process(fast: SubprocessPredictor) -> None:
    fast.start()
    pid = fast.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            fast.predict(INPUTS)
        except SubprocessError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    fast.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert gone(pid)
    with pytest.raises(SubprocessError, match="closed"):
        fast.predict(INPUTS)


def test_the_process_ends_when_its_host_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = (
        "import pathlib, sys, time; from lengthwise.predictors.subprocess_predictor import SubprocessPredictor; "
        "made = SubprocessPredictor('fast').start(); "
        "pathlib.Path(sys.argv[1]).write_text(str(made.pid)); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(pid_file)]) as host:
        until(lambda: pid_file.is_file() and bool(pid_file.read_text()))
        host.kill()
    pid = int(pid_file.read_text())
    until(lambda: gone(pid))


def test_the_service_predicts_in_the_process_counts_its_cpu_time_and_ends_it() -> None:
    service = prediction_service("fast")
    taken: list[str] = []
    for n, each in enumerate(INPUTS):
        service.admit(str(n), LLM, None)
        service.ask(str(n), lambda each=each: each)  # type: ignore[misc]

    def take(key: str, _: object) -> bool:
        taken.append(key)
        return True

    def all_taken() -> bool:
        service.deliver(take)
        return len(taken) == len(INPUTS)

    until(all_taken)
    process = service._process
    assert process is not None
    pid = process.pid
    assert pid is not None
    assert service.counts.cpu_s > process.cpu_s > 0
    service.close()
    assert gone(pid)
