"""A gateway that is really served, and words for what tests ask of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lengthwise.gateway import GatewayConfig, create_app
from tests.gateway.engine import served

if TYPE_CHECKING:
    import aiohttp

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"


@contextmanager
def gateway(*engines: str | dict[str, Any], **options: Any) -> Iterator[str]:
    """A gateway before these engines; quick to notice and without a predictor or memory, unless told otherwise."""
    defaults = {"health_interval_s": 0.05, "hold_timeout_s": 5.0, "predictor": "none", "memory": "off"}
    config = GatewayConfig.model_validate({"engines": engines, **defaults, **options})
    with served(create_app(config)) as url:
        yield url


def body(name: str = "a", tokens: int = 3, **fields: Any) -> dict[str, Any]:
    return {"model": "stand-in", "prompt": "hello", "user": name, "max_tokens": tokens, **fields}


def hinted(name: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return body(name, tokens, nvext={"agent_hints": {"osl": tokens}}, **fields)


async def post(http: aiohttp.ClientSession, url: str, data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with http.post(url + PLAIN, json=data) as response:
        return response.status, await response.json()


async def until(what: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not await what():
        assert time.monotonic() < end, "it did not come about in time"
        await asyncio.sleep(0.005)


async def until_waiting(http: aiohttp.ClientSession, url: str, n: int) -> None:
    """Until the gateway holds n requests."""

    async def holds() -> bool:
        async with http.get(url + "/health") as response:
            return bool((await response.json())["waiting"] == n)

    await until(holds)


async def until_true(what: Callable[[], bool]) -> None:
    async def true() -> bool:
        return what()

    await until(true)


async def metric(http: aiohttp.ClientSession, url: str, line: str) -> float:
    """The value of one line of /metrics; 0 where it is not there."""
    async with http.get(url + "/metrics") as response:
        for told in (await response.text()).splitlines():
            if told.startswith(line + " "):
                return float(told.rsplit(" ", 1)[1])
    return 0.0
