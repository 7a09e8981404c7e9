"""A gateway served over HTTP, and the requests that tests send to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import uvicorn

from lengthwise.gateway import GatewayConfig, create_app
from lengthwise.gateway.server import LimitedServer, limits_of, tls_context
from tests.gateway.engine import served, serving

CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
TOKEN = "a" * 32
ADMIN = {"authorization": f"Bearer {TOKEN}"}
"""Headers of a change by the admin API."""


@contextmanager
def gateway(*engines: str | dict[str, Any], **options: Any) -> Iterator[str]:
    """Serve a gateway in front of these engines: short intervals, no predictor, and nothing kept, unless given."""
    with served(create_app(_config(engines, options))) as url:
        yield url


@contextmanager
def limited_gateway(*engines: str, **options: Any) -> Iterator[str]:
    """Serve a gateway as `gateway` does, by the server of `lengthwise serve`, with its limits of connections."""
    config = _config(engines, options)
    app = create_app(config)
    served_by = uvicorn.Config(app, ws="none", log_level="critical", access_log=False, timeout_graceful_shutdown=1)
    served_by.load()
    served_by.ssl = tls_context(config)
    with serving(LimitedServer(served_by, app, 0.0, limits_of(config))) as port:
        yield f"{'http' if served_by.ssl is None else 'https'}://127.0.0.1:{port}"


def _config(engines: tuple[Any, ...], options: dict[str, Any]) -> GatewayConfig:
    defaults = {
        "health_interval_s": 0.05,
        "hold_timeout_s": 5.0,
        "predictor": "none",
        "state": "off",
        "admin_token": TOKEN,
    }
    return GatewayConfig.model_validate({"engines": engines, **defaults, **options})


def body(name: str = "a", tokens: int = 3, **fields: Any) -> dict[str, Any]:
    return {"model": "stand-in", "prompt": "hello", "user": name, "max_tokens": tokens, **fields}


def hinted(name: str, tokens: int, **fields: Any) -> dict[str, Any]:
    return body(name, tokens, nvext={"agent_hints": {"osl": tokens}}, **fields)


async def post(http: aiohttp.ClientSession, url: str, data: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with http.post(url + PLAIN, json=data) as response:
        return response.status, await response.json()


async def until(done: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    end = time.monotonic() + timeout_s
    while not await done():
        assert time.monotonic() < end, "the condition did not become true in time"
        await asyncio.sleep(0.005)


class Clock:
    """A clock that a test can put forward."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Let seconds pass at once."""
        self._ahead_s += seconds


async def until_waiting(http: aiohttp.ClientSession, url: str, n: int) -> None:
    """Wait until n requests wait in the gateway."""

    async def holds() -> bool:
        async with http.get(url + "/health") as response:
            return bool((await response.json())["waiting"] == n)

    await until(holds)


async def until_true(done: Callable[[], bool]) -> None:
    async def true() -> bool:
        return done()

    await until(true)


async def metric(http: aiohttp.ClientSession, url: str, line: str) -> float:
    """Return the value of one line of /metrics; 0 if it is missing."""
    async with http.get(url + "/metrics") as response:
        for found in (await response.text()).splitlines():
            if found.startswith(line + " "):
                return float(found.rsplit(" ", 1)[1])
    return 0.0
