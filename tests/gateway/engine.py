"""A real HTTP server that stands in for a GPU engine: it sleeps per token, and fails in the mode that a test sets.

`StandIn` runs it in a thread; `python -m tests.gateway.engine PORT [TOKEN_S]` in a process, to be killed or measured.
`RawEngine` answers with bytes of the test's choice and closes the connection: faults that a server library does not
allow.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lengthwise.client.kind import MARKER
from tests.gateway.formats import other_answer, stream_events, whole_answer

Mode = Literal["ok", "error", "unavailable", "busy", "refuse", "hang", "break"]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(done: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return as soon as `done()` is true."""
    until = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until, "the condition did not become true in time"
        time.sleep(0.002)


@contextmanager
def served(app: Any, port: int = 0) -> Iterator[str]:
    """Serve the application on a loopback port, in a thread, and yield its URL."""
    options: dict[str, Any] = {"log_level": "critical", "ws": "none", "timeout_graceful_shutdown": 1}
    with serving(uvicorn.Server(uvicorn.Config(app, **options)), port) as taken:
        yield f"http://127.0.0.1:{taken}"


@contextmanager
def serving(server: uvicorn.Server, port: int = 0) -> Iterator[int]:
    """Run a server on a loopback port, in a thread, and yield the port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield int(sock.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


@dataclass
class StandIn:
    """An engine that records its requests. The length of an answer is `max_tokens`, or that of `lengths` by user."""

    token_s: float = 0.0
    model: str = "stand-in"
    mode: Mode = "ok"
    gate: threading.Event = field(default_factory=threading.Event)
    """While it is closed, no request gets its first token."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    raw_headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    health_headers: list[dict[str, str]] = field(default_factory=list)
    finished: int = 0
    aborted: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    most_at_once: int = 0
    metrics: str | None = None
    """The text of /metrics, if any."""
    scrapes: int = 0
    owned_by: str | None = None
    """The owner of its model, by which its kind is recognised."""
    scheduler: dict[str, str] | None = None
    """Its answer to a request for its scheduler."""
    asked_kind: int = 0
    hang_after: int | None = None
    """Tokens of an answer after which it hangs."""
    hanging: int = 0
    retry_after: str | None = None
    """The retry-after header of its refusals."""
    others: list[tuple[str, str, bytes, dict[str, str]]] = field(default_factory=list)
    """Method, path, body and headers of requests to paths without tokens."""
    stored: set[str] = field(default_factory=set)
    """Ids of the answers of /v1/responses that it stores."""

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def running(self) -> int:
        """Requests that have arrived and not ended."""
        return len(self.bodies) - self.finished - self.aborted

    def names(self) -> list[str]:
        """The names of the requests, in order of arrival."""
        return [_name(body) for body in self.bodies]

    def app(self) -> Starlette:
        """The engine as an application."""
        return Starlette(
            routes=[
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/responses", self._complete, methods=["POST"]),
                Route("/v1/messages", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/{path:path}", self._other, methods=["GET", "POST", "DELETE"]),
            ]
        )

    async def _models(self, _: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": self.owned_by}]}
        )

    async def _health(self, request: Request) -> Response:
        self.health_headers.append(dict(request.headers))
        return Response(status_code=200)

    async def _metrics(self, _: Request) -> Response:
        self.scrapes += 1
        return Response(status_code=404) if self.metrics is None else Response(self.metrics)

    async def _other(self, request: Request) -> Response:
        path = request.url.path
        self.others.append((request.method, path, await request.body(), dict(request.headers)))
        if path.startswith("/v1/responses/"):
            known = path.split("/")[3] in self.stored
            return JSONResponse({"id": path.split("/")[3], "object": "response"}, 200 if known else 404)
        if path == "/v1/audio/speech":
            return StreamingResponse(iter([b"\x00\xff", b"RIFF"]), media_type="audio/mpeg")
        return JSONResponse(other_answer(path, self.model))

    async def _complete(self, request: Request) -> Response:
        raw = await request.body()
        body = json.loads(raw)
        if MARKER in (body.get("vllm_xargs") or {}):
            self.asked_kind += 1
            return JSONResponse({"choices": [], "kv_transfer_params": {MARKER: self.scheduler}})
        self.raw.append(raw)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.raw_headers.append(request.headers.raw)
        self.queries.append(request.url.query)
        self.most_at_once = max(self.most_at_once, self.running)
        if status := {"error": 500, "unavailable": 503, "busy": 429, "refuse": 400}.get(self.mode):
            self.finished += 1
            headers = None if self.retry_after is None else {"retry-after": self.retry_after}
            return JSONResponse({"error": {"message": "its own", "code": status}}, status, headers)
        most = int(body.get("max_tokens") or body.get("max_output_tokens") or 3)
        tokens = min(most, self.lengths.get(_name(body), most))
        reason = "length" if tokens == most else "stop"
        path = request.url.path
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(self._events(path, tokens, reason, usage), media_type="text/event-stream")
        try:
            for n in range(tokens):
                await self._token(request, n)
        except ConnectionAbortedError:
            self.aborted += 1
            return Response(status_code=499)
        self.finished += 1
        return JSONResponse(whole_answer(path, tokens, reason, self.model))

    async def _token(self, request: Request | None = None, n: int = 0) -> None:
        self.hanging += n == self.hang_after
        while not self.gate.is_set() or self.mode == "hang" or n == self.hang_after:
            if request is not None and await request.is_disconnected():
                raise ConnectionAbortedError
            await asyncio.sleep(0.002)
        if self.token_s:
            await asyncio.sleep(self.token_s)
            if request is not None and await request.is_disconnected():
                raise ConnectionAbortedError

    async def _events(self, path: str, tokens: int, reason: str, usage: bool) -> AsyncIterator[bytes]:
        ended = False
        opening, each, closing = stream_events(path, tokens, reason, self.model, usage=usage)
        try:
            for event in opening:
                yield event
            for n, event in enumerate(each):
                await self._token(n=n)
                if self.mode == "break" and n == 2:
                    raise ConnectionResetError("break")
                yield event
            for event in closing:
                yield event
            ended = True
        finally:
            if ended:
                self.finished += 1
            else:
                self.aborted += 1


def _name(body: dict[str, Any]) -> str:
    metadata = body.get("metadata")
    return str(body.get("user") or (metadata.get("user_id") if isinstance(metadata, dict) else None))


class RawEngine:
    """Answers /health with 200 and anything else with the same bytes, then closes the connection.

    With `swallow`, it reads a second request on each connection before that, and does not answer it: a server that
    closes an idle connection just as it is reused.
    """

    def __init__(self, reply: bytes, *, swallow: bool = False) -> None:
        self.reply = reply
        self._swallow = swallow
        self.swallowed: list[bytes] = []
        self.answered: list[bytes] = []
        self.models: bytes | None = None  # the answer to /v1/models, if it differs
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                request = _request(connection)
                self.answered.append(request)
                connection.sendall(self._reply_to(request))
                if self._swallow and request.startswith(b"POST"):
                    self.swallowed.append(_request(connection))

    def _reply_to(self, request: bytes) -> bytes:
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        if request.startswith(b"GET /health"):
            return head % 0
        if request.startswith(b"GET /v1/models") and self.models is not None:
            return head % len(self.models) + self.models
        return self.reply


def _request(connection: socket.socket) -> bytes:
    """Read a whole request: closing with unread data would reset the connection and lose the reply."""
    data = b""
    while b"\r\n\r\n" not in data and (more := connection.recv(65536)):
        data += more
    length = re.search(rb"content-length: (\d+)", data, re.IGNORECASE)
    whole = data.find(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < whole and (more := connection.recv(65536)):
        data += more
    return data


if __name__ == "__main__":
    token_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    uvicorn.run(StandIn(token_s=token_s).app(), port=int(sys.argv[1]), log_level="warning", ws="none")
