"""Limited preemption in a real vLLM with a real LLM: who yields goes on as if nothing had been."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.engines.need import need_vllm

need_vllm()

from pathlib import Path

TIMES = 2
SRPT = f"srpt:c=0.8,times={TIMES}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out: Path = tmp_path_factory.mktemp("vllm") / "out.json"
    command = [sys.executable, "-m", "tests.engines.preemption_host", str(out), "fcfs", SRPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text()))


def test_running_requests_yield_to_shorter_ones_and_only_so_often(served: dict[str, Any]) -> None:
    assert set(served["fcfs"]["preemptions"].values()) == {0}
    yielded = served[SRPT]["preemptions"]
    assert max(yielded.values()) == TIMES
    assert all(count == 0 for name, count in yielded.items() if name.startswith("short"))
    assert next(iter(served[SRPT]["answers"])).startswith("short")
    assert next(iter(served["fcfs"]["answers"])).startswith("long")


def test_every_answer_is_token_for_token_what_it_is_without_preemption(served: dict[str, Any]) -> None:
    assert len(served["fcfs"]["answers"]) == 14
    assert served[SRPT]["answers"] == served["fcfs"]["answers"]
