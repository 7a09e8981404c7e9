"""One request on its ASGI channel: read its body, pass the answer on, measure it, detect a disconnect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pydantic_core import from_json
from starlette.types import Receive, Scope, Send

from lengthwise.client.client import EngineError, EngineResponse
from lengthwise.client.sse import EVENT_ENDS, EventReader, count_events, is_done, payload
from lengthwise.gateway.access_log import RECORD
from lengthwise.gateway.errors import ApiError, ErrorFormat, from_engine

_REASON: Final = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
# A JSON string holds no bare quotes, so an answer that mentions this field does not match.
_WHOLE: Final = frozenset({b"stop", b"tool_calls", b"function_call"})
_MAX_TOKENS: Final = 1 << 31  # no answer is that long; a larger count is not used


class AnswerMeter:
    """Measures the length of one answer. With `hide_usage` the usage event is removed from the client's stream.

    Nothing that an engine sends raises here: what cannot be read is not measured.
    """

    def __init__(self, *, hide_usage: bool = False) -> None:
        self._hide_usage = hide_usage
        self._hid = False
        self._tokens: int | None = None
        self._prompt: int | None = None
        self._reasons: list[bytes] = []
        self._events = 0
        self._streams = False
        self.done = False
        """Whether a stream has sent its last event, `[DONE]` here."""

    @property
    def next_event(self) -> int:
        """The sequence number of the event after the last, in an API that numbers its events."""
        return 0

    @property
    def length(self) -> tuple[int, bool] | None:
        """Tokens, and whether the answer is censored; None if unknown.

        A stream that broke off has at least as many tokens as events, less the first, which only opens it.
        """
        if self._tokens is not None and len(self._reasons) == 1:
            return self._tokens, self._reasons[0] not in _WHOLE
        if self._streams and not self._reasons and self._events > 1:
            return self._events - 1, True
        return None

    @property
    def finish_reason(self) -> str | None:
        """Why the only answer ended, if the engine reports it."""
        return self._reasons[0].decode("latin-1") if len(self._reasons) == 1 else None

    @property
    def reported(self) -> bool:
        """Whether the engine reported the tokens."""
        return self._tokens is not None

    @property
    def tokens(self) -> int | None:
        """Tokens of the answer, reported or counted; None if unknown."""
        return self.counted if self._tokens is None else self._tokens

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, if the engine reports them."""
        return self._prompt

    @property
    def counted(self) -> int | None:
        """Tokens by the count of a stream's events, about one each, if the engine does not report them."""
        return max(1, self._events - 1) if self._streams and self._events > 1 else None

    def whole(self, body: bytes) -> bytes:
        """Measure an answer in one piece; return what the client receives."""
        self._reasons += _REASON.findall(body)
        self._read(_usage_event(body))
        return body

    def lines(self, lines: bytes) -> bytes:
        """Measure complete lines of a stream; return those that the client receives."""
        self._streams = True
        self._events += count_events(lines)
        if is_done(lines):
            self.done = True
        if b'"finish_reason"' in lines:
            self._reasons += _REASON.findall(lines)
        if self._hid or b'"usage"' in lines:
            return b"".join(line for line in lines.splitlines(keepends=True) if not self._hides(line))
        return lines

    def _hides(self, line: bytes) -> bool:
        """Read the usage; whether the line is the event that only reports it, or the blank line that ends it."""
        hid, self._hid = self._hid, False
        if hid and not line.strip():
            return True
        event = _usage_event(payload(line) or b"")
        self._read(event)
        self._hid = self._hide_usage and bool(event) and event.get("choices") == []
        return self._hid

    def _read(self, event: dict[str, Any]) -> None:
        if event:
            self._tokens = count_tokens(event["usage"], "completion_tokens", self._tokens)
            self._prompt = count_tokens(event["usage"], "prompt_tokens", self._prompt)


def _usage_event(data: bytes) -> dict[str, Any]:
    """Return a JSON object with a usage; empty if it is none."""
    try:
        event = from_json(data) if b'"usage"' in data else None
    except ValueError:
        return {}
    return event if isinstance(event, dict) and isinstance(event.get("usage"), dict) and event["usage"] else {}


