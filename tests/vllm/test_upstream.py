"""vLLM's own scheduler tests, of the same release, with our class in place of theirs.

They are fetched beside the project (`make upstream`) and never committed. Tests that need a model configuration
from the hub cannot run here, nor with vLLM's own class: docs/guides/engine.md has their number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

import vllm

ROOT = Path(__file__).parents[2]
RELEASE = vllm.__version__.partition("+")[0]
UPSTREAM = ROOT / ".upstream" / f"vllm-{RELEASE}"
PASSES = {"0.30": 144, "0.31": 169, "0.32": 180}
"""How many of these tests pass without the hub; those of 0.30 below are not among them."""
OTHERWISE = {
    f"tests.v1.core.test_scheduler.test_{name}"
    for name in (
        "schedule_skip_tokenizer_init_structured_output_request",
        "remote_kv_promotion_keeps_fcfs_with_grammar_prefix",
        "fcfs_mixed_skipped_waiting_types_keep_order",
    )
}
"""Tests of 0.30 that expect requests in `skipped_waiting` which `adapter.SkippedQueue` returns to `waiting`."""
FILES = ("scheduler", "async_scheduler", "priority_scheduler_random", "priority_preemption_bug")
FROM_THE_HUB = "Provide a valid Hugging Face repository ID"  # vLLM's error when a configuration is missing
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 768,
    "ffn_dim": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
    "word_embed_proj_dim": 768,
    "torch_dtype": "float16",
}


def results(folder: Path) -> dict[str, str]:
    """Run the four files and return the error of each test ("" for a pass)."""
    if not UPSTREAM.is_dir():
        pytest.fail(f"the tests of vLLM {RELEASE} are not here: python scripts/fetch_vllm_tests.py .upstream {RELEASE}")
    # A folder with the model's name, so that no hub is needed for its configuration.
    (folder / "facebook" / "opt-125m").mkdir(parents=True)
    (folder / "facebook" / "opt-125m" / "config.json").write_text(json.dumps(OPT))
    tests = folder / "tests"
    tests.symlink_to(UPSTREAM / "tests")
    plugin = folder / "upstream_plugin.py"
    plugin.symlink_to(Path(__file__).with_name("upstream_plugin.py"))
    report = folder / "report.xml"
    names = [f"tests/v1/core/test_{name}.py" for name in FILES]
    options = ["-q", "-p", "upstream_plugin", "-p", "no:cacheprovider", "--noconftest", f"--junitxml={report}"]
    environment = {
        **os.environ,
        "LENGTHWISE_SWAP": "1",
        "LENGTHWISE_POLICY": "fcfs",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(folder),
    }
    command = [sys.executable, "-m", "pytest", *options, *names]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    cases = ET.parse(report).iter("testcase")  # noqa: S314  (written by pytest above)
    return {
        f"{case.get('classname')}.{case.get('name')}": "".join(
            (problem.get("message") or "") + (problem.text or "")
            for kind in ("failure", "error")
            for problem in case.findall(kind)
        )
        for case in cases
    }


def test_vllms_own_scheduler_tests_pass_with_our_class(tmp_path: Path) -> None:
    outcome = results(tmp_path)
    failed = {name: error for name, error in outcome.items() if error}
    from_the_hub = {name for name, error in failed.items() if FROM_THE_HUB in error}
    others = sorted(set(failed) - from_the_hub - (OTHERWISE if RELEASE.startswith("0.30.") else set()))
    assert not others, "\n".join(f"{name}: {failed[name][-600:]}" for name in others[:5])
    expected = PASSES.get(".".join(RELEASE.split(".")[:2]), 180)
    assert len(outcome) - len(failed) >= expected, "fewer tests ran than vLLM's own class passes"
