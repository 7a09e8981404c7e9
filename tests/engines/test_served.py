"""Which model is asked for is settled before anything is sent."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from lengthwise.engines.client import EngineClient, served_model
from lengthwise.errors import InputError
from tests.gateway.engine import free_port, served


def asked(url: str, wanted: str | None) -> str:
    async def ask() -> str:
        async with EngineClient(url) as client:
            return await served_model(client, wanted)

    return asyncio.run(ask())


def serving(*names: str) -> Starlette:
    return Starlette(routes=[Route("/v1/models", lambda _: JSONResponse({"data": [{"id": name} for name in names]}))])


def test_the_first_model_unless_one_is_named() -> None:
    with served(serving("a", "b")) as url:
        assert (asked(url, None), asked(url, "b")) == ("a", "b")


def test_nobody_and_nothing_are_told_with_what_would_help() -> None:
    with served(serving()) as url, pytest.raises(InputError, match="serves no model; name one with --model"):
        asked(url, None)
    with pytest.raises(InputError, match="cannot be reached; start one with `lengthwise engine` or `lengthwise serve`"):
        asked(f"http://127.0.0.1:{free_port()}", None)
