"""The log of an engine's steps: the columns of a row, and a file that is complete whenever it is read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lengthwise.errors import InputError
from lengthwise.simulator.step_log import COLUMNS, EngineFacts, read_steps
from lengthwise.vllm import steps as module
from lengthwise.vllm.steps import StepLog

FACTS = EngineFacts("stand-in 1", "tiny", 1024, 16, 512, 4, 512, prefix_caching=True, chunked_prefill=False)


class Clock:
    """A clock that the test sets."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def rows(path: Path) -> list[dict[str, Any]]:
    table, _ = read_steps(path)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def scheduled(log: StepLog, clock: Clock, *spans: tuple[int, int]) -> None:
    log.scheduled(spans, waiting=3, running=2, began_s=clock.now, cpu_s=0.001)


def test_a_row_counts_the_tokens_of_a_step_as_the_simulator_does(tmp_path: Path, clock: Clock) -> None:
    log = StepLog(tmp_path / "steps.parquet", FACTS)
    # A whole prompt, the rest of another, the last token of a prompt in the cache, and two that decode.
    scheduled(log, clock, (0, 10), (32, 8), (16, 1), (20, 1), (0, 1))
    clock.now += 0.5
    log.done(busy=False)
    log.close()
    (row,) = rows(tmp_path / "steps.parquet")
    assert set(row) == set(COLUMNS)
    assert (row["prompt_tokens"], row["prompt_pairs"]) == (10 + 8 + 1, 10**2 + 40**2 - 32**2 + 1)
    assert (row["decodes"], row["context_tokens"]) == (2, 17 + 21)
    assert (row["start_s"], row["seconds"]) == (1000.0, 0.5)
    assert (row["waiting"], row["running"], row["schedule_cpu_s"]) == (3, 2, 0.001)


def test_time_between_steps_counts_while_requests_run_and_not_while_idle(tmp_path: Path, clock: Clock) -> None:
    log = StepLog(tmp_path / "steps.parquet", FACTS)
    for wait, busy in ((0.0, True), (0.25, False), (60.0, True)):
        clock.now += wait
        scheduled(log, clock, (5, 1))
        clock.now += 1.0
        log.done(busy=busy)
    log.close()
    assert [row["seconds"] for row in rows(tmp_path / "steps.parquet")] == [1.0, 1.25, 1.0]


def test_steps_scheduled_ahead_end_in_their_order(tmp_path: Path, clock: Clock) -> None:
    log = StepLog(tmp_path / "steps.parquet", FACTS)
    scheduled(log, clock, (0, 8))
    clock.now += 0.1
    scheduled(log, clock, (8, 1))  # while the first still computes
    clock.now += 0.9
    log.done(busy=True)
    clock.now += 0.5
    log.done(busy=False)
    log.close()
    first, second = rows(tmp_path / "steps.parquet")
    assert (first["prompt_tokens"], first["seconds"]) == (8, 1.0)
    assert (second["decodes"], second["seconds"]) == (1, 0.5)


def test_a_step_without_tokens_is_not_logged_and_its_time_is_not_counted(tmp_path: Path, clock: Clock) -> None:
    log = StepLog(tmp_path / "steps.parquet", FACTS)
    scheduled(log, clock, (5, 1))
    clock.now += 1.0
    log.done(busy=True)
    scheduled(log, clock)
    clock.now += 60.0
    scheduled(log, clock, (6, 1))
    clock.now += 1.0
    log.done(busy=False)
    log.close()
    assert [row["seconds"] for row in rows(tmp_path / "steps.parquet")] == [1.0, 1.0]


def test_the_file_is_complete_while_the_engine_runs(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "steps.parquet"
    log = StepLog(path, FACTS)
    for _ in range(30):
        scheduled(log, clock, (5, 1))
        clock.now += 1.0
        log.done(busy=True)
        if log._writer is not None:
            log._writer.join()
    assert 20 <= len(rows(path)) < 30  # never closed, as after a crash
    assert read_steps(path)[1] == FACTS


def test_an_idle_engine_has_written_every_step(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "steps.parquet"
    log = StepLog(path, FACTS)
    for busy in (True, False, True, False):  # idle twice within a second
        scheduled(log, clock, (5, 1))
        clock.now += 0.1
        log.done(busy=busy)
    assert log._writer is not None
    log._writer.join()
    assert len(rows(path)) == 4  # never closed


def test_a_full_log_stops_growing(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 5)
    log = StepLog(tmp_path / "steps.parquet", FACTS)
    for _ in range(9):
        scheduled(log, clock, (5, 1))
        clock.now += 1.0
        log.done(busy=True)
    log.close()
    assert len(rows(tmp_path / "steps.parquet")) == 5


def test_a_disk_that_fails_does_not_stop_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    log = StepLog(folder / "steps.parquet", FACTS)
    folder.rmdir()
    log.scheduled([(0, 3)], waiting=0, running=1, began_s=time.time(), cpu_s=0.0)
    log.done(busy=False)
    log.close()
    assert "cannot be written" in caplog.text


def test_a_log_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder does not exist"):
        StepLog(tmp_path / "none" / "steps.parquet", FACTS)


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_steps(tmp_path / "gone.parquet")
    pq.write_table(pa.table({"seconds": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="no facts of its engine"):
        read_steps(tmp_path / "other.parquet")


def test_a_write_pauses_the_next_ones_so_that_the_log_does_not_slow_the_engine(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def slow(path: Path, rows: Any, facts: EngineFacts) -> None:
        written.append(len(rows))
        clock.now += 2.0

    monkeypatch.setattr(module, "write_steps", slow)
    log = StepLog(tmp_path / "steps.parquet", FACTS)
    for _ in range(3000):
        log.scheduled([(4, 1)], waiting=0, running=1, began_s=0.0, cpu_s=0.0)
        log.done(busy=True)
        clock.now += 0.1
        if log._writer is not None:
            log._writer.join()
    assert len(written) == 3, "in 300 s: after 20 s, then after 50 times the 2 s of a write"
    log.close()
    assert written[-1] == 3000, "no row is lost"
