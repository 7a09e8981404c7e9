"""Cells at the same time: they begin and end together, and their engines have the same share of the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lengthwise.errors import InputError
from lengthwise.experiments.evidence import seen, together
from lengthwise.experiments.evidence.together import Company, CompanyLeftError, side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BUSY = "open('/proc/self/comm', 'w').write('VLLM::busy')\nprint(flush=True)\nwhile True: pass"
"""Stands in for vLLM's process that computes: named as it is, and never idle."""
linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux: processes are bound to cores")


@dataclass
class Engine:
    """A process that is busy, in a session of its own as the embedded engine is."""

    process: subprocess.Popen[bytes] = field(
        default_factory=lambda: subprocess.Popen(
            [sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, start_new_session=True
        )
    )

    def __post_init__(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            said.readline()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def engines() -> Iterator[list[Any]]:
    some = [Engine() for _ in range(2 * len(os.sched_getaffinity(0)))]
    yield some
    for engine in some:
        engine.stop()


def taking_turns(company: Company, engine: Any, turns_s: float) -> Callable[[], float]:
    def job() -> float:
        company.ready(engine)
        before, until = seen.session_cpu_s(engine), time.monotonic() + turns_s
        while time.monotonic() < until:
            time.sleep(0.05)
        spent = seen.session_cpu_s(engine) - before
        company.over()
        return spent

    return job


@linux
def test_engines_have_the_same_share_of_the_cores(engines: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "TURN_S", 0.05)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    company = Company(len(engines))
    spent = side_by_side([taking_turns(company, engine, 3.0) for engine in engines], company)
    assert max(spent) < 1.5 * min(spent)
    assert [engine.state for engine in engines] == ["R"] * len(engines), "none is left stopped"
    assert all(os.sched_getaffinity(engine.pid) == os.sched_getaffinity(0) for engine in engines)


@linux
def test_no_more_engines_run_at_a_time_than_there_are_cores(
    engines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "TURN_S", 0.2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    company, running = Company(len(engines) + 1), []

    def look() -> float:
        company.ready(None)
        for _ in range(10):
            time.sleep(0.1)
            running.append(sum(engine.state == "R" for engine in engines))
        company.over()
        return 0.0

    side_by_side([look, *(taking_turns(company, engine, 0.1) for engine in engines)], company)
    usual = sorted(running)[len(running) // 2]  # a look may fall between the stop of one and the start of another
    assert usual == len(os.sched_getaffinity(0))


def test_nobody_begins_before_all_are_ready_and_results_keep_their_order() -> None:
    company, begun = Company(3), []

    def job(number: int) -> int:
        time.sleep(0.02 * number)
        begun.append(("ready", number))
        company.ready(None)
        begun.append(("begun", number))
        company.over()
        return number

    assert side_by_side([lambda n=n: job(n) for n in range(3)], company) == [0, 1, 2]  # type: ignore[misc]
    assert [what for what, _ in begun] == ["ready"] * 3 + ["begun"] * 3


@linux
def test_where_one_fails_all_end_their_engines_too_and_its_error_is_told(engines: list[Any]) -> None:
    company = Company(2)
    left: list[BaseException] = []

    def fails() -> None:
        company.ready(engines[0])
        raise RuntimeError("out of memory")

    def waits() -> None:
        try:
            company.ready(engines[1])
            company.over()
        except CompanyLeftError as error:
            left.append(error)
            raise

    with pytest.raises(RuntimeError, match="out of memory"):
        side_by_side([waits, fails], company)
    assert [str(error) for error in left] == ["a cell beside it failed"]
    assert all(engine.process.poll() is not None for engine in engines[:2])


def test_an_interrupt_ends_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    company, waiting = Company(2), threading.Event()

    def interrupted(_: object) -> None:
        waiting.wait()
        raise KeyboardInterrupt

    def waits() -> None:
        waiting.set()
        company.ready(None)

    monkeypatch.setattr(together, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([waits], company)


@linux
def test_what_cannot_take_turns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    with pytest.raises(InputError, match="4096 threads an engine"):
        together.core_sets()
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(InputError, match="on Linux only"):
        together.core_sets()


@linux
def test_an_engine_none_of_whose_processes_is_known_to_compute_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "computing", lambda _: [])
    with pytest.raises(InputError, match="measure without --at-once"):
        Company(1).ready(object())  # type: ignore[arg-type]
