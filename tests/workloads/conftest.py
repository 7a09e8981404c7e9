"""Tests use the packaged samples unless they request the full data, so that they do not depend on the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lengthwise.files import sample
from lengthwise.workloads import LengthSamples

VARIABLE = "LENGTHWISE_DATA"


@pytest.fixture(autouse=True)
def _only_the_packaged_samples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "full_data" not in request.fixturenames:
        monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def full_data() -> Path:
    given = os.environ.get(VARIABLE)
    if not given:
        pytest.skip(f"{VARIABLE} is not set; the full data are needed")
    return Path(given)


@pytest.fixture(scope="session")
def packaged() -> LengthSamples:
    return LengthSamples.read(sample("castillo.parquet"))
