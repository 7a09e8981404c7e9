"""An engine for load tests of gateways, which answers with fixed bytes.

    python -m benchmarks.stand_in PORT

How it answers is set at the engine, `POST /behaviour` with fields of `Behaviour`, because gateways rebuild bodies: one
renames `max_tokens`, others drop fields. Of a body only `stream` and `stream_options` are read.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

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


@dataclass(frozen=True)
class Behaviour:
    """How an engine answers."""

    tokens: int = 3
    """Of an answer; the chunks of a stream."""
    token_s: float = 0.0
    """Between two chunks; before an answer in one piece, that many times its tokens."""
    fault: Literal["none", "error", "hang"] = "none"
    """500 for each completion; or nothing is sent until another behaviour is set, while health checks are answered."""


def behave(url: str, behaviour: Behaviour) -> int:
    """Set the behaviour of an engine; return the number of completions that it has received."""
    sent = json.dumps(asdict(behaviour)).encode()
    with urllib.request.urlopen(f"{url}/behaviour", sent, timeout=30) as answer:  # noqa: S310
        return int(json.load(answer))


_now = Behaviour()
_received = 0
_free = asyncio.Event()
"""Not set while the engine hangs."""
_free.set()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request."""
    global _now, _received
    raw = b""
    while (message := await receive()).get("more_body"):
        raw += message["body"]
    raw += message.get("body", b"")
    if scope["path"] == "/behaviour":
        _now = Behaviour(**json.loads(raw))
        (_free.clear if _now.fault == "hang" else _free.set)()
        await _send(send, 200, b"%d" % _received)
        return
    if not scope["path"].endswith("/completions"):
        models = [{"id": MODEL, "object": "model", "owned_by": "benchmarks"}]
        known = {"object": "list", "data": models, "model_path": MODEL, "is_generation": True}
        await _send(send, 404 if scope["path"] == "/metrics" else 200, json.dumps(known).encode())
        return
    body: dict[str, Any] = json.loads(raw)
    _received += 1
    await _free.wait()
    if _now.fault == "error":
        await _send(send, 500, b'{"error":{"message":"the engine failed","type":"server_error","code":500}}')
        return
    if body.get("stream"):
        await _stream(send, _now, usage=bool((body.get("stream_options") or {}).get("include_usage")))
        return
    await asyncio.sleep(_now.tokens * _now.token_s)
    await _free.wait()
    message = {"role": "assistant", "content": "token " * _now.tokens}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    answer = {**_HEAD, "object": "chat.completion", "choices": choices, "usage": _usage(_now.tokens)}
    await _send(send, 200, json.dumps(answer).encode())


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, behaviour: Behaviour, *, usage: bool) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(behaviour.tokens):
        event = _TOKENS[number % len(_TOKENS)]
        await _free.wait()
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(behaviour.token_s)
    end = _LAST
    if usage:
        end += b"data: " + json.dumps({**_HEAD, "choices": [], "usage": _usage(behaviour.tokens)}).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": end + b"data: [DONE]\n\n"})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
