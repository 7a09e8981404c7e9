"""A stored answer of /v1/responses is its tenant's at every replica; requests for it reach the engine that has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lengthwise.client.client import EngineClient
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.keys import add_key
from lengthwise.gateway.stored_responses import ResponseIds, ResponseOwners
from tests.gateway.engine import StandIn, served
from tests.gateway.formats import named
from tests.gateway.helpers import ADMIN, gateway, until_true, until_waiting

pytestmark = pytest.mark.anyio


@pytest.fixture
def fleet() -> Iterator[tuple[list[StandIn], list[str]]]:
    engines = [StandIn(), StandIn(), StandIn()]
    with ExitStack() as stack:
        yield engines, [stack.enter_context(served(engine.app())) for engine in engines]


async def respond(http: aiohttp.ClientSession, url: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with http.post(url + "/v1/responses", json={"model": "stand-in", "input": "hi", **fields}) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_stays_on_its_engine(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]], stream: bool
) -> None:
    engines, urls = fleet
    with gateway(*urls, router="round_robin") as url:
        first = {"model": "stand-in", "input": "hi", "stream": stream}
        async with http.post(url + "/v1/responses", json=first) as response:
            await response.read()
        for _ in range(5):
            assert (await respond(http, url, previous_response_id="resp_1"))[0] == 200
    assert sorted(len(engine.bodies) for engine in engines) == [0, 0, 6]
    assert not any(engine.others for engine in engines), "no engine is asked: the engine of the answer is known"


async def test_the_turns_of_a_stored_conversation_are_one_session(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    name: str | None = None
    with gateway({"url": urls[0], "kind": "lengthwise"}) as url:
        for _ in range(4):
            _, answer = await respond(http, url, **({} if name is None else {"previous_response_id": name}))
            name = answer["id"]
        await respond(http, url, previous_response_id=name, metadata={"session_id": "own"})
    names = [(body.get("vllm_xargs") or {}).get("session") for body in engines[0].bodies]
    assert names == [None, "resp_1", "resp_1", "resp_1", "own"]


def test_an_answer_of_which_nothing_is_known_begins_a_session() -> None:
    owners = ResponseOwners(most=1)
    engine = GatewayEngine(EngineClient("http://127.0.0.1:1"), 0, 1)
    owners.add("resp_1", engine)
    owners.add("resp_2", engine, owners.session("resp_1"))
    assert owners.session("resp_2") == "resp_1"
    assert (owners.session("resp_1"), owners.session("x" * 5000)) == ("resp_1", "x" * 256)


async def test_the_engine_of_an_unknown_answer_is_searched_once(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[1].stored.add("resp_7")
    with gateway(*urls, router="round_robin") as url:
        for _ in range(3):
            await respond(http, url, previous_response_id="resp_7")
    assert [len(engine.bodies) for engine in engines] == [0, 3, 0]
    assert [len(engine.others) for engine in engines] == [1, 1, 1]


@pytest.mark.parametrize("name", ["resp_unknown", "../../sleep", "", "a/b?c", "é", "x" * 5000])
async def test_a_request_with_an_unknown_id_is_passed_to_an_engine(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]], name: str
) -> None:
    engines, urls = fleet
    with gateway(*urls) as url:
        assert (await respond(http, url, previous_response_id=name))[0] == 200
    assert {path for engine in engines for _, path, _, _ in engine.others} <= {"/v1/responses/resp_unknown"}


async def test_a_request_for_a_busy_engine_does_not_delay_those_for_others(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[0].stored.add("resp_7")
    engines[0].gate.clear()
    with gateway(*urls, in_flight=1) as url:
        pinned = [asyncio.create_task(respond(http, url, previous_response_id="resp_7")) for _ in range(2)]
        await until_true(lambda: len(engines[0].bodies) == 1)
        await until_waiting(http, url, 1)
        assert (await respond(http, url))[0] == 200
        engines[0].gate.set()
        assert [status for status, _ in await asyncio.gather(*pinned)] == [200, 200]
    assert [body.get("previous_response_id") for body in engines[0].bodies] == ["resp_7", "resp_7"]


async def test_a_waiting_request_whose_engine_leaves_runs_on_another(
    http: aiohttp.ClientSession, fleet: tuple[list[StandIn], list[str]]
) -> None:
    engines, urls = fleet
    engines[0].stored.add("resp_7")
    engines[0].gate.clear()
    with gateway(*urls, in_flight=1) as url:
        pinned = [asyncio.create_task(respond(http, url, previous_response_id="resp_7")) for _ in range(2)]
        await until_true(lambda: len(engines[0].bodies) == 1)
        await until_waiting(http, url, 1)
        async with http.delete(url + "/lengthwise/v1/engines/engine-0", headers=ADMIN) as response:
            assert response.status == 202
        await until_true(lambda: sum(len(engine.bodies) for engine in engines) == 2)
        engines[0].gate.set()
        assert [status for status, _ in await asyncio.gather(*pinned)] == [200, 200]
    assert len(engines[0].bodies) == 1


def test_the_least_recently_used_answers_are_forgotten() -> None:
    owners, engine = ResponseOwners(most=2), GatewayEngine(EngineClient("http://127.0.0.1:1"), 0, 1)
    for name in ("a", "b"):
        owners.add(name, engine)
    assert owners.find("a") is engine
    owners.add("c", engine)
    assert [owners.find(name) is engine for name in "abc"] == [True, False, True]


IDS = st.text("abz_-019", min_size=1, max_size=40).filter(lambda text: text.strip("_-"))
TENANTS = st.text("ab.-_1", min_size=1, max_size=8)


@given(IDS, TENANTS, TENANTS, IDS)
def test_a_tagged_id_names_its_answer_to_its_own_tenant_only(name: str, tenant: str, other: str, forged: str) -> None:
    here, there, elsewhere = ResponseIds("s" * 32), ResponseIds("s" * 32), ResponseIds()
    seen = here.tagged(name, tenant)
    assert there.engine_id(seen, tenant) == name
    strangers = [(there, seen, other)] if other != tenant else []
    for ids, given_id, who in [*strangers, (elsewhere, seen, tenant), (there, name, tenant), (there, forged, tenant)]:
        with pytest.raises(ApiError, match="is not known here"):
            ids.engine_id(given_id, who)


class Storing:
    """An engine that stores its answers, lets a client choose their ids as vLLM does, and echoes metadata."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/responses", self._respond, methods=["POST"]),
                Route("/v1/responses/{name}", self._stored, methods=["GET", "DELETE"]),
                Route("/health", lambda _: Response()),
            ]
        )

    async def _respond(self, request: Request) -> Response:
        sent = await request.json()
        name, before = sent.get("request_id") or f"resp_{len(self.texts)}", sent.get("previous_response_id")
        if before is not None and before not in self.texts:
            return JSONResponse({"error": {"message": "not found"}}, 404)
        self.texts[name] = f"{self.texts.get(before, '')} {sent['input']}".strip()
        found = {"metadata": sent.get("metadata"), **self._response(name), "previous_response_id": before}
        if not sent.get("stream"):
            return JSONResponse(found)
        events = [named(f"response.{kind}", response=found) for kind in ("created", "completed")]
        return StreamingResponse(iter(events), media_type="text/event-stream")

    async def _stored(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.texts:
            return JSONResponse({"error": {"message": "not found"}}, 404)
        return JSONResponse(self._response(name))

    def _response(self, name: str) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {"id": name, "status": "completed", "output_text": self.texts[name], "usage": usage}


@contextmanager
def replicas(tmp_path: Path, *secrets: str | None) -> Iterator[tuple[Storing, list[str], list[dict[str, str]]]]:
    """Gateways with these secrets and one keys file, in front of one engine; and the headers of two tenants."""
    file, engine = tmp_path / "keys.json", Storing()
    keys = [{"authorization": f"Bearer {add_key(file, tenant, {})}"} for tenant in ("a", "b")]
    with ExitStack() as stack:
        engine_url = stack.enter_context(served(engine.app()))
        yield (
            engine,
            [stack.enter_context(gateway(engine_url, keys=file, shared_secret=secret)) for secret in secrets],
            keys,
        )


async def store(
    http: aiohttp.ClientSession, url: str, headers: dict[str, str], *, stream: bool = False, **fields: Any
) -> tuple[int, dict[str, Any]]:
    """Ask for an answer; return it, or the error."""
    sent = {"input": "secret", "stream": stream, **fields}
    async with http.post(url + "/v1/responses", json=sent, headers=headers) as response:
        if not stream or response.status != 200:
            return response.status, await response.json()
        events = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line.startswith("data: ")]
        assert {event["response"]["id"] for event in events} == {events[0]["response"]["id"]}
        return response.status, events[0]["response"]


