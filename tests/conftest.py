"""Settings of the whole test suite."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# One thread: with several, small matrix products spend most of their time synchronising.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What one test serves must not change the predictions of another.
os.environ.setdefault("LENGTHWISE_SERVE_STATE", "off")
os.environ.setdefault("LENGTHWISE_STATE", "off")

# A shell that starts the tests in the background makes them, and every process they start, ignore Ctrl-C;
# tests of Ctrl-C would then wait forever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on the speed of the machine.
settings.register_profile(
    "lengthwise",
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("lengthwise")

if TYPE_CHECKING:
    from lengthwise.vllm.embedded import EmbeddedEngine


_ENGINE_MODULE = re.compile(r"^pytestmark = .*pytest\.mark\.engine\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m 'not engine'`, do not import the modules of engine tests: they import vLLM, which takes seconds."""
    if config.option.markexpr != "not engine" or collection_path.suffix != ".py":
        return None
    return True if _ENGINE_MODULE.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of real engines in one process: two engines at a time only slow each other down."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.xdist_group("engine"))


BENCH_TOKEN = "a token of the tests"  # noqa: S105
"""With it, `lengthwise bench` may switch the shared engine's policy."""


@pytest.fixture
def few_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapt with two strengths of penalty in place of fifteen: the same code with fewer fits."""
    monkeypatch.setattr("lengthwise.predictors.mixture.STRENGTHS", ((10.0, 30.0), (100.0, 1000.0)))


@dataclass(frozen=True)
class StatingLlm:
    """An OpenAI-compatible server whose LLM states the last word of a prompt as the length of its answer."""

    url: str
    bodies: list[dict[str, Any]]
    """The bodies of the chat completions that it received."""


@pytest.fixture
def stating_llm() -> Iterator[StatingLlm]:
    """Start a server of one LLM, "tiny", that states a length if the prompt ends with a number."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({"data": [{"id": "tiny"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            last = body["messages"][0]["content"].split()[-1]
            reply = f"{last}: because" if last.isdigit() else "I do not know."
            self._reply({"choices": [{"message": {"content": reply}}]})

        def _reply(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (its name in the base class)
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield StatingLlm(f"http://127.0.0.1:{server.server_port}", bodies)
        server.shutdown()


@pytest.fixture(scope="session")
def embedded_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    """One embedded engine for all tests that need one: sjf, 4 slots, every step logged.

    In float32, so that an answer does not depend on the batch that it is computed in.
    """
    from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions
    from tests.vllm.need import need_vllm

    need_vllm()
    steps = tmp_path_factory.mktemp("engine") / "steps.parquet"
    options = EngineOptions(
        policy="sjf",
        max_num_seqs=4,
        plugin_options={"steps": str(steps), "bench_token": BENCH_TOKEN},
        extra=("--dtype", "float32"),
    )
    with EmbeddedEngine(options) as running:
        yield running
        last = running.pid
    until = time.monotonic() + 60.0  # the kernel takes its time to end a killed process
    while str(last) in live_process_groups():
        assert time.monotonic() < until, "a stopped engine leaves no process behind"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def stock_engine() -> Iterator[EmbeddedEngine]:
    """One stock vLLM for all tests that need one: 3 slots, ordered by `priority`."""
    from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions
    from tests.vllm.need import need_vllm

    need_vllm()
    extra = ("--scheduling-policy", "priority")
    with EmbeddedEngine(EngineOptions(plugin=False, max_num_seqs=3, max_model_len=2048, extra=extra)) as running:
        yield running


def live_process_groups() -> set[str]:
    """Return the process groups that have a process which is not a zombie."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return {group for group, state in map(str.split, listed.splitlines()) if not state.startswith("Z")}
