"""The client of one engine: its URL, its errors by kind, and the model that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from lengthwise.client.client import (
    EngineBrokenError,
    EngineClient,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnreachableError,
    engine_url,
    served_model,
)
from lengthwise.client.http1 import HttpConnection, Response
from lengthwise.errors import InputError
from tests.gateway.engine import RawEngine, StandIn, free_port, served


def with_client(url: str, use: Callable[[EngineClient], Awaitable[Any]], **options: Any) -> Any:
    async def call() -> Any:
        async with EngineClient(url, **options) as client:
            return await use(client)

    return asyncio.run(call())


@pytest.mark.parametrize("text", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", " http://h:8000/v1/ "])
def test_an_engines_url_may_end_in_v1(text: str) -> None:
    assert engine_url(text) == "http://h:8000"


@pytest.mark.parametrize(
    "text",
    ["", "h:8000", "ftp://h", "http://", "http://h:port", "http://h?x=1", "http://a..b", f"http://{'a' * 5000}:8000"],
    ids=lambda text: text[:20],
)
def test_an_invalid_url_is_refused_with_a_short_example(text: str) -> None:
    with pytest.raises(InputError, match=r"give one like http://127\.0\.0\.1:8000") as refused:
        engine_url(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("text", ["http://[::1]:8000", "http://b\u00fccher.example", "http://engine_0.internal."])
def test_any_host_that_can_be_connected_to_is_taken(text: str) -> None:
    assert engine_url(text) == text


def test_a_refused_connection_is_unreachable() -> None:
    with pytest.raises(EngineUnreachableError):
        with_client(f"http://127.0.0.1:{free_port()}", lambda client: client.post("/v1/completions", b"{}", {}))


def test_a_closed_connection_is_broken() -> None:
    with RawEngine(b"") as engine, pytest.raises(EngineBrokenError):
        with_client(engine.url, lambda client: client.post("/v1/completions", b"{}", {}))


def test_a_silent_engine_times_out() -> None:
    silent = StandIn(mode="hang")
    with served(silent.app()) as url, pytest.raises(EngineTimeoutError):
        with_client(url, lambda client: client.post("/v1/completions", b"{}", {}), silence_timeout_s=0.1)


def test_a_server_without_a_health_path_counts_as_up() -> None:
    with RawEngine(b"") as engine:
        with_client(engine.url, lambda client: client.check())
    with served(lambda: None) as url, pytest.raises(EngineBrokenError, match="answers 500 to /health"):
        with_client(url, lambda client: client.check())


def test_refused_and_malformed_model_lists_are_different_errors() -> None:
    reply = b"HTTP/1.1 401 No\r\ncontent-length: 2\r\n\r\n{}"
    with RawEngine(reply) as engine, pytest.raises(EngineRefusedError, match="answers 401 to /v1/models"):
        with_client(engine.url, lambda client: client.models())
    with RawEngine(reply.replace(b"401", b"200")) as engine, pytest.raises(EngineBrokenError, match="without a list"):
        with_client(engine.url, lambda client: client.models())


@pytest.mark.parametrize(
    "reply", [b"[" * 100_000, b'{"data": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"], ids=["open", "closed"]
)
def test_a_model_list_of_many_brackets_is_one_failed_answer(reply: bytes) -> None:
    with RawEngine(b"") as engine:
        engine.models = reply
        with pytest.raises(EngineBrokenError, match="without a list"):
            with_client(engine.url, lambda client: client.models())


def models_app(*names: str) -> Starlette:
    return Starlette(routes=[Route("/v1/models", lambda _: JSONResponse({"data": [{"id": name} for name in names]}))])


def test_what_is_no_model_in_a_list_of_models_is_left_out() -> None:
    with RawEngine(b"") as engine:
        engine.models = b'{"data": ["width", null, 5, ["id"], {"name": "x"}, {"id": ["m"]}, {"id": null}, {"id": "m"}]}'
        assert with_client(engine.url, lambda client: client.models()) == [{"id": "m"}]


def test_the_served_model_is_the_first_unless_one_is_named() -> None:
    with served(models_app("a", "b")) as url:
        assert with_client(url, lambda client: served_model(client, None)) == "a"
        assert with_client(url, lambda client: served_model(client, "b")) == "b"


def test_a_missing_model_or_engine_is_reported_with_a_remedy() -> None:
    with (
        served(models_app()) as url,
        pytest.raises(InputError, match="serves no model; name one with --model"),
    ):
        with_client(url, lambda client: served_model(client, None))
    with pytest.raises(InputError, match="cannot be reached; start one with `lengthwise engine` or `lengthwise serve`"):
        with_client(f"http://127.0.0.1:{free_port()}", lambda client: served_model(client, None))


def test_a_caller_that_is_cancelled_as_the_head_arrives_leaves_no_open_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: EngineClient) -> int:
        call = asyncio.ensure_future(client.post("/v1/completions", b"{}"))
        wake = Response.wake

        def wake_and_cancel(answer: Response, **options: Any) -> None:
            wake(answer, **options)
            if answer.status:
                call.cancel()

        monkeypatch.setattr(Response, "wake", wake_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await call
        return client.open_answers

    with served(StandIn().app()) as url:
        assert with_client(url, use) == 0


def test_a_connection_that_ends_as_it_is_made_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HttpConnection.connection_made

    def made_and_lost(connection: HttpConnection, transport: asyncio.BaseTransport) -> None:
        made(connection, transport)
        connection.connection_lost(None)

    monkeypatch.setattr(HttpConnection, "connection_made", made_and_lost)
    with served(StandIn().app()) as url, pytest.raises(EngineBrokenError):
        with_client(url, lambda client: client.fetch("/v1/models"))
