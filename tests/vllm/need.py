"""vLLM is an extra: without it these tests are skipped, except under `make test`, which installs it."""

from __future__ import annotations

import importlib
import os

import pytest


def need_vllm() -> None:
    """Skip the tests if vLLM is not installed; fail if LENGTHWISE_NEED_ENGINE is set and it is not."""
    if os.environ.get("LENGTHWISE_NEED_ENGINE"):
        importlib.import_module("vllm")
    else:
        pytest.importorskip("vllm", reason="vLLM is not installed: run `make engine`")
