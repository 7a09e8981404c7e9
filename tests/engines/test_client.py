"""The client of one engine tells apart what its callers must treat differently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lengthwise.engines.client import (
    EngineBrokenError,
    EngineClient,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
    engine_url,
)
from lengthwise.errors import InputError
from tests.gateway.engine import RawEngine, StandIn, free_port, served


def with_client(url: str, use: Callable[[EngineClient], Awaitable[Any]], **options: Any) -> Any:
    async def call() -> Any:
        async with EngineClient(url, **options) as client:
            return await use(client)

    return asyncio.run(call())


@pytest.mark.parametrize("text", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", " http://h:8000/v1/ "])
def test_the_url_of_an_engine_is_taken_with_or_without_v1(text: str) -> None:
    assert engine_url(text) == "http://h:8000"


@pytest.mark.parametrize("text", ["", "h:8000", "ftp://h", "http://", "http://h:port", "http://h?x=1"])
def test_what_is_no_url_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"give one like http://127\.0\.0\.1:8000"):
        engine_url(text)


def test_an_engine_that_is_not_there_has_seen_nothing() -> None:
    with pytest.raises(EngineUnreachableError):
        with_client(f"http://127.0.0.1:{free_port()}", lambda client: client.post("/v1/completions", b"{}", {}))


def test_an_engine_that_hangs_up_is_broken() -> None:
    with RawEngine(b"") as engine, pytest.raises(EngineBrokenError):
        with_client(engine.url, lambda client: client.post("/v1/completions", b"{}", {}))


def test_a_silent_engine_times_out() -> None:
    silent = StandIn(mode="hang")
    with served(silent.app()) as url, pytest.raises(EngineTimeoutError):
        with_client(url, lambda client: client.post("/v1/completions", b"{}", {}), silence_timeout_s=0.1)


def test_a_server_without_a_health_path_counts_as_there() -> None:
    with RawEngine(b"") as engine:
        with_client(engine.url, lambda client: client.check())
    with served(lambda: None) as url, pytest.raises(EngineBrokenError, match="answers 500 to /health"):
        with_client(url, lambda client: client.check())


def test_models_that_are_refused_or_no_list_are_told_apart() -> None:
    reply = b"HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\n{}"
    with RawEngine(reply) as engine, pytest.raises(EngineRefusedError, match="answers 401 to /v1/models"):
        with_client(engine.url, lambda client: client.models())
    with RawEngine(reply.replace(b"401", b"200")) as engine, pytest.raises(EngineBrokenError, match="without a list"):
        with_client(engine.url, lambda client: client.models())
