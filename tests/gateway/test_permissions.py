"""A declared priority or length counts only if the tenant may declare it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.bodies import CompletionBody, parse
from lengthwise.gateway.keys import add_key
from tests.gateway.engine import StandIn
from tests.gateway.helpers import PLAIN, body, gateway, metric

DECLARED: dict[str, Any] = {
    "priority": -5,
    "nvext": {"agent_hints": {"osl": 1, "priority": 9, "strict_priority": 1, "other": 2}, "x": 3},
    "vllm_xargs": {"expected_tokens": 2, "length_mu": 0.1, "length_sigma": 0.2, "top": "k", "slo_s": 4},
}


@given(priority=st.booleans(), lengths=st.booleans())
def test_fields_that_may_not_be_declared_are_removed_and_others_stay(priority: bool, lengths: bool) -> None:
    sent = json.dumps({"prompt": "hi", **DECLARED, "last": 1.5}).encode()
    read = parse(CompletionBody, sent)
    raw = read.restrict(sent, priority=priority, lengths=lengths)
    kept = json.loads(raw)
    assert kept.get("priority") == (-5 if priority else None)
    assert (read.priority or 0) == (-5 if priority else 0)
    assert (read.hint is not None) == lengths
    ignored = {*(() if lengths else ("osl",)), *(() if priority else ("priority", "strict_priority"))}
    hints = DECLARED["nvext"]["agent_hints"]
    assert kept["nvext"] == {
        "agent_hints": {name: value for name, value in hints.items() if name not in ignored},
        "x": 3,
    }
    assert kept["vllm_xargs"] == (DECLARED["vllm_xargs"] if lengths else {"top": "k", "slo_s": 4})
    assert next(iter(kept)) == "prompt"
    assert list(kept)[-1] == "last"
    assert (raw == sent) == (priority and lengths)


@pytest.mark.parametrize("xargs", [None, {}, {"top": "k"}])
def test_a_body_that_declares_nothing_passes_byte_for_byte(xargs: object) -> None:
    sent = b'{ "prompt":"hi",  "vllm_xargs": ' + json.dumps(xargs).encode() + b"}"
    assert parse(CompletionBody, sent).restrict(sent, priority=False, lengths=False) == sent


@pytest.mark.anyio
@pytest.mark.parametrize("may", [False, True])
async def test_declared_priority_and_length_count_if_the_key_permits_them(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path, may: bool
) -> None:
    file = tmp_path / "keys.yaml"
    key = add_key(file, "team-a", {"may_set_priority": may, "may_declare_length": may, "priority": 7})
    headers = {"authorization": f"Bearer {key}"}
    with gateway(engine_url, keys=file, policy="sjf") as url:
        async with http.post(url + PLAIN, json={**body(), **DECLARED}, headers=headers) as response:
            assert response.status == 200
        async with http.post(
            url + "/v1/embeddings", json={"model": "stand-in", "priority": 3}, headers=headers
        ) as other:
            assert other.status == 200
        assert await metric(http, url, 'lengthwise_predictions_total{source="hint"}') == may
    assert engine.bodies[0].get("priority") == (-5 if may else None)
    assert ("length_mu" in engine.bodies[0]["vllm_xargs"]) == may
    assert json.loads(engine.others[0][2]).get("priority") == (3 if may else None)


@pytest.mark.anyio
async def test_a_stored_answer_is_visible_to_its_tenant_only(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    keys = {name: {"authorization": f"Bearer {add_key(file, name, {})}"} for name in ("team-a", "team-b")}
    engine.stored.add("resp_1")
    with gateway(engine_url, keys=file) as url:
        sent = {"model": "stand-in", "input": "hi"}
        async with http.post(url + "/v1/responses", json=sent, headers=keys["team-a"]) as response:
            assert (await response.json())["id"] == "resp_1"
        found = {}
        for name, headers in keys.items():
            async with http.get(url + "/v1/responses/resp_1", headers=headers) as response:
                found[name] = response.status
    assert found == {"team-a": 200, "team-b": 404}
