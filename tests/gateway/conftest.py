from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from lengthwise.predictors.service import PredictionService
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import Clock
from tests.predictors.guesses import Guess

PATIENCE_S = 60.0
"""Of the prediction service with `guess`, by its `clock`."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> StandIn:
    return StandIn()


@pytest.fixture
def engine_url(engine: StandIn) -> Iterator[str]:
    with served(engine.app()) as url:
        yield url


@pytest.fixture
async def http(anyio_backend: str) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
def clock() -> Clock:
    """The clock of the prediction service."""
    return Clock()


@pytest.fixture
def guess(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Guess]:
    """Replace `fast` by a predictor that reads the number at the end of a prompt and can hang."""
    made = Guess()

    def service(name: str, *, learning: bool = True, **_: Any) -> PredictionService:
        load = None if name == "none" else lambda: made
        return PredictionService(load, patience_s=PATIENCE_S, clock=clock, learning=learning)

    monkeypatch.setattr("lengthwise.gateway.app.prediction_service", service)
    yield made
    made.gate.set()
