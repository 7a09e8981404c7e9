from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import aiohttp
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lengthwise.gateway.config import TenantConfig
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.keys import add_key, remove_keys
from lengthwise.gateway.tenants import Account, Lease, TokenBucket
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, CHAT, PLAIN, body, gateway, metric, until, until_true, until_waiting

pytestmark = pytest.mark.anyio

WAITS = st.floats(0, 120)
LIMITS = st.integers(1, 1000)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(limit=LIMITS, asked=st.lists(st.tuples(WAITS, st.integers(1, 1000)), max_size=60))
def test_a_token_bucket_bounds_every_window_by_burst_and_rate(limit: int, asked: list[tuple[float, int]]) -> None:
    bucket, now, taken = TokenBucket(limit, 0.0), 0.0, []
    for wait_s, amount in asked:
        now += wait_s
        amount = min(amount, limit)
        if not bucket.wait_s(amount, now):
            bucket.take(amount, now)
            taken.append((now, amount))
        assert -1e-6 <= bucket.left(now) <= limit
    for first, (start, _) in enumerate(taken):
        for last in range(first, len(taken)):
            window_s = taken[last][0] - start
            assert sum(amount for _, amount in taken[first : last + 1]) <= limit * (1 + window_s / 60) + 1e-6


@given(limit=LIMITS, amount=st.integers(1, 2000), before=st.integers(0, 1000))
def test_a_refused_amount_is_admitted_after_the_stated_wait_and_not_before(
    limit: int, amount: int, before: int
) -> None:
    bucket = TokenBucket(limit, 0.0)
    bucket.take(min(before, limit), 0.0)
    wait_s = bucket.wait_s(amount, 0.0)
    if wait_s:
        assert bucket.wait_s(amount, 0.99 * wait_s) > 0
    assert bucket.wait_s(amount, wait_s + 1e-6) == pytest.approx(0, abs=1e-6)


@given(limit=LIMITS, answers=st.lists(st.tuples(WAITS, st.integers(0, 500), st.integers(0, 500)), max_size=40))
def test_only_true_tokens_count_after_settlement(limit: int, answers: list[tuple[float, int, int]]) -> None:
    clock = Clock()
    account = Account(TenantConfig(name="a", tokens_per_minute=limit), 0.0)
    used = 0
    for wait_s, predicted, true in answers:
        clock.now += wait_s
        lease = Lease(account, clock)
        try:
            lease.charge(predicted)
        except ApiError:
            lease.settle(0)
        else:
            lease.settle(true)
            used += true
        lease.release()
        remaining = dict(lease.headers)[b"x-ratelimit-remaining-tokens"]
        assert 0 <= int(remaining) <= limit
    assert (account.tokens, account.open_requests) == (used, 0)
    assert used <= limit * (1 + clock.now / 60) + max([true for _, _, true in answers], default=0) + 1e-6


@given(limit=LIMITS, other=LIMITS, taken=st.integers(0, 1000))
def test_a_new_limit_keeps_the_amount_taken(limit: int, other: int, taken: int) -> None:
    bucket = TokenBucket(limit, 0.0)
    bucket.take(min(taken, limit), 0.0)
    bucket.resize(other, 0.0)
    assert bucket.left(0.0) == other - min(taken, limit)


def test_concurrency_is_released_when_a_request_ends() -> None:
    account = Account(TenantConfig(name="a", concurrency=2), 0.0)
    first, _ = Lease(account, Clock()), Lease(account, Clock())
    with pytest.raises(ApiError, match="2 requests at once"):
        Lease(account, Clock())
    first.release()
    Lease(account, Clock())


@contextmanager
def keyed(tmp_path: Path, *engines: str | dict[str, Any], **options: Any) -> Iterator[tuple[str, Callable[..., str]]]:
    """A gateway with keys; yields its URL, and a function that adds a key to its file."""
    file = tmp_path / "keys.json"
    add_key(file, "first", {})
    with gateway(*engines, keys=file, **options) as url:
        yield url, lambda tenant, **settings: add_key(file, tenant, settings)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(
    http: aiohttp.ClientSession, url: str, key: str | None, **fields: Any
) -> tuple[int, dict[str, Any], dict[str, str]]:
    headers = {} if key is None else bearer(key)
    async with http.post(url + PLAIN, json=body(**fields), headers=headers) as response:
        return response.status, await response.json(), {k.lower(): v for k, v in response.headers.items()}


async def until_known(http: aiohttp.ClientSession, url: str, key: str, status: int = 200) -> None:
    async def known() -> bool:
        async with http.get(url + "/v1/models", headers=bearer(key)) as response:
            return response.status == status

    await until(known)


