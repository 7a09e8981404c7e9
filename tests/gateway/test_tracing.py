"""OpenTelemetry spans of requests, received by a real collector over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lengthwise.gateway import GatewayConfig
from tests.gateway.engine import StandIn, served
from tests.gateway.helpers import PLAIN, body, gateway, until_true

collector = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
pytestmark = pytest.mark.anyio

PROMPT = "the secret words of a prompt"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> list[Any]:
    return []


@pytest.fixture
def collector_url(spans: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds between two batches
    lock = threading.Lock()

    async def traces(request: Request) -> Response:
        batch = collector.ExportTraceServiceRequest.FromString(await request.body())
        with lock:
            spans.extend(span for part in batch.resource_spans for scope in part.scope_spans for span in scope.spans)
        return Response(b"", media_type="application/x-protobuf")

    with served(Starlette(routes=[Route("/v1/traces", traces, methods=["POST"])])) as url:
        yield url


def attributes(span: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


async def test_a_span_has_genai_names_and_links_client_and_engine(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, collector_url: str, spans: list[Any]
) -> None:
    with gateway(engine_url, otlp_endpoint=collector_url, policy="sjf") as url:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        async with http.post(url + PLAIN, json=body(tokens=3, prompt=PROMPT), headers=headers) as response:
            assert response.status == 200
        await until_true(lambda: len(spans) == 1)
    span, found = spans[0], attributes(spans[0])
    assert span.name == "text_completion stand-in"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert engine.headers[-1]["traceparent"] == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.model"] == "stand-in"
    assert found["gen_ai.request.max_tokens"] == 3
    assert found["gen_ai.usage.output_tokens"] == 3
    assert found["lengthwise.policy"] == "sjf"
    assert found["lengthwise.engine"] == "engine-0"
    times = [found[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e")]
    assert times == sorted(times)
    assert [event.name for event in span.events] == ["sent to the engine", "first byte"]
    assert span.start_time_unix_nano <= span.events[0].time_unix_nano <= span.end_time_unix_nano
    assert PROMPT not in str(span)
    assert engine_url.removeprefix("http://") not in str(span)


async def test_a_failed_request_has_a_span_with_an_error(
    http: aiohttp.ClientSession, engine: StandIn, engine_url: str, collector_url: str, spans: list[Any]
) -> None:
    engine.mode = "error"
    with gateway(engine_url, otlp_endpoint=collector_url) as url:
        async with http.post(url + PLAIN, json=body()) as response:
            assert response.status >= 500
        await until_true(lambda: len(spans) == 1)
    assert spans[0].status.code == 2
    assert attributes(spans[0])["error.type"] == "engine_error"


async def test_requests_are_served_while_the_collector_is_down(http: aiohttp.ClientSession, engine_url: str) -> None:
    with gateway(engine_url, otlp_endpoint="http://127.0.0.1:1") as url:
        async with http.post(url + PLAIN, json=body()) as response:
            assert response.status == 200


def test_an_endpoint_must_be_a_url() -> None:
    with pytest.raises(ValueError, match="4318"):
        GatewayConfig.model_validate({"engines": ["http://127.0.0.1:1"], "otlp_endpoint": "nowhere"})
