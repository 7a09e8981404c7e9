"""Answers of a stand-in engine in the format of each API, whole and as a stream of one event per token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Stream = tuple[list[bytes], Iterator[bytes], list[bytes]]
"""The events before the tokens, one for each token, and those after them."""

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


def whole_answer(path: str, tokens: int, reason: str, model: str) -> dict[str, Any]:
    """Return an answer in one piece; `reason` is that of chat completions: stop or length."""
    text = "x " * tokens
    if path == "/v1/responses":
        return _response(text, model, "incomplete" if reason == "length" else "completed", tokens)
    if path == "/v1/messages":
        return _message(model, [{"type": "text", "text": text}], _STOP_REASONS[reason], tokens)
    choice = {"index": 0, "finish_reason": reason, "text": text, "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    return {"id": "a", "object": "o", "created": 1, "model": model, "choices": [choice], "usage": usage}


def other_answer(path: str, model: str) -> dict[str, Any]:
    """Return the answer of a path without tokens: embeddings, or the path itself."""
    if path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
        return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": 2, "total_tokens": 2}}
    return {"path": path, "model": model, "text": "transcribed"}


def stream_events(path: str, tokens: int, reason: str, model: str, *, usage: bool) -> Stream:
    """Return the same answer as a stream."""
    if path == "/v1/responses":
        return _response_events(tokens, reason, model)
    if path == "/v1/messages":
        return _message_events(tokens, reason, model)
    chat = path == "/v1/chat/completions"
    each = (_chunk(n, model, reason if n == tokens - 1 else None, chat=chat) for n in range(tokens))
    end = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d}}\n\n' % tokens
    return [], each, [end, b"data: [DONE]\n\n"] if usage else [b"data: [DONE]\n\n"]


def named(name: str, **fields: Any) -> bytes:
    """One named event, as vLLM writes it."""
    return f"event: {name}\ndata: ".encode() + json.dumps({"type": name, **fields}).encode() + b"\n\n"


def _chunk(n: int, model: str, reason: str | None, *, chat: bool) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
    choice |= {"delta": {"content": f"t{n} "}} if chat else {"text": f"t{n} "}
    kind = "chat.completion.chunk" if chat else "text_completion"
    event = {"id": "a", "object": kind, "created": 1, "model": model, "choices": [choice]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def _response(text: str, model: str, status: str, tokens: int | None) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    usage: dict[str, Any] | None = None
    if tokens is not None:
        usage = {"input_tokens": 7, "output_tokens": tokens, "total_tokens": tokens + 7}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": model,
        "status": status,
        "incomplete_details": details,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


def _response_events(tokens: int, reason: str, model: str) -> Stream:
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    opening = [
        named("response.created", sequence_number=0, response=_response("", model, "in_progress", None)),
        named("response.in_progress", sequence_number=1, response=_response("", model, "in_progress", None)),
    ]
    each = (named("response.output_text.delta", sequence_number=n + 2, delta=f"t{n} ", **at) for n in range(tokens))
    status = "incomplete" if reason == "length" else "completed"  # the event's name is `completed` in both cases
    last = _response("x " * tokens, model, status, tokens)
    return opening, each, [named("response.completed", sequence_number=tokens + 2, response=last)]


def _message(model: str, content: list[Any], reason: str | None, tokens: int) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": tokens},
    }


def _message_events(tokens: int, reason: str, model: str) -> Stream:
    opening = [
        named("message_start", message=_message(model, [], None, 0)),
        named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    ]
    text = ({"type": "text_delta", "text": f"t{n} "} for n in range(tokens))
    each = (named("content_block_delta", index=0, delta=delta) for delta in text)
    end = {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}
    closing = [
        named("content_block_stop", index=0),
        named("message_delta", delta=end, usage={"input_tokens": 7, "output_tokens": tokens}),
        named("message_stop"),
    ]
    return opening, each, closing