async def test_a_request_needs_a_key_that_is_in_the_file(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    with keyed(tmp_path, engine_url) as (url, add):
        status, answer, headers = await ask(http, url, None)
        assert (status, answer["error"]["type"]) == (401, "invalid_request_error")
        assert "You didn't provide an API key" in answer["error"]["message"]
        assert headers["www-authenticate"] == "Bearer"
        status, answer, _ = await ask(http, url, "lw-wrong")
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert "lw-wrong" not in str(answer)
        async with http.get(url + "/v1/models") as response:
            assert response.status == 401
        for path in ("/health", "/metrics"):
            async with http.get(url + path) as response:
                assert response.status == 200
        assert engine.bodies == []
        assert await metric(http, url, "lengthwise_unauthorized_total") == 3
        key = add("team-a")
        await until_known(http, url, key)
        assert (await ask(http, url, key))[0] == 200
        async with http.post(url + CHAT, json={"messages": []}, headers={"x-api-key": key}) as response:
            assert response.status == 200


async def test_the_openai_client_works_with_a_key_and_raises_its_own_errors(engine_url: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"requests_per_minute": 1})
    with gateway(engine_url, keys=file) as url:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as client:
            answer = await client.completions.create(model="stand-in", prompt="x", max_tokens=2)
            assert answer.choices[0].text == "x x "
            with pytest.raises(openai.RateLimitError, match="1 requests per minute"):
                await client.completions.create(model="stand-in", prompt="x")
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="lw-wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
                await client.models.list()


