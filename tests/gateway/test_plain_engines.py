"""TGI, TensorRT-LLM, llama.cpp's server and Ollama behind the gateway, after such documentation as was at hand.

None of them runs in these tests. Each is a stand-in with its list of models, its metrics, its errors and the end of its
streams; the gateway takes each for a plain OpenAI server, adds nothing to a request, and passes on what it answers.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lengthwise.client.scrape import read_gauges
from tests.gateway.engine import served
from tests.gateway.helpers import CHAT, gateway, until, until_true

pytestmark = pytest.mark.anyio

CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def event(delta: dict[str, str], reason: str | None = None, **more: Any) -> str:
    return (
        f"data: {json.dumps({**CHUNK, 'choices': [{'index': 0, 'delta': delta, 'finish_reason': reason}], **more})}\n\n"
    )


@dataclass
class Server:
    """What a server answers, by path; `error` and `stream` to a chat."""

    name: str
    models: dict[str, Any]
    metrics: tuple[int, str]
    error: tuple[int, str]
    stream: str
    health: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> Starlette:
        async def chat(request: Request) -> Response:
            self.bodies.append(await request.json())
            if self.bodies[-1]["messages"][0]["content"] == "fail":
                return Response(self.error[1], self.error[0], media_type="application/json")
            return Response(self.stream, media_type="text/event-stream")

        def answer(status: int, text: str) -> Any:
            async def answered(_: Request) -> Response:
                return Response(text, status)

            return answered

        return Starlette(
            routes=[
                Route(CHAT, chat, methods=["POST"]),
                Route("/v1/models", answer(200, json.dumps(self.models))),
                Route("/metrics", answer(*self.metrics)),
                Route("/health", answer(self.health, "")),
            ]
        )


def model(owner: str, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": owner, **more}]}


def gauges(**values: int) -> tuple[int, str]:
    """A page of metrics."""
    named = {name.replace("__", ":"): value for name, value in values.items()}
    return 200, "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in named.items())


def error(status: int, **fields: Any) -> tuple[int, str]:
    return status, json.dumps(fields)


END = "data: [DONE]\n\n"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
TGI = Server(
    "TGI",
    model("m"),
    gauges(tgi_queue_size=4, tgi_batch_current_size=2),
    error(422, error="Input validation error: `inputs` must have less than 4096 tokens.", error_type="validation"),
    event({"role": "assistant", "content": "a"}) + event({"role": "assistant", "content": "b"}, "length") + END,
)
TENSORRT_LLM = Server(
    "TensorRT-LLM",
    model("tensorrt_llm"),
    (200, '[{"gpuMemUsage":1,"iter":7,"numActiveRequests":2}]'),
    error(400, object="error", message="unknown field", type="BadRequestError", param=None, code=400),
    event({"role": "assistant", "content": ""})
    + event({"content": "a"})
    + event({"content": "b"}, "stop")
    + f"data: {json.dumps({**CHUNK, 'choices': [], 'usage': USAGE})}\n\n"
    + END,
)
LLAMA_CPP = Server(
    "llama.cpp",
    {**model("llamacpp", meta={"n_ctx_train": 2048}), "models": [{"name": "m", "model": "m"}]},
    gauges(llamacpp__requests_processing=1, llamacpp__requests_deferred=0),
    error(400, error={"code": 400, "message": "the context size is exceeded", "type": "exceed_context_size_error"}),
    event({"role": "assistant", "content": "a"})
    + event({"content": "b"})
    + event({}, "length", timings={"predicted_n": 2})
    + END,
)
OLLAMA = Server(
    "Ollama",
    model("library"),
    (404, "404 page not found"),
    error(404, error={"message": 'model "x" not found', "type": "not_found_error", "param": None, "code": None}),
    event({"role": "assistant", "content": "a"}) + event({"role": "assistant", "content": "b"}, "stop") + END,
    health=404,
)
SERVERS = [TGI, TENSORRT_LLM, LLAMA_CPP, OLLAMA]


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
async def test_it_is_a_plain_openai_server_whose_errors_and_streams_pass_through(
    http: aiohttp.ClientSession, server: Server
) -> None:
    server.bodies.clear()
    streamed = chat("hello", stream=True, stream_options={"include_usage": True})
    with served(server.app()) as engine_url, gateway(engine_url) as url:

        async def up() -> bool:
            async with http.get(url + "/lengthwise/v1/engines") as response:
                (engine,) = (await response.json())["engines"]
            return bool(engine["kind"] == "openai" and engine["description"] == "an OpenAI server")

        await until(up)
        async with http.post(url + CHAT, json=chat("fail")) as response:
            assert (response.status, await response.text()) == server.error
        async with http.post(url + CHAT, json=streamed) as response:
            assert response.status == 200
            assert await response.text() == server.stream
        async with http.get(url + "/v1/models") as response:
            assert [each["id"] for each in (await response.json())["data"]] == ["m"]
    given = [{name for name in body if name not in chat("")} for body in server.bodies]
    assert given[0] <= {"stream", "stream_options"}
    assert given[1] <= {"stream", "stream_options"}


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_metrics_of_another_server_are_no_load_that_is_read(server: Server) -> None:
    assert read_gauges(server.metrics[1]) is None


async def test_a_server_that_generates_is_not_asked_for_its_models(http: aiohttp.ClientSession) -> None:
    """llama-cpp-python's server ends the answer that it generates when it is asked for its models."""
    asked, checks = {"idle": 0, "busy": 0}, 0
    running, done = threading.Event(), threading.Event()

    async def models(_: Request) -> Response:
        asked["busy" if running.is_set() and not done.is_set() else "idle"] += 1
        return Response(json.dumps(model("llamacpp")), media_type="application/json")

    async def generate(_: Request) -> Response:
        running.set()
        while not done.is_set():
            await asyncio.sleep(0.01)
        return Response(json.dumps({**CHUNK, "choices": [], "usage": USAGE}), media_type="application/json")

    async def health(_: Request) -> Response:
        nonlocal checks
        checks += 1
        return Response("", 404)

    routes = [Route("/v1/models", models), Route("/health", health), Route(CHAT, generate, methods=["POST"])]
    with served(Starlette(routes=routes)) as engine_url, gateway(engine_url) as url:
        answer = asyncio.create_task(status_of(http, url + CHAT))
        await until_true(running.is_set)
        before = checks
        await until_true(lambda: checks >= before + 4)
        done.set()
        assert await answer == 200
        listed = asked["idle"]
        await until_true(lambda: asked["idle"] > listed)
    assert asked["busy"] <= 1, "one may have been on its way"


async def status_of(http: aiohttp.ClientSession, url: str) -> int:
    async with http.post(url, json=chat("hello")) as response:
        await response.read()
        return response.status