async def statuses(
    http: aiohttp.ClientSession, url: str, headers: dict[str, str], name: str
) -> tuple[int, int, int, dict[str, Any]]:
    """Read, delete and continue an answer."""
    found = []
    for method in ("GET", "DELETE"):
        async with http.request(method, f"{url}/v1/responses/{name}", headers=headers) as response:
            found.append(response.status)
    status, answer = await store(http, url, headers, input="and?", previous_response_id=name)
    return found[0], found[1], status, answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_stored_answer_is_its_tenants_at_every_replica_with_the_secret(
    http: aiohttp.ClientSession, tmp_path: Path, stream: bool
) -> None:
    with replicas(tmp_path, "s" * 32, "s" * 32) as (_, urls, (a, b)):
        status, first = await store(http, urls[0], a, stream=stream)
        assert status == 200
        for url in urls:
            *read, continued = await statuses(http, url, a, first["id"])
            assert read == [200, 200, 200]
            assert (continued["output_text"], continued["previous_response_id"]) == ("secret and?", first["id"])
            assert (await statuses(http, url, b, first["id"]))[:3] == (404, 404, 404)
            assert (await statuses(http, url, b, "resp_0"))[:3] == (404, 404, 404), "the engine's own id"
        async with http.get(f"{urls[1]}/v1/responses/{first['id']}", headers=a) as response:
            assert (await response.json())["id"] == first["id"]