async def test_a_removed_key_is_refused_once_the_file_has_changed(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    with keyed(tmp_path, engine_url) as (url, add):
        key = add("team-a")
        await until_known(http, url, key)
        remove_keys(tmp_path / "keys.json", "team-a")
        await until_known(http, url, key, 401)


async def test_an_invalid_keys_file_leaves_the_keys_unchanged(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {})
    with gateway(engine_url, keys=file) as url:
        file.write_text("{")
        await until_true(lambda: "the keys stay as they were" in caplog.text)
        assert (await ask(http, url, key))[0] == 200


async def test_credentials_of_clients_do_not_reach_an_engine(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {})
    for section, sent in (({"url": engine_url}, None), ({"url": engine_url, "api_key": "own"}, "Bearer own")):
        engine.headers.clear()
        with gateway(section, keys=file) as url:
            assert (await ask(http, url, key))[0] == 200
        assert engine.headers[0].get("authorization") == sent
        assert key not in str(engine.headers)


async def test_without_required_keys_a_request_without_one_belongs_to_default(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    with keyed(tmp_path, engine_url, require_keys=False) as (url, _):
        assert (await ask(http, url, None))[0] == 200
        assert (await ask(http, url, "lw-wrong"))[0] == 401
        assert await metric(http, url, 'lengthwise_tenant_requests_total{tenant="default"}') == 1


async def test_the_configuration_wins_over_limits_in_the_keys_file(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"requests_per_minute": 600})
    with gateway(engine_url, keys=file, tenants={"team-a": {"requests_per_minute": 60}}) as url:
        _, _, headers = await ask(http, url, key)
    assert headers["x-ratelimit-limit-requests"] == "60"


async def test_a_tenant_beyond_its_request_rate_is_refused_with_retry_after_and_others_are_not(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    few, other = add_key(file, "few", {"requests_per_minute": 2}), add_key(file, "other", {})
    with gateway(engine_url, keys=file) as url:
        answers = [await ask(http, url, few) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert [headers["x-ratelimit-remaining-requests"] for _, _, headers in answers] == ["1", "0", "0"]
        _, refused, headers = answers[2]
        assert (refused["error"]["type"], refused["error"]["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "few: 2 requests per minute. Please try again in" in refused["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 30
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert (await ask(http, url, other))[0] == 200
        assert await metric(http, url, 'lengthwise_tenant_refused_total{limit="requests",tenant="few"}') == 1
    assert len(engine.bodies) == 3


async def test_tokens_are_charged_by_prediction_and_corrected_by_the_answer(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"tokens_per_minute": 1000, "may_declare_length": True})
    engine.lengths["a"] = 5
    hint = {"nvext": {"agent_hints": {"osl": 900}}}
    with gateway(engine_url, keys=file) as url:
        for _ in range(4):  # what a tenant declares counts once four of its answers have shown it
            assert (await ask(http, url, key, tokens=900, **hint))[0] == 200
        engine.gate.clear()
        held = asyncio.create_task(ask(http, url, key, tokens=900, **hint))
        await until_true(lambda: engine.running == 1)
        status, refused, headers = await ask(http, url, key, tokens=900, **hint)
        assert (status, refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 40
        engine.gate.set()
        assert (await held)[0] == 200
        status, _, headers = await ask(http, url, key, tokens=900, **hint)
        assert status == 200, "the first answer had 5 tokens, not 900"
        assert await metric(http, url, 'lengthwise_tenant_tokens_total{tenant="team-a"}') == 36
        engine.mode = "error"
        assert (await ask(http, url, key, tokens=3))[0] == 500
        assert await metric(http, url, 'lengthwise_tenant_tokens_total{tenant="team-a"}') == 36


async def test_a_stream_is_charged_by_a_usage_event_hidden_from_the_client(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"tokens_per_minute": 100_000})
    with gateway(engine_url, keys=file) as url:
        async with http.post(url + PLAIN, json=body(tokens=9, stream=True), headers=bearer(key)) as response:
            assert "x-ratelimit-remaining-tokens" in response.headers
            assert b"usage" not in await response.read()
        assert await metric(http, url, 'lengthwise_tenant_tokens_total{tenant="team-a"}') == 9 + 7


async def test_a_tenant_beyond_its_concurrency_is_refused_until_a_request_ends(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"concurrency": 1})
    with gateway(engine_url, keys=file) as url:
        engine.gate.clear()
        held = asyncio.create_task(ask(http, url, key))
        await until_true(lambda: engine.running == 1)
        status, refused, headers = await ask(http, url, key)
        assert (status, headers["retry-after"]) == (429, "1")
        assert "1 requests at once" in refused["error"]["message"]
        engine.gate.set()
        assert (await held)[0] == 200
        assert (await ask(http, url, key))[0] == 200


async def test_a_cancelled_request_releases_its_concurrency(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"concurrency": 1})
    with gateway(engine_url, keys=file) as url:
        engine.gate.clear()
        held = asyncio.create_task(ask(http, url, key))
        await until_true(lambda: engine.running == 1)
        held.cancel()

        async def free() -> bool:
            return await metric(http, url, 'lengthwise_tenant_open_requests{tenant="team-a"}') == 0

        await until(free)


async def test_priority_comes_from_the_key_unless_the_tenant_may_set_it(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    plain = add_key(file, "plain", {})
    urgent = add_key(file, "urgent", {"priority": -5})
    free = add_key(file, "free", {"may_set_priority": True})
    with gateway(engine_url, keys=file, in_flight=1, policy="fcfs") as url:
        engine.gate.clear()
        calls = [asyncio.create_task(ask(http, url, plain, name="running"))]
        await until_true(lambda: engine.running == 1)
        for waiting, (key, name, fields) in enumerate(
            [(plain, "not permitted", {"priority": -100}), (urgent, "urgent", {}), (free, "free", {"priority": -9})], 1
        ):
            calls.append(asyncio.create_task(ask(http, url, key, name=name, **fields)))
            await until_waiting(http, url, waiting)
        engine.gate.set()
        await asyncio.gather(*calls)
    assert engine.names() == ["running", "free", "urgent", "not permitted"]


async def test_tenants_with_keys_have_fair_shares_by_weight(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    many, few = add_key(file, "many", {}), add_key(file, "few", {"weight": 2})
    # With a quantum of one token, a tenant's next request starts as many rounds later as the last one has tokens.
    with gateway(engine_url, keys=file, in_flight=1, policy="bounded(fair(fcfs):quantum=1)") as url:
        engine.gate.clear()
        calls = [asyncio.create_task(ask(http, url, many, name="running"))]
        await until_true(lambda: engine.running == 1)
        for waiting, (key, name) in enumerate([(many, "many")] * 3 + [(few, "few")] * 3, 1):
            calls.append(asyncio.create_task(ask(http, url, key, name=name, tokens=300)))
            await until_waiting(http, url, waiting)
        engine.gate.set()
        await asyncio.gather(*calls)
    assert engine.names() == ["running", "few", "many", "few", "few", "many", "many"]
    with gateway(engine_url, keys=file) as url:
        async with http.get(url + "/health") as response:
            assert (await response.json())["policy"] == "fair(lengthwise)"


@pytest.mark.parametrize("several", [{"n": 10}, {"prompt": ["hello"] * 10}], ids=["answers", "prompts"])
async def test_several_answers_in_one_request_are_not_charged_as_one(
    several: dict[str, Any], http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    greedy, modest = add_key(file, "greedy", {}), add_key(file, "modest", {})
    order: list[str] = []
    gate = Event()

    async def complete(request: Request) -> JSONResponse:
        order.append((await request.json())["user"])
        while not gate.is_set():
            await asyncio.sleep(0.01)
        tokens = 3000 if order[-1] == "greedy" else 300
        return JSONResponse({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}})

    app = Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])
    with served(app) as engine_url, gateway(engine_url, keys=file, in_flight=1, policy="fair(fcfs):quantum=1") as url:
        first = asyncio.create_task(ask(http, url, modest, name="modest", tokens=300))
        await until_true(lambda: len(order) == 1)
        calls = [asyncio.create_task(ask(http, url, greedy, name="greedy", tokens=300, **several)) for _ in range(8)]
        calls += [asyncio.create_task(ask(http, url, modest, name="modest", tokens=300)) for _ in range(40)]
        await until_waiting(http, url, len(calls))
        gate.set()
        await asyncio.gather(first, *calls)
    # In equal shares of the tokens, the request of 3,000 comes once for ten of 300; charged as one, once for each.
    assert order[:31].count("greedy") <= 5


async def test_with_keys_the_admin_api_takes_an_admin_key_on_this_machine_too(
    engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    plain, admin = add_key(file, "plain", {}), add_key(file, "ops", {"admin": True})
    away = {"via": "1.1 proxy"}

    async def change(url: str, headers: dict[str, str]) -> int:
        async with http.post(url + "/lengthwise/v1/policy", json={"policy": "fcfs"}, headers=headers) as response:
            return response.status

    with gateway(engine_url, keys=file, remote_control=True) as url:
        for headers, status in (({}, 401), (ADMIN, 401), (bearer(plain), 403), (bearer(admin), 200)):
            assert await change(url, headers) == status
        async with http.get(url + "/lengthwise/v1/events") as response:
            assert response.status == 401
        assert await change(url, away) == 401
        assert await change(url, away | bearer(plain)) == 403
        assert await change(url, away | bearer(admin)) == 200
        async with http.get(url + "/lengthwise/v1/policy", headers=away | bearer(plain)) as response:
            assert response.status == 403


async def test_without_keys_the_default_tenant_may_have_limits(engine_url: str, http: aiohttp.ClientSession) -> None:
    with gateway(engine_url, tenants={"default": {"requests_per_minute": 1}}) as url:
        assert [(await ask(http, url, None))[0] for _ in range(2)] == [200, 429]


async def test_every_request_under_load_is_admitted_or_refused_once(
    engine: StandIn, engine_url: str, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    limits: dict[str, dict[str, Any]] = {
        "free": {},
        "few": {"requests_per_minute": 20},
        "small": {"tokens_per_minute": 300},
        "narrow": {"concurrency": 2},
    }
    keys = {name: add_key(file, name, settings) for name, settings in limits.items()}
    choice = random.Random(7)
    engine.token_s = 0.001
    began = time.monotonic()
    with gateway(engine_url, keys=file, in_flight=8) as url:

        async def one(tenant: str, leaves: bool) -> int | None:
            call = ask(http, url, keys[tenant], tokens=choice.randint(1, 40), stream=choice.random() < 0.3)
            try:
                return (await asyncio.wait_for(call, 0.02 if leaves else 30))[0]
            except aiohttp.ContentTypeError:  # a stream
                return 200
            except TimeoutError:
                return None

        plan = [(choice.choice(list(keys)), choice.random() < 0.2) for _ in range(300)]
        statuses = await asyncio.gather(*(one(*each) for each in plan))
        assert set(statuses) <= {200, 429, None}
        running = [f'lengthwise_tenant_open_requests{{tenant="{name}"}}' for name in keys]

        async def idle() -> bool:
            return sum([await metric(http, url, line) for line in running]) == 0

        await until(idle)
        for name in keys:
            admitted = await metric(http, url, f'lengthwise_tenant_requests_total{{tenant="{name}"}}')
            refused = [
                await metric(http, url, f'lengthwise_tenant_refused_total{{limit="{limit}",tenant="{name}"}}')
                for limit in ("requests", "tokens", "concurrency")
            ]
            sent = sum(tenant == name for tenant, _ in plan)
            arrived = admitted + refused[0] + refused[2]
            assert sent - sum(leaves for _, leaves in plan) <= arrived <= sent, (
                "a request may be cancelled before it is read"
            )
            assert sum(refused) >= sum(
                status == 429 for (tenant, _), status in zip(plan, statuses, strict=True) if tenant == name
            )
        most = 20 * (1 + (time.monotonic() - began) / 60)
        assert await metric(http, url, 'lengthwise_tenant_requests_total{tenant="few"}') <= most
