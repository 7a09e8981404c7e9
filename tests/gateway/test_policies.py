"""Every policy in the gateway: changes of the policy lose no waiting request."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp
import pytest

from lengthwise.policies import POLICIES
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import ADMIN, gateway, hinted, post

pytestmark = pytest.mark.anyio

SPECS = [*POLICIES, "srpt:c=0.5", "classes(srpt)", "fair(tie)", "bounded(gittins):overtakes=3"]


async def test_every_request_is_served_once_while_the_policy_changes_through_all(http: aiohttp.ClientSession) -> None:
    engine = StandIn()
    names = [str(n) for n in range(6 * len(SPECS))]
    with served(engine.app()) as engine_url, gateway(engine_url, policy="fcfs", in_flight=2) as url:
        calls: list[asyncio.Task[tuple[int, dict[str, object]]]] = []
        for number, spec in enumerate(SPECS):
            engine.gate.clear()
            bodies = [hinted(name, 1 + int(name) % 7) for name in names[6 * number : 6 * number + 6]]
            calls += [asyncio.create_task(post(http, url, waiting)) for waiting in bodies]
            async with http.post(url + "/lengthwise/v1/policy", json={"policy": spec}, headers=ADMIN) as response:
                assert await response.json() == {"policy": spec}
            reached = len(engine.names())
            engine.gate.set()
            while len(engine.names()) == reached:
                await asyncio.sleep(0.002)
        answers = await asyncio.gather(*calls)
    assert {status for status, _ in answers} == {200}
    assert Counter(engine.names()) == Counter(names)


async def test_the_admin_api_imports_no_code_by_a_policys_name(http: aiohttp.ClientSession, engine_url: str) -> None:
    with gateway(engine_url) as url:
        for spec in ("lengthwise.policies:Fcfs", "fair(lengthwise.policies:Fcfs)", "os:system"):
            async with http.post(url + "/lengthwise/v1/policy", json={"policy": spec}, headers=ADMIN) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (400, "unknown_policy")
