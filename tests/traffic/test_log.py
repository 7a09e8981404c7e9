"""The traffic log keeps what was added, within its limit, whatever the disk does; its reader refuses other files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lengthwise.errors import InputError
from lengthwise.predictors.prefix_memory import scopes_of
from lengthwise.traffic.log import HEADER, PARTS, EngineReading, PredictorCounts, TrafficLog, line_of
from lengthwise.traffic.reader import read_traffic
from lengthwise.traffic.rows import RequestRow
from tests.traffic.traffic_rows import PLAIN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "learn"


def rows(folder: Path) -> tuple[RequestRow, ...]:
    return read_traffic(folder).rows


def row(number: int, **fields: Any) -> RequestRow:
    return PLAIN._replace(arrival_s=1e9 + number, request_id=f"r-{number}", **fields)


def test_records_are_read_back_in_order_of_arrival(folder: Path) -> None:
    engine = EngineReading(1e9, "engine-0", running=3, waiting=1, kv_use=0.25, kv_tokens=4096, block_size=16)
    counts = PredictorCounts(asked=2, answered=2, failed=0, dropped=0, cpu_s=0.1, mean_age_s=0.01)
    with TrafficLog(folder, max_bytes=1 << 20) as log:
        for record in (row(2), engine, row(1, text="words", censored=True, output_tokens=3, counted=True), counts):
            log.add(record)
    found = read_traffic(folder)
    assert found.rows == (row(1, text="words", censored=True, output_tokens=3, counted=True), row(2))
    assert (found.engines, found.predictors) == ((engine,), (counts,))
    assert found.output_tokens.tolist() == [3, 100]


@pytest.mark.parametrize("text", ["\u00e9 \u2028 \U0001f600\n", "half a pair: \ud83d"])
def test_any_text_that_a_client_sends_is_logged(folder: Path, text: str) -> None:
    with TrafficLog(folder, max_bytes=1 << 20) as log:
        log.add(row(1, text=text, llm=text))
    assert rows(folder) == (row(1, text=text, llm=text),)


def test_a_count_of_events_is_no_length_unless_the_answer_broke_off(folder: Path) -> None:
    with TrafficLog(folder, max_bytes=1 << 20) as log:
        log.add(row(1, counted=True))
        log.add(row(2, counted=True, censored=True))
        log.add(row(3))
    assert read_traffic(folder).known.tolist() == [False, True, True]


def test_the_complete_rows_of_a_truncated_part_are_read(folder: Path) -> None:
    folder.mkdir()
    whole = json.dumps(HEADER) + "\n" + "".join(line_of(row(n)) for n in range(3))
    lines = whole.encode()
    for size in range(lines.index(b"\n") + 1, len(lines)):
        (folder / "traffic-1-1.jsonl").write_bytes(lines[:size])
        expected = lines[:size].count(b"\n") - 1
        if expected:
            assert rows(folder) == tuple(row(n) for n in range(expected))
        else:
            with pytest.raises(InputError, match="holds no requests"):
                rows(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json\n", "is not a traffic log"),
        ('{"kind": "something else", "format": 2}\n', "is not a traffic log"),
        ('{"kind": "lengthwise traffic", "format": 99}\n', "has format 99, newer than 2"),
        ('{"kind": "lengthwise traffic", "format": 1}\n', "has format 1, of an older lengthwise; this version reads"),
        (json.dumps(HEADER) + '\n{"time": 3}\n', "row 2: is not a record of a traffic log"),
        (json.dumps(HEADER) + "\n" + line_of(row(1, history_mu=float("nan"))), "is not a record"),
        (json.dumps(HEADER) + "\n" + line_of(row(1, sigma=None)), "is not a record"),
        (json.dumps(HEADER) + "\n" + line_of(row(1, names="abcd")), "is not a record"),
    ],
)
def test_a_file_that_is_not_a_traffic_log_is_refused(folder: Path, content: str, message: str) -> None:
    folder.mkdir()
    (folder / "traffic-1-1.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        rows(folder)


def test_the_folder_stays_within_its_limit_and_keeps_the_newest(folder: Path) -> None:
    limit = 1 << 20
    with TrafficLog(folder, max_bytes=limit) as log:
        for number in range(100):
            log.add(row(number, text="x" * 30_000))
    kept = [int((each.request_id or "")[2:]) for each in rows(folder)]
    assert sum(path.stat().st_size for path in folder.glob("*.jsonl")) <= limit
    assert kept[-1] == 99
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 0


def test_a_full_disk_drops_rows_and_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    log = TrafficLog(folder, max_bytes=1 << 20)
    monkeypatch.setattr("lengthwise.traffic.log.write_all", full)
    with log:
        log.add(row(1))
    assert (log.written, log.dropped) == (0, 1)


def test_a_full_disk_leaves_no_trail_of_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = TrafficLog(folder, max_bytes=1 << 20)
    room = 0

    def write(file: int, data: bytes) -> int:
        nonlocal room
        taken = data[:room]
        room -= len(taken)
        if not taken:
            raise OSError(28, "No space left on device")
        return real_write(file, taken)

    real_write = os.write
    monkeypatch.setattr("lengthwise.files.os.write", write)
    for _ in range(20):
        log._write([row(1)])
    assert [path.name for path in folder.iterdir()] == ["key"]
    for room in (300, 20, 10_000, 5, 10_000):  # in the header or in a row
        log._write([row(room)])
    log._close()
    assert len(list(folder.glob(PARTS))) == 1
    assert [found.request_id for found in rows(folder)] == ["r-10000", "r-10000"]
    assert (log.written, log.dropped) == (2, 23)


def test_the_hash_key_is_made_once_and_an_invalid_one_is_refused(folder: Path) -> None:
    scopes = scopes_of("m", [1, 2], tenant="t")
    first, second = (TrafficLog(folder, max_bytes=1 << 20).keyed(scopes) for _ in range(2))
    assert first.blocks.tolist() == second.blocks.tolist()
    assert first.blocks.tolist() != scopes.blocks.tolist()
    assert first.names.tolist()[1:3] == [0, 0], "no template, no session"
    (folder / "key").write_bytes(b"short")
    with pytest.raises(InputError, match="is not the key of a traffic log"):
        TrafficLog(folder, max_bytes=1 << 20)


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the traffic log cannot be written"):
        TrafficLog(tmp_path / "file", max_bytes=1 << 20)
