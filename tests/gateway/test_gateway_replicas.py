"""Two gateway processes in front of the same engines: what each has of its own, and what they share."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway.keys import add_key, remove_keys
from tests.cli.test_serve import serving
from tests.gateway.accounting import ledger, read_metrics
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import PLAIN, body, until, until_true

pytestmark = pytest.mark.anyio

SLOTS = 2


@dataclass
class Pair:
    """Two replicas, their engines, and the headers of an administrator and of a tenant with a limit."""

    processes: list[subprocess.Popen[str]]
    urls: list[str]
    engines: list[StandIn]
    keys: Path
    admin: dict[str, str]

    def tenant(self, name: str, **limits: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {add_key(self.keys, name, limits)}"}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("LENGTHWISE_SERVE_SHARED_SECRET", "s" * 32)
    keys = tmp_path / "keys.json"
    admin = {"authorization": f"Bearer {add_key(keys, 'ops', {'admin': True})}"}
    engines = [StandIn(), StandIn()]
    with ExitStack() as stack:
        named = [f"--engine={stack.enter_context(served(engine.app()))}" for engine in engines]
        options = [*named, f"--keys={keys}", "--predictor=none", f"--in-flight={SLOTS}", "--router=round_robin"]
        running = [stack.enter_context(serving(*options)) for _ in range(2)]
        yield Pair([process for process, _ in running], [url for _, url in running], engines, keys, admin)


async def ask(http: aiohttp.ClientSession, url: str, headers: dict[str, str], **fields: Any) -> int:
    async with http.post(url + PLAIN, json=body(**fields), headers=headers) as response:
        await response.read()
        return response.status


async def test_a_key_counts_at_both_and_limits_and_policy_are_each_ones_own(
    http: aiohttp.ClientSession, pair: Pair
) -> None:
    limited = pair.tenant("limited", requests_per_minute=2)

    for url in pair.urls:

        async def known(url: str = url) -> bool:
            async with http.get(url + "/lengthwise/v1/queue", headers=limited) as response:
                return response.status == 403  # an unknown key: 401

        await until(known)
    statuses = [[await ask(http, url, limited) for _ in range(4)] for url in pair.urls]
    assert [each.count(200) for each in statuses] == [2, 2], "with N replicas a tenant has N times what one gives it"
    assert [each.count(429) for each in statuses] == [2, 2]
    async with http.post(pair.urls[0] + "/lengthwise/v1/policy", json={"policy": "fcfs"}, headers=pair.admin) as set_:
        assert set_.status == 200
    policies = []
    for url in pair.urls:
        async with http.get(url + "/lengthwise/v1/policy", headers=pair.admin) as response:
            policies.append((await response.json())["policy"])
    assert policies[0] == "fcfs" != policies[1]
    remove_keys(pair.keys, "limited")
    for url in pair.urls:

        async def refused(url: str = url) -> bool:
            return await ask(http, url, limited) == 401

        await until(refused)


async def test_each_sends_its_own_share_and_a_killed_one_takes_no_request_of_the_other_with_it(
    http: aiohttp.ClientSession, pair: Pair
) -> None:
    for engine in pair.engines:
        engine.gate.clear()
    async with ledger(pair.urls[0]) as kept:
        load = asyncio.create_task(kept.load(12, headers=pair.admin))
        doomed = [
            asyncio.create_task(ask(http, pair.urls[1], pair.admin, name=f"doomed-{n}", stream=True)) for n in range(6)
        ]
        await until_true(lambda: all(engine.running == 2 * SLOTS for engine in pair.engines))

        async def waits() -> bool:
            metrics = await read_metrics(http, pair.urls[0])
            return metrics["lengthwise_requests_waiting"] == 12 - 2 * SLOTS

        await until(waits)
        assert [engine.most_at_once for engine in pair.engines] == [2 * SLOTS] * 2, "in-flight is each replica's own"
        pair.processes[1].kill()
        await asyncio.gather(*doomed, return_exceptions=True)
        for engine in pair.engines:
            engine.gate.set()
        await load
        kept.assert_all_answered()
        await kept.settle(name for engine in pair.engines for name in engine.names() if not name.startswith("doomed"))


async def test_an_answer_that_one_stored_is_found_by_the_other_on_its_engine(
    http: aiohttp.ClientSession, pair: Pair
) -> None:
    sent = {"model": "stand-in", "input": "hi"}
    async with http.post(pair.urls[0] + "/v1/responses", json=sent, headers=pair.admin) as response:
        name = (await response.json())["id"]
    (owner,) = (engine for engine in pair.engines if engine.bodies)
    owner.stored.add("resp_1")
    for number in range(1, 4):
        async with http.post(
            pair.urls[1] + "/v1/responses", json={**sent, "previous_response_id": name}, headers=pair.admin
        ) as response:
            assert response.status == 200
        assert len(owner.bodies) == 1 + number
    assert all(each["previous_response_id"] == "resp_1" for each in owner.bodies[1:])
