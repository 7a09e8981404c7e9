"""With keys, one tenant's answers change no other tenant's predictions, through the whole gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lengthwise.gateway.keys import add_key
from lengthwise.traffic.reader import read_traffic
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import PLAIN, body, gateway, metric, until

pytestmark = pytest.mark.anyio

LONG, SHORT = 3000, 40
FLOOD = 300
PROMPTS = ("Why is the sky blue?", "Write a story about a dragon.", "Why is the sky blue?")
LEARNED = ("mu", "sigma", "predictor_mu", "predictor_sigma", "history_mu", "history_sigma")


class Gateway:
    """A gateway with keys whose requests are all predicted before they are answered, and then learned from."""

    def __init__(self, http: aiohttp.ClientSession, url: str, engine: StandIn, keys: dict[str, str]) -> None:
        self._http, self._url, self._engine, self._keys = http, url, engine, keys
        self._sent = 0

    async def send(self, tenant: str, prompt: str, times: int = 1) -> None:
        sent = body(tenant, 4000, prompt=prompt)
        headers = {"authorization": f"Bearer {self._keys[tenant]}", "x-session-id": "the same"}
        self._sent += times
        self._engine.gate.clear()

        async def answer() -> int:
            async with self._http.post(self._url + PLAIN, json=sent, headers=headers) as response:
                return response.status

        answers = asyncio.gather(*(answer() for _ in range(times)))
        await self._until("answered")
        self._engine.gate.set()
        assert set(await answers) == {200}
        await self._until("observed")

    async def _until(self, event: str) -> None:
        async def counted() -> bool:
            line = f'lengthwise_predictor_events_total{{event="{event}"}}'
            return await metric(self._http, self._url, line) == self._sent

        await until(counted, 60.0)

    async def predict(self, tenant: str, prompt: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._keys[tenant]}"}
        sent = body(tenant, 4000, prompt=prompt)
        async with self._http.post(f"{self._url}/lengthwise/v1/predict", json=sent, headers=headers) as response:
            assert response.status == 200
            return dict(await response.json())


async def predictions_of_b(
    http: aiohttp.ClientSession, folder: Path, *, flood: int, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return what tenant b is predicted while tenant a has sent so many requests with long answers."""
    folder.mkdir()
    keys = {tenant: add_key(folder / "keys.json", tenant, {}) for tenant in ("a", "b")}
    engine = StandIn(lengths={"a": LONG, "b": SHORT})
    settings = {"policy": "sjf", "predictor": "fast", "log": folder / "log", "keys": folder / "keys.json", **options}
    with served(engine.app()) as engine_url, gateway(engine_url, **settings) as url:
        made = Gateway(http, url, engine, keys)
        await made.send("b", PROMPTS[0])
        if flood:
            await made.send("a", PROMPTS[0], flood)
        for prompt in PROMPTS:
            await made.send("b", prompt)
        asked = await made.predict("b", PROMPTS[1])
    rows = [row for row in read_traffic(folder / "log").rows if row.tenant == "b"]
    return [{name: getattr(row, name) for name in LEARNED} for row in rows], asked


async def test_the_answers_of_one_tenant_leave_another_tenants_predictions_as_they_are_to_the_bit(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    alone = await predictions_of_b(http, tmp_path / "alone", flood=0)
    beside = await predictions_of_b(http, tmp_path / "beside", flood=FLOOD)
    assert json.dumps(beside) == json.dumps(alone)
    assert len(alone[0]) == 1 + len(PROMPTS)
    assert alone[0][1] != alone[0][3], "it learns from its own"
    shared, asked = await predictions_of_b(http, tmp_path / "shared", flood=FLOOD, share_learning=True)
    assert asked["median"] > 1.5 * alone[1]["median"], "so does every tenant from all, where the operator wants that"
    assert shared[1]["history_mu"] > alone[0][1]["history_mu"]


async def test_without_keys_all_requests_are_learned_from_together(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str
) -> None:
    with gateway(engine_url) as url:
        for name in ("a", "b"):
            async with http.post(url + PLAIN, json=body(name, 3)) as response:
                assert response.status == 200
        async with http.post(f"{url}/lengthwise/v1/predict", json=body("c", 900)) as response:
            assert (await response.json())["source"] == "history"


async def test_an_engine_with_our_scheduler_learns_the_tenant_of_the_key_and_not_the_clients(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", "a", {})
    engine = StandIn()
    options = {"policy": "sjf", "keys": tmp_path / "keys.json"}
    with served(engine.app()) as engine_url:
        for shared in (False, True):
            with gateway({"url": engine_url, "kind": "lengthwise"}, share_learning=shared, **options) as url:
                for xargs in ({}, {"vllm_xargs": {"tenant": "b", "other": 1}}):
                    headers = {"authorization": f"Bearer {key}"}
                    async with http.post(url + PLAIN, json=body("x", 3, **xargs), headers=headers) as response:
                        assert response.status == 200
    sent = [each.get("vllm_xargs") for each in engine.bodies]
    assert sent == [{"tenant": "a"}, {"tenant": "a", "other": 1}, None, {"tenant": "b", "other": 1}]
