"""Settings of the whole test suite."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# One BLAS thread: with several, small matrix products spend most of their time synchronising.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell that starts the tests in the background makes them, and every process they start, ignore Ctrl-C;
# tests of Ctrl-C would then wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on the speed of the machine.
settings.register_profile(
    "lengthwise", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("lengthwise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of real engines in one process: two engines at a time only slow each other down."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.xdist_group("engine"))
