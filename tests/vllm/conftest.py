from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.need import need_vllm


@pytest.fixture(scope="session")
def vllm_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The runs of `vllm_host` on a real vLLM: one engine for every module that reads them."""
    need_vllm()
    return run_vllm_host(tmp_path_factory.mktemp("vllm") / "out.json")


@pytest.fixture(scope="session")
def second_runner(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The hidden states of vLLM's second model runner, where Triton can interpret its kernels."""
    need_vllm()
    pytest.importorskip("triton.backends", reason="vLLM's CPU build has no Triton: pip install triton")
    return run_vllm_host(tmp_path_factory.mktemp("vllm") / "second.json", "second")


def run_vllm_host(out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.vllm.host", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text()))
