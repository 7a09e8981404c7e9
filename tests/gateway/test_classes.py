"""Classes of requests: their priority and limits, who may name one, and engines that preempt a less urgent one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway.keys import add_key
from lengthwise.traffic.reader import read_traffic
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import PLAIN, body, gateway, post, until_true, until_waiting
from tests.gateway.test_order import hold

pytestmark = pytest.mark.anyio

CLASSES = {"interactive": {"ttft_s": 2}, "batch": {"priority": 10}, "background": {"priority": 20, "slo_s": 3600}}
HEADER = "x-lengthwise-request-class"


async def test_a_more_urgent_class_is_sent_first(http: aiohttp.ClientSession, engine: StandIn, engine_url: str) -> None:
    with gateway(engine_url, classes=CLASSES, in_flight=1) as url:
        named = ["background", "batch", "interactive", "batch"]
        bodies = [body(f"{number} {name}", vllm_xargs={"request_class": name}) for number, name in enumerate(named)]
        answers = await hold(http, url, engine, bodies)
        engine.gate.set()
        assert {status for status, _ in await answers} == {200}
    assert engine.names() == ["blocker", "2 interactive", "1 batch", "3 batch", "0 background"]


async def test_priority_and_limits_of_the_class_reach_an_engine_with_our_scheduler(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    tenants = {"default": {"request_class": "background", "ttft_s": 50}}
    with gateway({"url": engine_url, "kind": "lengthwise"}, classes=CLASSES, tenants=tenants) as url:
        await http.post(url + PLAIN, json=body("of the tenant"))
        await http.post(url + PLAIN, json=body("named"), headers={HEADER: "batch"})
        await http.post(url + PLAIN, json=body("own", priority=3), headers={HEADER: "batch"})
    sent = [received["vllm_xargs"] for received in engine.bodies]
    assert [xargs["priority"] for xargs in sent] == [20, 10, 3]
    assert 3000 < sent[0]["slo_s"] <= 3600
    assert "slo_s" not in sent[1]
    assert all(40 < xargs["ttft_s"] <= 50 for xargs in sent)


async def test_the_row_of_a_request_has_its_class_and_limits(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    tenants = {"default": {"request_class": "interactive", "per_token_s": 0.5}}
    with gateway(engine_url, classes=CLASSES, tenants=tenants, log=tmp_path) as url:
        await http.post(url + PLAIN, json=body("of the tenant"))
        await http.post(url + PLAIN, json=body("named"), headers={HEADER: "background", "x-lengthwise-ttft-s": "7"})
    own, named = read_traffic(tmp_path).rows
    assert (own.request_class, own.ttft_limit_s, own.per_token_limit_s, own.e2e_limit_s) == (
        "interactive",
        2,
        0.5,
        None,
    )
    assert (named.request_class, named.ttft_limit_s, named.e2e_limit_s) == ("background", 7, 3600)


async def test_a_tenants_own_priority_comes_before_that_of_its_class(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    tenants = {"default": {"request_class": "batch", "priority": -1}}
    with gateway({"url": engine_url, "kind": "lengthwise"}, classes=CLASSES, tenants=tenants) as url:
        await http.post(url + PLAIN, json=body("a"))
    assert engine.bodies[0]["vllm_xargs"]["priority"] == -1


async def test_an_unknown_class_is_refused_with_the_known_ones(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url, classes=CLASSES) as url:
        async with http.post(url + PLAIN, json=body("a"), headers={HEADER: "bach"}) as response:
            error = (await response.json())["error"]
    assert response.status == 400
    assert error["param"] == "request_class"
    assert "interactive, batch, background" in error["message"]
    assert engine.bodies == []


@pytest.mark.parametrize("may", [False, True])
async def test_a_class_counts_if_the_key_permits_it(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path, may: bool
) -> None:
    file = tmp_path / "keys.json"
    key = add_key(file, "team-a", {"may_set_priority": may, "request_class": "batch"})
    headers = {"authorization": f"Bearer {key}", HEADER: "background"}
    engines: dict[str, Any] = {"url": engine_url, "kind": "lengthwise"}
    with gateway(engines, keys=file, classes=CLASSES) as url:
        async with http.post(url + PLAIN, json=body("a"), headers=headers) as response:
            assert response.status == 200
    assert engine.bodies[0]["vllm_xargs"]["priority"] == (20 if may else 10)


@pytest.mark.parametrize(("policy", "most"), [("classes(lengthwise)", 4), ("lengthwise", 2)])
async def test_an_urgent_request_does_not_wait_for_a_slot_of_an_engine_that_preempts_others_for_it(
    http: aiohttp.ClientSession, policy: str, most: int
) -> None:
    """The engine says that its policy is classes(...); at most as many urgent ones as it has slots are sent."""
    engine = StandIn(owned_by="vllm", scheduler={"policy": policy})
    with served(engine.app()) as engine_url, gateway(engine_url, classes=CLASSES, in_flight=2) as url:
        engine.gate.clear()
        calls = []
        for number, name in enumerate(["batch"] * 3 + ["interactive"] * 3):
            sent = body(f"{number} {name}", vllm_xargs={"request_class": name})
            calls.append(asyncio.create_task(post(http, url, sent)))
            await until_true(lambda: engine.running >= min(2, len(calls)))
        await until_waiting(http, url, 6 - most)
        await until_true(lambda: engine.running == most)
        engine.gate.set()
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
