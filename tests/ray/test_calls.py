"""A call of a deployment's handle as a job."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lengthwise.ray.calls import read_job

CHAT = {"model": "m", "messages": [{"role": "user", "content": "why? " * 200}], "max_tokens": 50}


def gateway_call(path: str, body: Any, *headers: tuple[bytes, bytes]) -> tuple[Any, ...]:
    return "POST", path, json.dumps(body).encode(), list(headers)


def test_the_gateways_call_and_ray_serve_llms_object_give_the_same_job() -> None:
    ours = read_job("1", gateway_call("/v1/chat/completions?x=1", CHAT))
    theirs = read_job("1", (SimpleNamespace(model_dump=lambda exclude_unset: CHAT),))
    assert ours is not None
    assert theirs is not None
    assert list(ours.blocks) == list(theirs.blocks)
    assert len(ours.blocks) > 2
    assert (ours.prompt_tokens, ours.max_tokens, ours.llm) == (theirs.prompt_tokens, 50, "m")


def test_a_prediction_in_the_body_is_used_and_censored_at_max_tokens() -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": 50, "vllm_xargs": {"length_mu": 4.0, "length_sigma": 0.5}}
    job = read_job("1", gateway_call("/v1/completions", body))
    assert job is not None
    assert (job.mu, job.sigma, job.cap) == (4.0, 0.5, 50)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("text",),
        ("GET", "/v1/models", b"", []),
        ("POST", "/v1/completions", b"{", []),
        ("POST", "/v1/completions", b"[]", []),
        gateway_call("/v1/chat/completions", {"messages": 1}),
        gateway_call("/v1/embeddings", {"input": "x"}),
    ],
)
def test_a_call_without_a_completion_is_no_job(args: tuple[Any, ...]) -> None:
    assert read_job("1", args) is None


def test_an_unusable_prediction_leaves_the_prior() -> None:
    job = read_job("1", gateway_call("/v1/completions", {"prompt": "x", "vllm_xargs": {"length_mu": "long"}}))
    assert job is not None
    assert job.prediction is None
