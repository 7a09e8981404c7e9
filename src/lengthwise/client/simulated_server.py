"""Simulated engines over HTTP: requests and answers as vLLM's server has them, and the process that serves them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Self

import numpy as np
import uvicorn
import xxhash

from lengthwise.client.kind import MARKER, xargs_prediction
from lengthwise.client.request_classes import xargs_limits, xargs_priority
from lengthwise.errors import InputError
from lengthwise.policies import Job
from lengthwise.predictors.contract import render_chat
from lengthwise.prefixes import BYTES_PER_TOKEN, hash_text, hash_tokens
from lengthwise.processes import die_with_parent, end_process
from lengthwise.simulator.live import Generation, LiveEngine, SimulatedFleet, SimulatedOptions

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_WORDS: Final = tuple(
    "the of and to in is that for it was on are as with his they at be this have from or one had by word but not what "  # noqa: SIM905
    "all were we when your can said there use an each which she do how their if will up other about out many then them "
    "these so some her would make like".split()
)
_COMPLETION_TOKENS: Final = 16  # OpenAI's default of /v1/completions
_FILES: Final = 1 << 16
_READY_S: Final = 120.0


class _BadRequestError(Exception):
    def __init__(self, message: str, status: int = 400, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class _Question:
    """A validated request: its job, the length of its answer, and how it is answered."""

    job: Job
    tokens: int
    stop: bool
    stream: bool
    usage: bool
    describe: bool
    chat: bool
    first_word: int

    @classmethod
    def of(cls, raw: bytes, engine: LiveEngine, *, chat: bool) -> _Question:
        body = _json(raw)
        if body.get("model") not in (None, "", engine.model):
            message = f"The model `{str(body['model'])[:100]}` does not exist."
            raise _BadRequestError(message, 404, "model_not_found")
        if body.get("n") not in (None, 1):
            raise _BadRequestError("n: a simulated engine gives one answer")
        text, prompt_tokens, blocks = _prompt(body, chat=chat)
        xargs = body.get("vllm_xargs") or {}
        if not isinstance(xargs, dict):
            raise _BadRequestError("vllm_xargs: give an object")
        limit = _limit(body, engine.context - prompt_tokens, chat=chat)
        digest = xxhash.xxh3_64_intdigest(text, engine.options.seed & 0xFFFFFFFF)
        tokens = _length(body, xargs, limit, digest, engine.options)
        options = body.get("stream_options") or {}
        job = Job(
            "", 0.0, prompt_tokens=prompt_tokens, blocks=blocks, max_tokens=limit,
            prediction=xargs_prediction(xargs, limit), priority=_whole(body.get("priority") or 0, "priority"),
        )  # fmt: skip
        job.use_limits(**xargs_limits(xargs))
        priority, _ = xargs_priority(xargs, {})
        job.priority = job.priority if priority is None else priority
        return cls(
            job, min(tokens, limit), tokens < limit, bool(body.get("stream")),
            isinstance(options, dict) and bool(options.get("include_usage")), MARKER in xargs, chat,
            digest % len(_WORDS),
        )  # fmt: skip

    def text(self, begin: int, end: int) -> str:
        """Return the words of some tokens of the answer."""
        words = len(_WORDS)
        return "".join(f" {_WORDS[(self.first_word + 7 * number) % words]}" for number in range(begin, end))


def _json(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise _BadRequestError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise _BadRequestError("the body must be a JSON object")
    return body


def _prompt(body: dict[str, Any], *, chat: bool) -> tuple[bytes, int, Sequence[int]]:
    """Return the prompt's bytes, its tokens and its block hashes."""
    try:
        if chat:
            text = render_chat(body["messages"], body.get("tools") or ())
        else:
            given = body["prompt"]
            given = given[0] if isinstance(given, list) and len(given) == 1 and not isinstance(given[0], int) else given
            if isinstance(given, list):
                return repr(given).encode(), max(1, len(given)), hash_tokens(given).tolist()
            text = given
        raw = text.encode()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        name = "messages" if chat else "prompt"
        raise _BadRequestError(f"{name}: missing, or not of the form that the API documents") from error
    return raw, max(1, len(raw) // BYTES_PER_TOKEN), hash_text(text).tolist()


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadRequestError(f"{name}: give a whole number")
    return value


def _limit(body: dict[str, Any], left: int, *, chat: bool) -> int:
    given = body.get("max_completion_tokens")
    given = body.get("max_tokens") if given is None else given
    limit = _whole(given, "max_tokens") if given is not None else min(left, left if chat else _COMPLETION_TOKENS)
    if limit < 1 <= left:
        raise _BadRequestError("max_tokens: at least 1")
    if limit > left or left < 1:
        raise _BadRequestError("prompt and max_tokens exceed the maximum context length", code="context_length")
    return limit


def _length(body: dict[str, Any], xargs: dict[str, Any], limit: int, digest: int, options: SimulatedOptions) -> int:
    if "simulated_tokens" in xargs:
        return max(1, _whole(xargs["simulated_tokens"], "vllm_xargs.simulated_tokens"))
    if body.get("ignore_eos"):
        return limit
    normal = np.random.default_rng(digest).standard_normal()
    return max(1, round(options.median_tokens * math.exp(options.sigma * float(normal))))


class SimulatedApp:
    """The engines as one ASGI application; the port of a request selects its engine."""

    def __init__(self, engines: Sequence[LiveEngine], ports: Sequence[int]) -> None:
        self._engines = dict(zip(ports, engines, strict=True))
        self._ids = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        engine = self._engines[scope["server"][1]]
        path = scope["path"]
        if path in ("/v1/chat/completions", "/v1/completions") and scope["method"] == "POST":
            await self._complete(engine, receive, send, chat="chat" in path)
        elif path == "/metrics":
            await _send_all(send, engine.metrics().encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")
        elif path == "/health":
            await _send_all(send, b"")
        elif path == "/version":
            await _send_json(send, {"version": "simulated"})
        elif path == "/v1/models":
            model = {"id": engine.model, "object": "model", "owned_by": "lengthwise", "max_model_len": engine.context}
            await _send_json(send, {"object": "list", "data": [model]})
        else:
            await _send_error(send, _BadRequestError(f"there is no {path[:100]}", 404, "not_found"))

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        tasks = [asyncio.create_task(engine.run()) for engine in self._engines.values()]
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await send({"type": "lifespan.shutdown.complete"})

    async def _complete(self, engine: LiveEngine, receive: Receive, send: Send, *, chat: bool) -> None:
        raw = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            question = _Question.of(bytes(raw), engine, chat=chat)
        except _BadRequestError as error:
            await _send_error(send, error)
            return
        generation = engine.start(question.job, question.tokens, stop=question.stop, streams=question.stream)
        left = asyncio.ensure_future(receive())
        left.add_done_callback(lambda _: engine.abort(generation))
        try:
            await self._answer(engine, question, generation, send)
        finally:
            left.cancel()
            engine.abort(generation)

    async def _answer(self, engine: LiveEngine, question: _Question, generation: Generation, send: Send) -> None:
        kind = "chat.completion" if question.chat else "text_completion"
        head: dict[str, Any] = {
            "id": f"{'chatcmpl' if question.chat else 'cmpl'}-{engine.number}-{next(self._ids)}",
            "object": f"{kind}.chunk" if question.chat and question.stream else kind,
            "created": int(time.time()),
            "model": engine.model,
        }
        if question.stream:
            await self._stream(question, generation, head, send)
            return
        await generation.news.wait()
        if generation.aborted:
            return
        text = question.text(0, generation.visible)
        part = {"message": {"role": "assistant", "content": text}} if question.chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": _reason(generation)}
        answer = {**head, "choices": [choice], "usage": _usage(question, generation)}
        if question.describe and (described := engine.describe()) is not None:
            answer["kv_transfer_params"] = {MARKER: described}
        await _send_json(send, answer)

    async def _stream(self, question: _Question, generation: Generation, head: dict[str, Any], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", _EVENTS)]})
        opening = b"data: " + json.dumps(head)[:-1].encode() + b', "choices": '
        sent = 0
        ended = False
        while not ended:
            await generation.news.wait()
            generation.news.clear()
            if generation.aborted:
                return
            ended = generation.ended
            text, sent = question.text(sent, generation.visible), generation.visible
            part = f'"delta": {{"role": "assistant", "content": "{text}"}}' if question.chat else f'"text": "{text}"'
            reason = f'"{_reason(generation)}"' if ended else "null"
            event = opening + f'[{{"index": 0, {part}, "finish_reason": {reason}}}]}}\n\n'.encode()
            if ended:
                if question.usage:
                    usage = json.dumps(_usage(question, generation)).encode()
                    event += opening + b'[], "usage": ' + usage + b"}\n\n"
                event += b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": not ended})


_EVENTS: Final = b"text/event-stream; charset=utf-8"


def _reason(generation: Generation) -> str:
    return "stop" if generation.stop else "length"


def _usage(question: _Question, generation: Generation) -> dict[str, Any]:
    prompt = question.job.prompt_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generation.visible,
        "total_tokens": prompt + generation.visible,
        "prompt_tokens_details": {"cached_tokens": question.job.cached_tokens},
    }


async def _send_all(send: Send, body: bytes, status: int = 200, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_json(send: Send, content: dict[str, Any], status: int = 200) -> None:
    await _send_all(send, json.dumps(content).encode(), status)


async def _send_error(send: Send, error: _BadRequestError) -> None:
    kind = "NotFoundError" if error.status == 404 else "BadRequestError"
    content = {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}
    await _send_json(send, content, error.status)


def listen(engines: int, host: str = "127.0.0.1", port: int = 0) -> list[socket.socket]:
    """Return one listening socket for each engine: `port` and the ones after it, or any free ports."""
    made: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        for number in range(engines):
            wanted = port + number if port else 0
            try:
                sock = socket.create_server((host, wanted), backlog=2048)
            except (OSError, OverflowError) as error:
                raise InputError(
                    f"cannot listen on {host} port {wanted}: {error}", hint="choose another port"
                ) from error
            made.append(stack.enter_context(contextlib.closing(sock)))
        stack.pop_all()
    return made


def serve_engines(fleet: SimulatedFleet, sockets: Sequence[socket.socket]) -> None:
    """Serve until SIGINT or SIGTERM."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    engines = [LiveEngine(spec, fleet.options, number) for number, spec in enumerate(fleet.engines)]
    app: Any = SimulatedApp(engines, [sock.getsockname()[1] for sock in sockets])
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, ws="none", lifespan="on", server_header=False, date_header=False,
        proxy_headers=False, timeout_keep_alive=75, timeout_graceful_shutdown=1,
    )  # fmt: skip
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=list(sockets))


class SimulatedEngines:
    """A process of simulated engines on free loopback ports: `with SimulatedEngines(spec) as engines: engines.urls`."""

    def __init__(self, text: str) -> None:
        self.fleet = SimulatedFleet.parse(text)
        self.urls: list[str] = []
        self._text = text
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        sockets = listen(len(self.fleet.engines))
        files = [sock.fileno() for sock in sockets]
        self.urls = [f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
        command = [sys.executable, "-m", "lengthwise.client.simulated_server", self._text, *map(str, files)]
        self._process = subprocess.Popen(  # noqa: S603  (our own command line)
            command, stdin=subprocess.DEVNULL, pass_fds=files, start_new_session=True, preexec_fn=die_with_parent
        )
        for sock in sockets:
            sock.close()
        try:
            # The sockets listen already: this waits until the child answers, and fails once it has died.
            urllib.request.urlopen(self.urls[0] + "/health", timeout=_READY_S).close()  # noqa: S310
        except (urllib.error.URLError, OSError) as error:
            self.__exit__()
            raise InputError("the simulated engines did not start", source=self._text) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end_process(self._process)
            self._process = None


if __name__ == "__main__":
    serve_engines(SimulatedFleet.parse(sys.argv[1]), [socket.socket(fileno=int(file)) for file in sys.argv[2:]])
