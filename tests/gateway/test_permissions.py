"""A declared priority or length counts only if the tenant may declare it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.bodies import CompletionBody, parse
from lengthwise.gateway.keys import add_key
from tests.gateway.engine import StandIn
from tests.gateway.helpers import PLAIN, body, gateway, hinted, metric

DECLARED: dict[str, Any] = {
    "priority": -5,
    "nvext": {"agent_hints": {"osl": 1, "priority": 9, "strict_priority": 1, "other": 2}, "x": 3},
    "vllm_xargs": {
        "expected_tokens": 2,
        "length_mu": 0.1,
        "length_sigma": 0.2,
        "top": "k",
        "slo_s": 4,
        "ttft_s": 1,
        "request_class": "x",
    },
}


@given(priority=st.booleans(), lengths=st.booleans(), limits=st.booleans())
def test_fields_that_may_not_be_declared_are_removed_and_others_stay(
    priority: bool, lengths: bool, limits: bool
) -> None:
    sent = json.dumps({"prompt": "hi", **DECLARED, "last": 1.5}).encode()
    read = parse(CompletionBody, sent)
    raw = read.restrict(sent, priority=priority, lengths=lengths, limits=limits)
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
    hidden = {*(() if lengths else ("expected_tokens", "length_mu", "length_sigma"))}
    hidden |= {*(() if limits else ("slo_s", "ttft_s")), *(() if priority else ("request_class",))}
    assert kept["vllm_xargs"] == {name: at for name, at in DECLARED["vllm_xargs"].items() if name not in hidden}
    assert read.class_name({}) == ("x" if priority else None)
    job = read.job("a", 5.0, {b"x-lengthwise-per-token-s": b"0.1"}, limits=limits)
    known = (9.0, 1.0, 0.1) if limits else (math.inf,) * 3
    assert (job.deadline, job.ttft_limit_s, job.per_token_limit_s) == known
    assert next(iter(kept)) == "prompt"
    assert list(kept)[-1] == "last"
    assert (raw == sent) == (priority and lengths and limits)


@pytest.mark.parametrize("xargs", [None, {}, {"top": "k"}])
def test_a_body_that_declares_nothing_passes_byte_for_byte(xargs: object) -> None:
    sent = b'{ "prompt":"hi",  "vllm_xargs": ' + json.dumps(xargs).encode() + b"}"
    assert parse(CompletionBody, sent).restrict(sent, priority=False, lengths=False, limits=False) == sent


@pytest.mark.anyio
@pytest.mark.parametrize("may", [False, True])
async def test_declared_priority_and_length_count_if_the_key_permits_them(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path, may: bool
) -> None:
    file = tmp_path / "keys.yaml"
    key = add_key(file, "team-a", {"may_set_priority": may, "may_declare_length": may, "priority": 7})
    headers = {"authorization": f"Bearer {key}"}
    with gateway(engine_url, keys=file, policy="sjf", classes={"x": {}}) as url:
        proof = [hinted("proof", 20)] * 4  # what a tenant declares counts once four of its answers have shown it
        for sent in [*proof, {**body(), **DECLARED}]:
            async with http.post(url + PLAIN, json=sent, headers=headers) as response:
                assert response.status == 200
        async with http.post(
            url + "/v1/embeddings", json={"model": "stand-in", "priority": 3}, headers=headers
        ) as other:
            assert other.status == 200
        assert await metric(http, url, 'lengthwise_predictions_total{source="hint"}') == may
    assert engine.bodies[-1].get("priority") == (-5 if may else None)
    assert ("length_mu" in engine.bodies[-1]["vllm_xargs"]) == may
    assert json.loads(engine.others[0][2]).get("priority") == (3 if may else None)


@pytest.mark.anyio
async def test_a_priority_that_may_not_be_declared_does_not_displace_the_policys(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path
) -> None:
    key = add_key(tmp_path / "keys.json", "a", {})
    with gateway({"url": engine_url, "kind": "vllm"}, keys=tmp_path / "keys.json") as url:
        for fields in ({}, {"priority": -5}, {"priority": None}):
            sent, headers = body("a", **fields), {"authorization": f"Bearer {key}"}
            async with http.post(url + PLAIN, json=sent, headers=headers) as response:
                assert response.status == 200
    first, *others = [each["priority"] for each in engine.bodies]
    assert all(priority >= first for priority in others)


@pytest.mark.anyio
@pytest.mark.parametrize("may", [False, True])
@pytest.mark.parametrize("place", ["header", "body"])
async def test_latency_limits_count_if_the_key_permits_them(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, tmp_path: Path, may: bool, place: str
) -> None:
    key = add_key(tmp_path / "keys.json", "a", {"may_set_limits": may})
    headers = {"authorization": f"Bearer {key}"} | ({"x-lengthwise-slo-s": "40"} if place == "header" else {})
    fields: dict[str, Any] = {"vllm_xargs": {"slo_s": 40}} if place == "body" else {}
    with gateway({"url": engine_url, "kind": "lengthwise"}, keys=tmp_path / "keys.json") as url:
        async with http.post(url + PLAIN, json=body("a", **fields), headers=headers) as response:
            assert response.status == 200
    assert ("slo_s" in (engine.bodies[0].get("vllm_xargs") or {})) == may
