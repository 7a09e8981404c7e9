"""Credentials in an engine's URL reach that engine and nothing else; its address is in no answer."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from lengthwise.client.client import engine_url
from lengthwise.errors import InputError
from lengthwise.gateway import check_engines
from tests.gateway.engine import RawEngine, StandIn, free_port
from tests.gateway.helpers import PLAIN, body, gateway, post, until

pytestmark = pytest.mark.anyio

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\ndata: {}\n\n"
REDIRECT = b"HTTP/1.1 307 Temporary Redirect\r\nlocation: %s/v1/completions/\r\ncontent-length: 0\r\n\r\n"


def with_password(url: str) -> str:
    return url.replace("http://", "http://user:p%40ss-w0rd@")


@asynccontextmanager
async def answers(http: aiohttp.ClientSession, *engines: str) -> AsyncIterator[list[str]]:
    """Yield every text that a gateway before `engines` answers a few requests with."""
    with gateway(*map(with_password, engines), hold_timeout_s=0.1, silence_timeout_s=0.2) as url:
        texts: list[str] = []
        for path, sent in [(PLAIN, body()), (PLAIN, body(stream=True)), ("/v1/models", None), ("/none", None)]:
            async with http.request(
                "GET" if sent is None else "POST", url + path, json=sent, allow_redirects=False
            ) as response:
                texts.append(f"{response.headers} {await response.text()}")
        for path in ("/health", "/metrics"):
            async with http.get(url + path) as response:
                texts.append(await response.text())
        yield texts


@pytest.mark.parametrize("fault", ["none", "unreachable", "broken", "cut", "redirect", "silent"])
async def test_neither_credentials_nor_the_address_are_in_an_answer(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    engine.mode = "hang" if fault == "silent" else "ok"
    with caplog.at_level(logging.DEBUG), RawEngine(EVENTS if fault == "cut" else b"") as raw:
        if fault == "redirect":
            raw.reply = REDIRECT % raw.url.encode()
        behind = f"http://127.0.0.1:{free_port()}" if fault == "unreachable" else raw.url
        behind = engine_url if fault in ("none", "silent") else behind
        async with answers(http, behind) as texts:
            pass
    port = behind[behind.rindex(":") :]
    assert not any(word in text for text in texts for word in ("user", "ss-w0rd", port)), "an address or credential"
    assert any('engine="engine-0"' in text for text in texts)
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("lengthwise"))
    assert "user" not in logged
    assert "ss-w0rd" not in logged
    assert fault != "unreachable" or f"engine-0 (http://127.0.0.1{port}) is down" in logged


async def test_credentials_of_the_url_replace_the_clients_authorization(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(with_password(engine_url)) as url:
        for headers in ({}, {"Authorization": "Bearer of-the-client"}):
            async with http.post(url + PLAIN, json=body(), headers=headers) as response:
                assert response.status == 200
    basic = "Basic " + b64encode(b"user:p@ss-w0rd").decode()
    assert [sent["authorization"] for sent in engine.headers] == [basic, basic]
    assert engine.health_headers[0]["authorization"] == basic


async def test_without_credentials_the_clients_authorization_passes(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(), headers={"Authorization": "Bearer k"}) as response:
            assert response.status == 200

        async def checked() -> bool:
            return bool(engine.health_headers)

        await until(checked)
        assert (await post(http, url, body()))[0] == 200
    assert engine.headers[0]["authorization"] == "Bearer k"
    assert not any("authorization" in sent for sent in [*engine.headers[1:], *engine.health_headers])


def test_an_engine_that_does_not_answer_at_the_start_is_named_without_credentials() -> None:
    with pytest.raises(InputError) as error:
        check_engines([with_password(f"http://127.0.0.1:{free_port()}")])
    assert "127.0.0.1" in str(error.value)
    assert "w0rd" not in str(error.value)


@pytest.mark.parametrize("url", ["http://user:pa/ss-w0rd@host", "ftp://user:ss-w0rd@host", "user:ss-w0rd@host:80"])
def test_an_invalid_url_is_reported_without_credentials(url: str) -> None:
    with pytest.raises(InputError) as error:
        engine_url(url)
    assert "w0rd" not in str(error.value)