def count_tokens(usage: dict[str, Any], name: str, otherwise: int | None) -> int | None:
    """Return a count of a usage; `otherwise` where it is missing or no count."""
    value = usage.get(name)
    return value if type(value) is int and 0 <= value <= _MAX_TOKENS else otherwise


# Headers of one connection, not of the request (RFC 9110, 7.6.1).
_CONNECTION: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host content-length expect".split()
)
_OWN: Final = _CONNECTION | frozenset(b"content-type date server x-request-id".split())
"""And the headers that each side sets itself."""
_OF_CLIENT: Final = _OWN | {b"accept-encoding"}
"""And those of a completion that the engine does not receive: a compressed answer could not be measured."""
_OF_ENGINE: Final = _OWN - {b"content-type"}
"""Those of an answer that the client does not receive."""


def _with_hop_by_hop(names: frozenset[bytes], headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names and those that `Connection` lists: they belong to one connection too."""
    for name, value in headers:
        if name == b"connection":
            names |= frozenset(listed.strip() for listed in value.lower().split(b","))
    return names


CONNECTION: Final = "lengthwise.connection"
"""ASGI extension of our server: the `ClientConnection` of a request."""
_HELD_APART: Final = 1 << 16  # bytes; a larger answer in one piece counts towards those that are held
_AHEAD_STEP: Final = 1 << 18  # bytes by which more of a stream may be unread
_MAX_AHEAD: Final = 1 << 22  # bytes of a stream that may be unread while its engine generates on: about 16,000 tokens


_READERS: Final = 2  # threads; most of their work leaves the interpreter to the event loop
_MAX_UNREAD: Final = 64
Result = TypeVar("Result")


class ClientConnection(Protocol):
    """What our server's connection of a client can do beyond ASGI."""

    on_disconnect: set[Callable[[], None]]
    """Functions that it calls when the client disconnects."""
    behind: bool
    """Whether the client has not read what was sent."""

    @property
    def unread(self) -> int:
        """Bytes that it has not read."""

    def send_whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send status, headers and body at once; False if it cannot."""

    def send_part(self, data: bytes, *, last: bool) -> bool:
        """Send a part of an answer that has begun; False if it cannot."""

    async def catch_up(self, unread: int) -> None:
        """Wait until at most `unread` bytes are unread."""

    async def all_read(self) -> None:
        """Wait until the client has read what was sent."""


class ClientGoneError(Exception):
    """The client has disconnected."""


class BodyBudget:
    """The bytes of bodies and answers that the gateway may hold at once, and the threads that read large bodies.

    One large body of a tenant is read at a time, and `_READERS` of all; at most `_MAX_UNREAD` of a tenant wait for it.
    """

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self._unread: dict[str, tuple[asyncio.Lock, int]] = {}
        self._threads = ThreadPoolExecutor(_READERS, "bodies")

    def take(self, size: int) -> None:
        """Take bytes; ApiError 503 if they do not fit."""
        if size > self.free:
            message = "too many bytes of requests and answers are held; try again later"
            raise ApiError(503, message, code="bodies_full")
        self.free -= size

    async def read(self, tenant: str, work: Callable[[], Result]) -> Result:
        """Return the result of `work` on a large body, in a thread; ApiError 503 if too many of the tenant wait."""
        turn, waiting = self._unread.get(tenant) or (asyncio.Lock(), 0)
        if waiting > _MAX_UNREAD:
            raise ApiError(503, "too many large bodies wait to be read; try again later", code="bodies_full")
        self._unread[tenant] = turn, waiting + 1
        try:
            async with turn:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            waiting = self._unread[tenant][1] - 1
            if waiting:
                self._unread[tenant] = turn, waiting
            else:
                del self._unread[tenant]


class RateLimits(Protocol):
    """The limits that a request counts against."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """`x-ratelimit-*`: what is left of them."""


class Caller:
    """The client's end of one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: RateLimits | None = None) -> None:
        """With `limits`, the answer shows what is left of them."""
        self._limits = limits
        self._record: dict[str, Any] | None = scope.get(RECORD)
        self._receive = receive
        self._send = send
        # A task that waits for the disconnect, as with other servers, would cost more than all else here.
        self.connection: ClientConnection | None = (scope.get("extensions") or {}).get(CONNECTION)
        self._headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.headers = dict(self._headers)
        """The last value of each header."""
        query: bytes = scope["query_string"]
        self.query = f"?{query.decode('latin-1')}" if query else ""
        self.extra_headers: list[tuple[bytes, bytes]] = []  # of the answer, beside the engine's
        self.answered = False  # the head of an answer has been sent
        self.held_bytes = 0  # of the body, and of what its client has not read of the answer, taken from a budget
        self._budget: BodyBudget | None = None
        self._spare = 0  # bytes that may be unread while the engine generates on
        self.streams = False  # the answer is a stream of events
        self.error_format: ErrorFormat = "openai"
        self.meter: AnswerMeter | None = None  # of the stream
        self.task: asyncio.Task[Any] | None = None
        """The task that serves the request, while its client is present."""
        self._event_ended = True
        self._ended = False

    async def body(self, limit: int, budget: BodyBudget | None = None) -> bytes:
        """Return the whole body; ApiError 413 if it is too large, 503 if `budget` has too few bytes left for it."""
        if int(self.headers.get(b"content-length", b"0")) > limit:
            raise _too_large(limit)
        self._budget = budget
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            if budget is not None:
                self.hold(len(parts[-1]), budget)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def hold(self, size: int, budget: BodyBudget) -> None:
        """Count bytes that are held beside the body; ApiError 503 if they do not fit."""
        budget.take(size)
        self.held_bytes += size

    def forwarded_headers(self, request_id: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Return the client's headers for the engine: Authorization, traceparent and all others, repeated ones too.

        Only those of the connection are left out; with `request_id` also `Accept-Encoding` and those that the gateway
        sets itself.
        """
        left_out = _with_hop_by_hop(_CONNECTION if request_id is None else _OF_CLIENT, self._headers)
        headers = [pair for pair in self._headers if pair[0] not in left_out]
        if request_id is not None:
            headers += [(b"x-request-id", request_id), (b"content-type", b"application/json")]
        return headers

    def present(self) -> _Presence:
        """Cancel the block when the client disconnects, and raise ClientGoneError."""
        return _Presence(self)

    @property
    def ended(self) -> bool:
        """Whether the last byte of the answer has been sent, and all but little of it read."""
        return self._ended and (self.connection is None or not self.connection.behind)

    def watch(self, leave: Callable[[], None]) -> Callable[[], object]:
        """Call `leave` when the client disconnects, until the function that is returned is called."""
        if self.connection is not None:
            watching = self.connection.on_disconnect
            watching.add(leave)
            return partial(watching.discard, leave)

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            leave()

        return asyncio.create_task(watch()).cancel

    @property
    def logged(self) -> bool:
        """Whether the request has a line in the access log."""
        return self._record is not None

    def log(self, **fields: str | float | None) -> None:
        """Add to the request's line in the access log."""
        if self._record is not None:
            self._record.update(fields)

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send the head of the answer."""
        self.answered = True
        await self._send({"type": "http.response.start", "status": status, "headers": self._with_own(headers)})

    def _with_own(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer with those that the gateway adds."""
        sent = [*headers, *self.extra_headers]
        if self._limits is not None and (limits := self._limits.headers):
            sent = [pair for pair in sent if not pair[0].startswith(b"x-ratelimit-")] + limits
        return sent

    async def answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send an answer in one piece."""
        sent = [*headers, (b"content-length", b"%d" % len(body))]
        if len(body) > _HELD_APART and self._budget is not None:
            self.hold(len(body), self._budget)
        # The access log notes the messages of an answer.
        connection = None if self._record is not None else self.connection
        if connection is not None and connection.send_whole(status, self._with_own(sent), body):
            self.answered = self._ended = True
        else:
            await self.start(status, sent)
            await self.write(body, last=True)

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send bytes of the answer."""
        self._ended = last
        self._event_ended = data.endswith(EVENT_ENDS)
        connection = self.connection
        if connection is None or not connection.send_part(data, last=last):
            await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        elif connection.behind and not last:
            await self._keep_pace(connection)

    async def _keep_pace(self, connection: ClientConnection) -> None:
        """Wait for a client that lags once more of its answer is unread than may be held.

        Up to that its engine generates on, so that a client that does not read holds no slot for longer than others.
        """
        while connection.behind and connection.unread > self._spare:
            if self._budget is not None and self._spare < _MAX_AHEAD and self._budget.free >= _AHEAD_STEP:
                self.hold(_AHEAD_STEP, self._budget)
                self._spare += _AHEAD_STEP
            else:
                await connection.catch_up(self._spare)

    async def end_with(self, error: ApiError, request_id: bytes | None = None) -> None:
        """End with an error: an answer where none has begun, an event in a stream."""
        if not self.answered:
            await self.fail(error, request_id)
        elif self.streams and not self._ended:
            number = 0 if self.meter is None else self.meter.next_event
            event = error.event_in(self.error_format, number)
            await self.write((b"" if self._event_ended else b"\n\n") + event, last=True)

    async def fail(self, error: ApiError, request_id: bytes | None) -> None:
        """Answer with an error."""
        response = error.response(self.error_format)
        named = [] if request_id is None else [(b"x-request-id", request_id)]
        await self.start(error.status, [*response.raw_headers, *named])
        await self.write(bytes(response.body), last=True)


class _Presence:
    """The block of `Caller.present`."""

    __slots__ = ("_caller", "_gone", "_stop_watching", "_task")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._gone = False

    def __enter__(self) -> None:
        self._task = self._caller.task = asyncio.current_task()
        self._stop_watching = self._caller.watch(self._leave)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop_watching()
        task, self._task, self._caller.task = self._task, None, None
        del self._stop_watching  # a cycle: the memory of the request would be free only after a garbage collection
        if self._gone and task is not None and kind is asyncio.CancelledError:
            task.uncancel()
            raise ClientGoneError from None

    def _leave(self) -> None:
        if self._task is not None and not self._caller.ended:  # a server also disconnects after the last byte
            self._gone = True
            self._task.cancel()


async def relay(
    answer: EngineResponse,
    caller: Caller,
    request_id: bytes | None,
    meter: AnswerMeter,
    on_first_byte: Callable[[], None],
) -> None:
    """Pass an engine's answer on and measure it: events as they arrive, anything else in one piece.

    Without `request_id` the answer keeps the engine's. An answer in one piece is read whole, so that its loss can be
    reported by a status. In a stream it is reported by an error event, and the EngineError is raised.
    """
    headers = passed_headers(answer, own_id=request_id is None)
    if request_id is not None:
        headers.append((b"x-request-id", request_id))
    if not answer.is_stream:
        body = await answer.read()
        on_first_byte()
        await caller.answer(answer.status, headers, meter.whole(body))
        return
    reader = EventReader()
    caller.streams = True
    caller.meter = meter
    try:
        while data := await answer.chunk():
            if not caller.answered:
                on_first_byte()
                await caller.start(answer.status, headers)
            # An incomplete line is held back, so that an error event after a break is never inside it.
            if (lines := reader.feed(data)) and (lines := meter.lines(lines)):
                await caller.write(lines)
    except EngineError as error:
        if caller.answered:
            await caller.end_with(from_engine(error))
        raise
    if not caller.answered:
        await caller.start(answer.status, headers)
    await caller.write(meter.lines(reader.held), last=True)


def passed_headers(answer: EngineResponse, *, own_id: bool = False) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer that the client receives; the engine's request id only with `own_id`."""
    headers = answer.raw_headers
    left_out = _with_hop_by_hop(_OF_ENGINE - {b"x-request-id"} if own_id else _OF_ENGINE, headers)
    return [pair for pair in headers if pair[0] not in left_out]


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
