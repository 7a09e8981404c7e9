"""The gateway in front of a deployment, without a cluster: its handle is a stand-in that records calls."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml  # type: ignore[import-untyped]

pytest.importorskip("ray.serve", reason="Ray is not installed: pip install 'lengthwise[ray]'")

from ray.exceptions import ActorDiedError
from ray.serve.schema import ServeDeploySchema

from lengthwise.client.client import EngineTimeoutError
from lengthwise.errors import InputError
from lengthwise.gateway import create_app
from lengthwise.ray.application import ServeOptions, app
from lengthwise.ray.calls import read_job, replica_counts
from lengthwise.ray.replicas import AnswerHead, Failure, HandleClient, ReplicaLostError
from tests.gateway.engine import served
from tests.gateway.helpers import PLAIN, metric, post, until, until_waiting

Item = AnswerHead | bytes | Failure | Exception
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
MODELS = AnswerHead(200, JSON, b'{"object": "list", "data": [{"id": "llm"}]}')


class Stream:
    """Stands in for Ray Serve's generator of a call."""

    def __init__(self, items: list[Item], gate: threading.Event | None = None) -> None:
        self.items, self.gate, self.cancelled = items, gate, False

    async def __anext__(self) -> Any:
        if self.gate is not None:
            await asyncio.to_thread(self.gate.wait)
        if not self.items:
            raise StopAsyncIteration
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Stands in for a deployment's handle; `answer` gives the items of the n-th completion."""

    app_name, deployment_name = "lengthwise", "engine"

    def __init__(self, answer: Callable[[int], list[Item]], gate: threading.Event | None = None) -> None:
        self.answer, self.gate = answer, gate
        self.calls: list[tuple[bytes, tuple[str, ...]]] = []
        self.streams: list[Stream] = []
        self.forward = self

    def options(self, *, stream: bool) -> Handle:
        assert stream
        return self

    def remote(self, method: str, path: str, body: bytes, headers: object, *, avoid: tuple[str, ...]) -> Stream:
        if method == "GET":
            return Stream([MODELS])
        self.calls.append((body, avoid))
        self.streams.append(Stream(self.answer(len(self.calls) - 1), self.gate))
        return self.streams[-1]


def client(handle: Handle, silence_timeout_s: float = 5.0) -> HandleClient:
    return HandleClient(handle, "http://engine.invalid", name="engine", silence_timeout_s=silence_timeout_s)


async def fetch(handle: Handle) -> tuple[int, bytes]:
    answer = await client(handle).forward("POST", "/v1/completions", b"{}", [])
    try:
        return answer.status, await answer.read()
    finally:
        answer.close()


def test_a_request_is_sent_again_when_its_replica_dies_before_the_first_byte() -> None:
    handle = Handle(lambda n: [ActorDiedError()] if n == 0 else [AnswerHead(200, JSON, b"one"), b"two"])
    assert asyncio.run(fetch(handle)) == (200, b"onetwo")
    assert [avoid for _, avoid in handle.calls] == [(), ()]


def test_a_replica_whose_engine_failed_is_avoided() -> None:
    handle = Handle(lambda n: [Failure("broken", "a1")] if n == 0 else [AnswerHead(200, JSON, b"one")])
    assert asyncio.run(fetch(handle)) == (200, b"one")
    assert [avoid for _, avoid in handle.calls] == [(), ("a1",)]


def test_a_request_that_was_lost_twice_is_not_sent_again() -> None:
    handle = Handle(lambda _: [ActorDiedError()])
    with pytest.raises(ReplicaLostError):
        asyncio.run(fetch(handle))
    assert len(handle.calls) == 2


def test_a_request_that_timed_out_is_not_sent_again() -> None:
    handle = Handle(lambda _: [Failure("timeout", "a1")])
    with pytest.raises(EngineTimeoutError):
        asyncio.run(fetch(handle))
    assert len(handle.calls) == 1


