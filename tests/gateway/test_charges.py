"""What a tenant pays: predictions of its own until an answer ends, then what was generated, however it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
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

from lengthwise.gateway.config import TenantConfig
from lengthwise.gateway.keys import add_key
from lengthwise.gateway.tenants import Account, Claims, Lease
from tests.gateway.engine import StandIn, served
from tests.gateway.formats import named
from tests.gateway.helpers import CHAT, PLAIN, body, gateway, hinted, metric, until, until_true, until_waiting

pytestmark = pytest.mark.anyio


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(http: aiohttp.ClientSession, url: str, key: str, sent: dict[str, Any], path: str = PLAIN) -> int:
    async with http.post(url + path, json=sent, headers=bearer(key)) as response:
        await response.read()
        return response.status


async def charged(http: aiohttp.ClientSession, url: str, tenant: str) -> float:
    return await metric(http, url, f'lengthwise_tenant_tokens_total{{tenant="{tenant}"}}')


async def until_open(http: aiohttp.ClientSession, url: str, tenant: str, count: int) -> None:
    async def holds() -> bool:
        return await metric(http, url, f'lengthwise_tenant_open_requests{{tenant="{tenant}"}}') == count

    await until(holds)


@pytest.mark.parametrize("share_learning", [False, True])
async def test_long_answers_of_one_tenant_do_not_raise_the_charges_of_another(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path, share_learning: bool
) -> None:
    file = tmp_path / "keys.json"
    long, short = add_key(file, "long", {}), add_key(file, "short", {"tokens_per_minute": 3000})
    engine.lengths |= {"long": 7999, "short": 5}
    with gateway(engine_url, keys=file, share_learning=share_learning) as url:
        for _ in range(30):
            assert await ask(http, url, long, body("long", 8000)) == 200
        statuses = [await ask(http, url, short, body("short", 8000)) for _ in range(20)]
    assert statuses == [200] * 20


def test_a_new_prediction_replaces_the_charge_of_the_first() -> None:
    account = Account(TenantConfig(name="a", tokens_per_minute=1000), 0.0)
    lease = Lease(account, lambda: 0.0)
    lease.charge(900)
    lease.correct(100)
    assert dict(lease.headers)[b"x-ratelimit-remaining-tokens"] == b"900"
    lease.settle(40)
    assert dict(lease.headers)[b"x-ratelimit-remaining-tokens"] == b"960"


@pytest.mark.parametrize("path", [PLAIN, CHAT])
@pytest.mark.parametrize(
    "options", [{"include_usage": False}, {}, None, {"continuous_usage_stats": True, "include_usage": False}]
)
async def test_a_stream_is_charged_by_its_usage_whatever_its_options(
    http: aiohttp.ClientSession,
    engine: StandIn,
    engine_url: str,
    tmp_path: Path,
    path: str,
    options: dict[str, bool] | None,
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "a", {"tokens_per_minute": 1_000_000})
    prompts = {"prompt": ["x" * 40_000] * 2} if path == PLAIN else {"messages": [{"role": "user", "content": "x"}]}
    sent = body("a", 9, stream=True, stream_options=options) | prompts
    with gateway(engine_url, keys=file) as url:
        async with http.post(url + path, json=sent, headers=bearer(key)) as response:
            received = await response.read()
        assert await charged(http, url, "a") == 7 + 9, "as the engine reports"
    assert b"usage" not in received
    assert received.endswith(b"data: [DONE]\n\n")
    assert engine.bodies[0]["stream_options"] == {"include_usage": True}


async def test_a_client_that_asks_for_usage_gets_it_and_its_options_are_passed_on(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": False}
    wrong: list[Any] = ["all", 7, []]
    with gateway(engine_url) as url:
        async with http.post(url + PLAIN, json=body(stream=True, stream_options=options)) as response:
            assert b'"usage"' in await response.read()
        for invalid in wrong:
            async with http.post(url + PLAIN, json=body(stream=True, stream_options=invalid)):
                pass
    assert [sent["stream_options"] for sent in engine.bodies] == [options, *wrong]


async def test_what_was_generated_of_a_stream_that_is_cut_is_charged_with_its_prompts(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "a", {"tokens_per_minute": 1_000_000})
    engine.hang_after = 41
    sent = body("a", 5000, stream=True, prompt=["x" * 30_000] * 2)
    with gateway(engine_url, keys=file) as url:
        async with http.post(url + PLAIN, json=sent, headers=bearer(key)) as response:
            while b"t40 " not in await response.content.readline():
                pass
        await until_open(http, url, "a", 0)
        assert 20_000 + 40 <= await charged(http, url, "a") <= 20_300


async def test_an_answer_in_one_piece_that_is_cut_is_charged_by_the_time_that_it_ran(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "a", {"tokens_per_minute": 1_000_000})
    with gateway(engine_url, keys=file) as url:
        for _ in range(3):
            assert await ask(http, url, key, body("a", 2000)) == 200
        before = await charged(http, url, "a")
        engine.hang_after = 0
        cut = asyncio.create_task(ask(http, url, key, body("a", 3000)))
        await until_true(lambda: engine.hanging == 1)
        await asyncio.sleep(0.6)  # for more than 3,000 tokens at the speed so far: its limit
        cut.cancel()
        await until_open(http, url, "a", 0)
        assert await charged(http, url, "a") - before == 2 + 3000


class Background:
    """An engine that generates answers of /v1/responses in the background, until `done` is set."""

    def __init__(self) -> None:
        self.done = False
        self.asked = 0

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/responses", self._respond, methods=["POST"]),
                Route("/v1/responses/{name}", self._stored),
                Route("/health", lambda _: Response()),
            ]
        )

    def _answer(self) -> dict[str, Any]:
        usage = {"input_tokens": 100, "output_tokens": 90_000} if self.done else None
        return {"id": "resp_1", "status": "completed" if self.done else "in_progress", "usage": usage}

    async def _respond(self, request: Request) -> Response:
        if not (await request.json()).get("stream"):
            return JSONResponse({**self._answer(), "status": "queued"})

        async def events() -> AsyncIterator[bytes]:
            yield named("response.created", sequence_number=0, response=self._answer())
            while True:
                await asyncio.sleep(0.01)
                yield named("response.in_progress", sequence_number=0, response=self._answer())

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _stored(self, _: Request) -> Response:
        self.asked += 1
        return JSONResponse(self._answer())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_response_in_the_background_counts_until_it_ends_and_is_charged_what_it_used(
    http: aiohttp.ClientSession, tmp_path: Path, stream: bool
) -> None:
    file, engine = tmp_path / "keys.json", Background()
    key = add_key(file, "a", {"tokens_per_minute": 200_000, "concurrency": 1})
    sent = {"input": "hi", "background": True, "stream": stream}
    with served(engine.app()) as engine_url, gateway(engine_url, keys=file) as url:
        async with http.post(url + "/v1/responses", json=sent, headers=bearer(key)) as response:
            assert response.status == 200
            await (response.content.readline() if stream else response.read())
        assert await ask(http, url, key, {"input": "hi"}, "/v1/responses") == 429, "its concurrency is used"
        async with http.get(url + "/health") as response:
            assert (await response.json())["engines"][0]["running"] == 1, "and so is a slot of the engine"
        await until_true(lambda: engine.asked > 0)
        engine.done = True
        await until_open(http, url, "a", 0)
        assert await charged(http, url, "a") == 90_100
        async with http.get(url + "/health") as response:
            assert (await response.json())["engines"][0]["running"] == 0


async def test_an_engine_that_forgets_a_response_in_the_background_holds_no_slot(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    queued = {"id": "resp_1", "status": "queued"}
    app = Starlette(routes=[Route("/v1/responses", lambda _: JSONResponse(queued), methods=["POST"])])
    file = tmp_path / "keys.json"
    key = add_key(file, "a", {"concurrency": 1})
    with served(app) as engine_url, gateway(engine_url, keys=file) as url:
        assert await ask(http, url, key, {"input": "hi", "background": True}, "/v1/responses") == 200
        await until_open(http, url, "a", 0)


CLAIMS = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 4000), st.booleans()), max_size=80)


@given(CLAIMS)
def test_claims_that_hold_are_never_lost_and_wrong_ones_always_are(claims: list[tuple[int, int, bool]]) -> None:
    mixed, right = Claims(), Claims()
    for claimed, tokens, cut in claims:
        mixed.observe(claimed, tokens, censored=cut)
        right.observe(tokens, min(tokens, claimed), censored=cut)
    assert right.count == (sum(not cut for _, _, cut in claims) >= 4), "four that held, and none is lost again"
    for _ in range(40):
        mixed.observe(1, 400, censored=False)
    assert not mixed.count
    for _ in range(60):
        mixed.observe(400, 400, censored=False)
    assert mixed.count, "claims that hold again count again"


async def test_a_tenant_with_wrong_claims_does_not_run_before_others(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    liar = add_key(file, "liar", {"may_declare_length": True})
    other = add_key(file, "other", {})
    wrong = body("liar", 400, nvext={"agent_hints": {"osl": 1}})
    with gateway(engine_url, keys=file, in_flight=1, policy="fair(sjf):quantum=1000") as url:
        for _ in range(4):  # so that its claims count, and cease to with the first wrong one
            assert await ask(http, url, liar, hinted("true", 40)) == 200
        engine.gate.clear()
        calls = [asyncio.create_task(ask(http, url, liar, wrong))]
        await until_true(lambda: engine.running == 1)
        calls += [asyncio.create_task(ask(http, url, liar, wrong)) for _ in range(30)]
        await until_waiting(http, url, 30)
        calls += [asyncio.create_task(ask(http, url, other, body("other", 400))) for _ in range(3)]
        await until_waiting(http, url, 33)
        engine.gate.set()
        assert await asyncio.gather(*calls) == [200] * 34
    names = [name for name in engine.names() if name != "true"]
    last = len(names) - names[::-1].index("other")
    assert last <= 12, f"30 requests that claim 1 token and take 400 ran first: {names}"
    assert '"osl"' not in json.dumps(engine.bodies[-1]), "a claim that does not count is not passed on"


async def test_right_claims_count_after_many_requests(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "a", {"may_declare_length": True})
    with gateway(engine_url, keys=file) as url:
        for _ in range(20):
            assert await ask(http, url, key, hinted("a", 40)) == 200
        assert await metric(http, url, 'lengthwise_predictions_total{source="hint"}') == 16, (
            "the first four are compared"
        )


async def test_a_first_burst_of_false_claims_gains_nothing(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    liar = add_key(file, "liar", {"may_declare_length": True})
    other = add_key(file, "other", {})
    wrong = body("liar", 400, nvext={"agent_hints": {"osl": 1}})
    with gateway(engine_url, keys=file, in_flight=1, policy="sjf", predictor="none") as url:
        engine.gate.clear()
        calls = [asyncio.create_task(ask(http, url, other, body("other", 400)))]
        await until_true(lambda: engine.running == 1)
        calls += [asyncio.create_task(ask(http, url, other, body("other", 400))) for _ in range(10)]
        await until_waiting(http, url, 10)
        calls += [asyncio.create_task(ask(http, url, liar, wrong)) for _ in range(10)]
        await until_waiting(http, url, 20)
        engine.gate.set()
        assert await asyncio.gather(*calls) == [200] * 21
    names = engine.names()
    assert names.index("liar") >= 11, f"claims of 1 token that nobody has seen hold ran first: {names}"
