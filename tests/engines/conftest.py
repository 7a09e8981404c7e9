from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.need import need_vllm


@pytest.fixture(scope="session")
def vllm_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a real vLLM does with the requests of `vllm_host`: one engine for every module that reads them."""
    need_vllm()
    return hosted(tmp_path_factory.mktemp("vllm") / "out.json")


@pytest.fixture(scope="session")
def second_runner(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The hidden states of vLLM's second model runner, where Triton can interpret its kernels."""
    need_vllm()
    pytest.importorskip("triton", reason="vLLM's CPU build has no Triton: pip install triton")
    return hosted(tmp_path_factory.mktemp("vllm") / "second.json", "second")


def hosted(out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.engines.vllm_host", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text()))