def test_closing_an_unread_answer_cancels_the_call() -> None:
    handle = Handle(lambda _: [AnswerHead(200, EVENTS, b"data: 1\n\n"), b"data: 2\n\n"])

    async def close_early() -> None:
        answer = await client(handle).forward("POST", "/v1/completions", b"{}", [])
        await answer.chunk()
        answer.close()

    asyncio.run(close_early())
    assert handle.streams[0].cancelled


@contextmanager
def gateway(handle: Handle, **options: Any) -> Iterator[str]:
    options = {"engine": "simulated:1*llama-3-8b@a100", "gateway": {"learning": False}, **options}
    with served(create_app(ServeOptions.of(options).gateway_config, make_client=partial(HandleClient, handle))) as url:
        yield url


def test_the_prediction_of_the_ingress_reaches_router_and_replica() -> None:
    gate = threading.Event()
    handle = Handle(lambda _: [AnswerHead(200, JSON, b'{"choices": []}')], gate)

    async def send(url: str) -> None:
        async with aiohttp.ClientSession() as http:

            async def predicted() -> bool:
                return await metric(http, url, 'lengthwise_predictor_events_total{event="answered"}') == 1

            calls = [asyncio.create_task(post(http, url, {"model": "llm", "prompt": each})) for each in ("Hi.", "Why?")]
            await until(
                predicted, 60.0
            )  # the second, which waits for the first one's slot; the first needs no prediction
            gate.set()
            assert {status for status, _ in await asyncio.gather(*calls)} == {200}

    with gateway(handle, in_flight=1) as url:
        asyncio.run(send(url))
    sent, _ = handle.calls[-1]
    xargs = json.loads(sent)["vllm_xargs"]
    job = read_job("1", ("POST", "/v1/completions", sent, []))
    assert job is not None
    assert (job.mu, job.sigma) == pytest.approx((xargs["length_mu"], xargs["length_sigma"]))


def test_a_stream_that_breaks_after_its_first_byte_ends_with_an_error_event() -> None:
    handle = Handle(lambda _: [AnswerHead(200, EVENTS, b'data: {"choices": []}\n\n'), ActorDiedError()])

    async def send(url: str) -> tuple[int, bytes]:
        body = {"model": "llm", "prompt": "hello", "stream": True}
        async with aiohttp.ClientSession() as http, http.post(url + PLAIN, json=body) as response:
            return response.status, await response.read()

    with gateway(handle, predictor="none") as url:
        status, body = asyncio.run(send(url))
    assert status == 200
    assert b'"engine_broken"' in body
    assert len(handle.calls) == 1


def test_slots_are_those_of_all_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    handle = Handle(lambda _: [AnswerHead(200, JSON, b'{"choices": []}')], gate)
    monkeypatch.setitem(replica_counts, ("lengthwise", "engine"), 3)

    async def send(url: str) -> None:
        async with aiohttp.ClientSession() as http:
            calls = [asyncio.create_task(post(http, url, {"model": "llm", "prompt": "x"})) for _ in range(7)]
            await until_waiting(http, url, 1)  # two requests on each of three replicas
            gate.set()
            await asyncio.gather(*calls)

    with gateway(handle, in_flight=2, predictor="none") as url:
        asyncio.run(send(url))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replica": 1}, "replica"),
        ({"engine": "tgi"}, "give vllm, or simulated:"),
        ({"engine": "simulated:2*llama-3-8b@a100"}, "give one engine"),
        ({"router": "e3"}, "e3"),
        ({"gateway": {"polcy": "sjf"}}, "gateway.polcy"),
        ({"vllm": {"max_seqs": 1}}, "vllm.max_seqs"),
    ],
)
def test_a_wrong_argument_is_named(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        app(args)


def test_the_guides_serve_yaml_is_valid() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/cluster.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(applications:.*?)```", guide, re.DOTALL)
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(example)).applications
    assert application.import_path == "lengthwise.ray:app"
    app(application.args)


def test_the_guide_lists_every_argument() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/cluster.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in guide.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named >= ServeOptions.model_fields.keys()