async def test_without_a_secret_a_replica_refuses_what_another_stored(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    with replicas(tmp_path, None, None) as (_, urls, (a, _)):
        _, first = await store(http, urls[0], a)
        assert (await statuses(http, urls[1], a, first["id"]))[:3] == (404, 404, 404)
        assert (await statuses(http, urls[0], a, first["id"]))[:3] == (200, 200, 200)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_tenant_cannot_have_another_tenants_id_tagged_for_itself(
    http: aiohttp.ClientSession, tmp_path: Path, stream: bool
) -> None:
    with replicas(tmp_path, "s" * 32) as (engine, (url,), (a, b)):
        await store(http, url, a)
        _, echoed = await store(http, url, b, stream=stream, metadata={"id": "resp_0", "previous_response_id": "x"})
        _, chosen = await store(http, url, b, stream=stream, request_id="resp_0", input="mine")
        assert engine.texts["resp_0"] == "secret"
        for answer in (echoed, chosen):
            assert not answer["id"].startswith("resp_0_")
        assert echoed["metadata"] == {"id": "resp_0", "previous_response_id": "x"}


def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="fewer than 32 characters") as refused:
        GatewayConfig.model_validate({"engines": ["http://x"], "shared_secret": "hunter2"})
    assert "hunter2" not in str(refused.value.errors()[0]["ctx"])  # type: ignore[attr-defined]
