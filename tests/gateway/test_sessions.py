"""Which session a request belongs to, and what an engine with our scheduler is told of it."""

from __future__ import annotations

import json

import pytest

from lengthwise.gateway.bodies import ChatBody

MESSAGES = [{"role": "user", "content": "go on"}]


def body_of(**fields: object) -> tuple[ChatBody, bytes]:
    raw = json.dumps({"messages": MESSAGES, **fields}).encode()
    return ChatBody.model_validate_json(raw), raw


@pytest.mark.parametrize(
    ("headers", "metadata", "session"),
    [
        ({b"x-session-id": b"h"}, {"session_id": "m"}, "h"),
        ({}, {"session_id": "m"}, "m"),
        ({b"x-session-id": b""}, {"session_id": "m"}, "m"),
        ({b"x-session-id": b"h" * 300}, None, "h" * 256),
        ({}, {"session_id": 3}, None),
        ({}, {"session_id": "x" * 300}, "x" * 256),
        ({}, None, None),
    ],
)
def test_a_session_is_named_by_a_header_or_metadata_and_not_by_the_user(
    headers: dict[bytes, bytes], metadata: object, session: str | None
) -> None:
    body, _ = body_of(user="somebody", **({} if metadata is None else {"metadata": metadata}))
    assert body.job("1", 0.0, headers).session == session


def test_session_and_template_go_to_an_engine_with_our_scheduler() -> None:
    body, raw = body_of(metadata={"session_id": "s", "template": "coder"}, vllm_xargs={"session": "forged"})
    sent = json.loads(body.for_engine(raw, body.job("1", 0.0, {}), 0.0, prediction=False))
    assert sent["vllm_xargs"] == {"session": "s", "template": "coder"}
    plain, raw = body_of()
    assert plain.for_engine(raw, plain.job("1", 0.0, {}), 0.0, prediction=False) == raw
