"""A demo that runs in a thread of the tests, on a small fleet with short answers."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lengthwise.traffic.log import TrafficLog
from lengthwise.traffic.rows import RequestRow

SMALL = ("--fleet", "1*llama-3-8b@a100", "--max-num-seqs", "4")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def short_answers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a traffic log of short answers, so that a race ends soon."""
    folder = tmp_path_factory.mktemp("traffic")
    with TrafficLog(folder, max_bytes=1 << 20) as log:
        for number in range(300):
            at, tokens = 1000.0 + 0.1 * number, 5 + 7 * number % 90
            log.add(
                RequestRow(
                    at, at, at + 0.1, at + 0.1 + 0.01 * tokens, llm="llama-3.1-8b", engine="engine-0", policy="fcfs",
                    input_tokens=20, output_tokens=tokens, mu=math.log(tokens), sigma=0.5, predictor="fast",
                )
            )  # fmt: skip
    return str(folder)


@contextlib.contextmanager
def running_demo(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `lengthwise demo`; yield the page's URL and the process, which is ended by Ctrl-C."""
    command = [sys.executable, "-m", "lengthwise", "demo", "--no-open", *options]
    environment = {name: value for name, value in os.environ.items() if name != "LENGTHWISE_DATA"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = (process.stderr if "--json" in options else process.stdout).readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + process.stderr.read()
        yield found[0], process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
        process.stdout.close()
        process.stderr.close()


def frames(lines: Iterator[bytes]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield name and content of the events of a stream."""
    name = ""
    for raw in lines:
        line = raw.decode().strip()
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
