"""ASGI middleware for a stock vLLM: `--middleware benchmarks.forced_lengths.ForcedLengths`.

An LLM with random weights does not end its answers. A request with `vllm_xargs.forced_tokens` gets that many tokens:
the middleware writes the number into `max_tokens` behind whatever passed the request on, so that a gateway sees the
client's own `max_tokens` and cannot read the length from it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

FIELD: Final = "forced_tokens"


class ForcedLengths:
    """Replaces `max_tokens` of requests that name their length."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, with the forced length where it has one."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        parts = []
        while True:
            message = await receive()
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        body = forced(b"".join(parts))
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        sent = False

        async def whole() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, whole, send)


def forced(body: bytes) -> bytes:
    """Return the body with its forced length as `max_tokens`; any other body as it is."""
    if FIELD.encode() not in body:
        return body
    fields = json.loads(body)
    xargs = dict(fields.get("vllm_xargs") or {})
    fields["max_tokens"] = xargs.pop(FIELD)
    fields["vllm_xargs"] = xargs or None
    return json.dumps(fields).encode()
