"""An engine for load tests of gateways: `python -m benchmarks.stand_in PORT` answers with fixed bytes.

`max_tokens` is the number of chunks of a stream, `user` the seconds between two of them, or before an answer in one
piece: a field of the API, since some gateways remove others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Final

import uvicorn
from starlette.types import Receive, Scope, Send

MODEL: Final = "stand-in"
_HEAD: Final = {"id": "chatcmpl-0123456789abcdef", "created": 1700000000, "model": MODEL}


def _chunk(content: str | None, reason: str | None) -> bytes:
    choice = {"index": 0, "delta": {} if content is None else {"content": content}, "finish_reason": reason}
    return b"data: " + json.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 100, "completion_tokens": tokens, "total_tokens": 100 + tokens}


# They differ: LiteLLM ends a stream that repeats itself.
_TOKENS: Final = [_chunk(f"token {number} ", None) for number in range(100)]
_LAST: Final = _chunk(None, "stop")


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request."""
    raw = b""
    while (message := await receive()).get("more_body"):
        raw += message["body"]
    raw += message.get("body", b"")
    if not scope["path"].endswith("/completions"):
        models = [{"id": MODEL, "object": "model", "owned_by": "benchmarks"}]
        known = {"object": "list", "data": models, "model_path": MODEL, "is_generation": True}
        await _send(send, 404 if scope["path"] == "/metrics" else 200, json.dumps(known).encode())
        return
    body: dict[str, Any] = json.loads(raw)
    tokens, chunk_s = int(body.get("max_tokens", 3)), float(body.get("user", 0.0))
    if body.get("stream"):
        await _stream(send, tokens, chunk_s, usage=bool((body.get("stream_options") or {}).get("include_usage")))
        return
    await asyncio.sleep(chunk_s)
    message = {"role": "assistant", "content": "token " * tokens}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    answer = {**_HEAD, "object": "chat.completion", "choices": choices, "usage": _usage(tokens)}
    await _send(send, 200, json.dumps(answer).encode())


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, tokens: int, chunk_s: float, *, usage: bool) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(tokens):
        event = _TOKENS[number % len(_TOKENS)]
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(chunk_s)
    end = _LAST
    if usage:
        end += b"data: " + json.dumps({**_HEAD, "choices": [], "usage": _usage(tokens)}).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": end + b"data: [DONE]\n\n"})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
