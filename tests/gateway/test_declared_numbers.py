"""Numbers that a client declares are clamped before a policy sees them; a policy that raises loses no request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway.bodies import MAX_LENGTH, CompletionBody
from lengthwise.lengths import DEFAULT_CAP
from lengthwise.policies import Job, PolicyQueue, make_policy
from lengthwise.routers import Decision, EngineId, Event
from tests.conformance.outside_router import Alternate
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, PLAIN, body, gateway, hinted, metric, post, until_true, until_waiting
from tests.gateway.test_order import hold
from tests.policies.raising import CALLS

pytestmark = pytest.mark.anyio

HUGE = [{"nvext": {"agent_hints": {"osl": 1e308}}}, {"vllm_xargs": {"expected_tokens": 1e308}}]


@pytest.mark.parametrize("hint", HUGE)
@pytest.mark.parametrize("policy", ["lengthwise", "fair(tie)"])
async def test_a_huge_hint_leaves_the_gateway_serving(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, policy: str, hint: dict[str, Any]
) -> None:
    with gateway({"url": engine_url, "kind": "lengthwise"}, policy=policy) as url:
        for _ in range(2):
            assert (await post(http, url, {"prompt": "x", **hint}))[0] == 200
        for _ in range(3):
            assert (await post(http, url, body()))[0] == 200
            assert (await post(http, url, hinted("a", 3)))[0] == 200
        assert await metric(http, url, "lengthwise_policy_failures_total") == 0
    if "nvext" in hint:
        assert engine.bodies[0]["vllm_xargs"]["expected_tokens"] == DEFAULT_CAP


@pytest.mark.parametrize(
    ("limit", "hint", "expected"),
    [(None, 1e308, DEFAULT_CAP), (100, 1e6, 100), (1 << 31, 1e9, MAX_LENGTH), (100, 0, 1), (100, 7.5, 7.5)],
)
def test_a_hint_is_clamped_to_the_cap(limit: int | None, hint: float, expected: float) -> None:
    for fields in ({"nvext": {"agent_hints": {"osl": hint}}}, {"vllm_xargs": {"expected_tokens": hint}}):
        job = CompletionBody.model_validate({"max_tokens": limit, **fields}).job("a", 0.0, {})
        assert (job.expected, job.median) == pytest.approx((expected, expected))
        assert job.cap <= MAX_LENGTH


@pytest.mark.parametrize("limit", [None, 1_000_000, 1 << 31])
def test_one_huge_hint_does_not_remove_the_starvation_bound(limit: int | None) -> None:
    def pops(hint: float | None) -> int:
        """Return how many jobs run before one of 1,500 tokens while jobs of 20 tokens keep arriving."""
        queue = PolicyQueue(make_policy("lengthwise"), slots=64)

        def push(name: str, tokens: float, most: int | None = 2048) -> None:
            fields = {"max_tokens": most, "nvext": {"agent_hints": {"osl": tokens}}}
            queue.push(CompletionBody.model_validate(fields).job(name, 0.0, {}), 0.0)

        for n in range(300):
            push(f"before {n}", (20, 50, 100, 400, 1500)[n % 5])
        if hint is not None:
            push("huge", hint, limit)
        push("waits", 1500)
        served = 0
        while (job := queue.pop(0.0)) is not None and job.id != "waits":
            push(f"after {served}", 20)
            served += 1
        return served

    assert pops(1e6) <= 1.5 * pops(None)


@pytest.mark.parametrize("policy", ["tie", "hrrn", "classes(tie)"])
@pytest.mark.parametrize("sign", [1, -1])
async def test_a_priority_beyond_32_bits_is_refused_and_holds_no_slot(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, policy: str, sign: int
) -> None:
    with gateway(engine_url, policy=policy, in_flight=1) as url:
        answers = await hold(http, url, engine, [body("a", priority=-(1 << 31)), body("b", priority=(1 << 31) - 1)])
        async with http.post(url + PLAIN, json=body("huge", priority=sign * 10**400)) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "priority"
        async with http.post(url + "/lengthwise/v1/policy", json={"policy": "sjf"}, headers=ADMIN) as response:
            assert response.status == 200
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
        await all_free(http, url)
    assert engine.names() == ["blocker", "a", "b"]


async def all_free(http: aiohttp.ClientSession, url: str) -> None:
    """Check that no request waits or runs."""
    await until_waiting(http, url, 0)
    async with http.get(url + "/health") as response:
        assert [engine["running"] for engine in (await response.json())["engines"]] == [0]


# The gateway has no victims, and without a predictor no predictions change.
SPECS = [
    f"tests.policies.raising:Raising:at={n},after={int(call != 'rounds')}"
    for n, call in enumerate(CALLS)
    if call not in ("eviction_scores", "prediction_changed")
]


@pytest.mark.parametrize("policy", [*SPECS, "tests.policies.raising:RaisingSelect:after=1"])
async def test_a_policy_that_raises_loses_no_request_and_no_slot(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), gateway(engine_url, policy=policy, in_flight=1) as url:
        answers = await hold(http, url, engine, [hinted(str(n), 9 - n) for n in range(5)])
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
        assert (await post(http, url, body("after")))[0] == 200
        assert await metric(http, url, "lengthwise_policy_failures_total") == 1
        assert await metric(http, url, 'lengthwise_policy{policy="fcfs"}') == 1
        assert "failed" in caplog.text
        await all_free(http, url)
    assert sorted(engine.names()) == ["0", "1", "2", "3", "4", "after", "blocker"]


class RaisingRouter(Alternate):
    """Raises at every decision and every event."""

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        raise ZeroDivisionError

    def observe(self, event: Event) -> None:
        raise ZeroDivisionError


async def test_a_router_that_raises_loses_no_request_and_no_slot(
    http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [StandIn(), StandIn()]
    monkeypatch.setattr("lengthwise.gateway.app.warm_router", lambda _: RaisingRouter())
    with served(engines[0].app()) as a, served(engines[1].app()) as b, gateway(a, b, in_flight=2) as url:
        for engine in engines:
            engine.gate.clear()
        calls = [asyncio.create_task(post(http, url, body(str(n)))) for n in range(8)]
        await until_true(lambda: [engine.running for engine in engines] == [2, 2])
        for engine in engines:
            engine.gate.set()
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
        assert await metric(http, url, "lengthwise_router_failures_total") >= 8
        assert await metric(http, url, "lengthwise_requests_waiting") == 0
    assert sorted(engines[0].names() + engines[1].names()) == [str(n) for n in range(8)]
