"""A pytest plug-in that runs vLLM's own scheduler tests with our class in place of theirs.

Loaded with `-p tests.vllm.upstream_plugin` in vLLM's test folder; see tests/vllm/test_upstream.py.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.v1.core.sched import async_scheduler, scheduler

from lengthwise.vllm.scheduler import LengthwiseScheduler, LengthwiseSyncScheduler

# Bound to vLLM's own classes before they are swapped: it subclasses them and has tests of its own. Not in 0.30.
with contextlib.suppress(ImportError):
    importlib.import_module("vllm.v1.core.sched.diffusion_scheduler")

if os.environ.get("LENGTHWISE_SWAP") == "1":
    async_scheduler.AsyncScheduler = LengthwiseScheduler
    scheduler.Scheduler = LengthwiseSyncScheduler


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """As in vLLM's own conftest: its log records, which do not propagate by default."""
    logger = logging.getLogger("vllm")
    logger.propagate, before = True, logger.propagate
    yield caplog
    logger.propagate = before


def pytest_configure(config: Any) -> None:
    """Declare the marks of vLLM's own configuration."""
    for mark in ("cpu_test", "skip_global_cleanup"):
        config.addinivalue_line("markers", mark)
