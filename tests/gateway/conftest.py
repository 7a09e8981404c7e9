from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.gateway.engine import StandIn, served


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
