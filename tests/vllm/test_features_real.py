"""N-gram speculation with the plug-in on a real engine; `python -m tests.vllm.features OUT.json` runs every feature."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine


def test_with_n_gram_speculation_every_answer_is_token_for_token_that_of_stock_vllm(tmp_path: Path) -> None:
    feature, out = "n-gram speculation", tmp_path / "out.json"
    command = [sys.executable, "-m", "tests.vllm.features", str(out), feature]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ran = json.loads(out.read_text())[feature]
    assert "error" not in ran["stock"], ran["stock"]
    assert ran["plug-in"]["scheduler"] == "LengthwiseScheduler", ran["plug-in"]
    assert ran["plug-in"]["answers"] == ran["stock"]["answers"]
    assert len({tuple(answer) for answer in ran["stock"]["answers"]}) > 1, (
        "the answers must differ for this to say much"
    )
