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
    out: Path = tmp_path_factory.mktemp("vllm") / "out.json"
    command = [sys.executable, "-m", "tests.engines.vllm_host", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(out.read_text()))
