"""Step times of an endpoint over HTTP: the requests that are sent, and the steps inferred from the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from lengthwise.client.scrape import fetch_engine_facts
from lengthwise.client.step_times import StepTimesPlan, measure_step_times
from lengthwise.errors import InputError
from lengthwise.simulator.fit import fit_cost
from tests.gateway.engine import free_port, served

_METRICS = (
    "# HELP vllm:cache_config_info Information\n"
    'vllm:cache_config_info{block_size="128",enable_prefix_caching="True",engine="0",num_gpu_blocks="364"} 1.0\n'
)


@dataclass
class Endpoint:
    """Counts a word as a token, and delays each prompt and each token."""

    metrics: str = _METRICS
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/metrics", self._metrics),
            ]
        )

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": 512}]})

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(self.metrics)

    async def _complete(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.bodies.append(body)
        if self.status != 200:
            return JSONResponse({"error": "too long"}, self.status)
        return StreamingResponse(self._tokens(body), media_type="text/event-stream")

    async def _tokens(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        prompt = len(body["prompt"].split())
        await asyncio.sleep(1e-4 * prompt)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0.002)
            yield b'data: {"choices":[{"text":" x"}]}\n\n'
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"


def test_lone_prompts_and_batches_become_steps() -> None:
    endpoint, shares = Endpoint(), list[float]()
    with served(endpoint.app()) as url:
        seen = asyncio.run(
            measure_step_times(StepTimesPlan(url, longest=128, batches=(1, 3), answer=16, repeats=2), shares.append)
        )
    alone = seen.prefilling
    assert sorted(seen.prompt_tokens[alone].tolist()) == sorted([16, 32, 64, 128] * 2)
    assert (seen.prompt_pairs[alone] == seen.prompt_tokens[alone] ** 2).all()
    assert (seen.decodes[alone] == 0).all()
    assert set(seen.decodes[~alone].tolist()) == {1.0, 3.0}
    # A batch of three over prompts of 16 or 64 tokens, with a part of their 16 answer tokens.
    context = seen.context_tokens[seen.decodes == 3]
    assert all(3 * 16 < held <= 3 * 32 or 3 * 64 < held <= 3 * 80 for held in context)
    assert (seen.seconds > 0).all()
    assert fit_cost(seen).cost.decode_base > 0
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_prompts_are_new_each_time_and_answers_run_to_their_length() -> None:
    endpoint = Endpoint()
    with served(endpoint.app()) as url:
        asyncio.run(
            measure_step_times(StepTimesPlan(url, longest=64, batches=(2,), answer=8, repeats=1), lambda _: None)
        )
    prompts = [body["prompt"] for body in endpoint.bodies]
    assert len(set(prompts)) == len(prompts)
    assert all(body["ignore_eos"] and body["stream"] for body in endpoint.bodies)


def test_staggered_batches_are_only_sent_for_an_engine_that_logs_its_steps() -> None:
    plain, logged = (
        StepTimesPlan("http://x", batches=(2,), staggered=staggered).rounds() for staggered in (False, True)
    )
    assert plain == logged[: len(plain)]
    (staggered,) = logged[len(plain) :]
    assert [wait for *_, wait in staggered] == sorted({wait for *_, wait in staggered})


def test_an_endpoint_that_refuses_or_cannot_be_reached_is_named() -> None:
    with served(Endpoint(status=400).app()) as url, pytest.raises(InputError, match=r"answers 400: .*too long"):
        asyncio.run(measure_step_times(StepTimesPlan(url), lambda _: None))
    dead = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(InputError, match="cannot be reached"):
        asyncio.run(measure_step_times(StepTimesPlan(dead), lambda _: None))


@pytest.mark.parametrize("wrong", [{"longest": 8}, {"batches": ()}, {"batches": (0, 2)}])
def test_a_plan_too_small_to_measure_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="at least"):
        StepTimesPlan("http://x", **wrong)


def test_limits_are_read_from_the_endpoint_unless_given() -> None:
    with served(Endpoint().app()) as url:
        reported = asyncio.run(fetch_engine_facts(url))
        given = asyncio.run(fetch_engine_facts(url, kv_tokens=999, max_num_seqs=4, max_num_batched_tokens=512))
    assert (reported.kv_tokens, reported.block_size, reported.max_model_len, reported.model) == (
        363 * 128,
        128,
        512,
        "tiny",
    )
    assert (given.kv_tokens, given.max_num_seqs, given.max_num_batched_tokens) == (999, 4, 512)


def test_an_endpoint_that_does_not_report_its_memory_needs_the_option() -> None:
    with served(Endpoint(metrics="").app()) as url, pytest.raises(InputError, match="--kv-tokens"):
        asyncio.run(fetch_engine_facts(url))
