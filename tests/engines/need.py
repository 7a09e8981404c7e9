"""vLLM is an extra: without it these tests are skipped, except where `make test` has installed it."""

from __future__ import annotations

import importlib
import os

import pytest


def need_vllm() -> None:
    """Skip where vLLM was never asked for; fail where it should be there and is not."""
    if os.environ.get("LENGTHWISE_NEED_ENGINE"):
        importlib.import_module("vllm")
    else:
        pytest.importorskip("vllm", reason="vLLM is not installed: run `make engine`")
