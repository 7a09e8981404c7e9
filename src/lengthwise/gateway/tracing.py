"""OpenTelemetry spans of requests, under the GenAI names (extra `otel`).

One span for each completion, a child of the client's span if the request has a `traceparent`; the engine receives the
span's own, so that its spans are children in turn. Spans hold names and numbers, no prompt and no answer. They are sent
in batches by a thread of the SDK; what a slow collector does not take is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, Self

from lengthwise.errors import missing_extra
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.types import Call

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise missing_extra(error) or error from error


Header = tuple[bytes, bytes]

_OPERATIONS: Final = {"/v1/completions": "text_completion"}
_CONTEXT: Final = frozenset({b"traceparent", b"tracestate"})


class Tracing:
    """Makes the spans of requests and sends them to an OTLP endpoint (HTTP); used as a context manager.

    The SDK's variables apply too: OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER and others.
    """

    def __init__(self, endpoint: str, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._provider = TracerProvider(resource=Resource.create({"service.name": "lengthwise"}))
        url = endpoint.rstrip("/") + "/v1/traces"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("lengthwise.gateway")
        self._propagator = TraceContextTextMapPropagator()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._provider.shutdown()

    def start(self, path: str, call: Call) -> Span:
        """Start the span of a request, at its arrival."""
        job, body = call.job, call.body
        client = {name.decode(): call.caller.headers.get(name, b"").decode("latin-1") for name in _CONTEXT}
        operation = _OPERATIONS.get(path, "chat")
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "lengthwise",
            "gen_ai.request.model": body.model,
            "gen_ai.request.max_tokens": job.max_tokens,
            "lengthwise.tenant": call.tenant,
        }
        return self._tracer.start_span(
            f"{operation} {body.model or ''}".strip(),
            self._propagator.extract(client),
            SpanKind.CLIENT,
            {name: value for name, value in attributes.items() if value is not None},
            start_time=self._ns(job.arrival),
        )

    def propagated(self, headers: Iterable[Header], span: Span) -> list[Header]:
        """Return the headers for the engine, with this span as the parent of its own."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        kept = [pair for pair in headers if pair[0] not in _CONTEXT]
        return [*kept, *((name.encode(), value.encode()) for name, value in carrier.items())]

    def end(self, span: Span, call: Call) -> None:
        """End the span of a request with what is known about it."""
        job, meter = call.job, call.meter
        found: dict[str, Any] = {
            "gen_ai.response.model": job.llm,
            "gen_ai.usage.input_tokens": meter.prompt_tokens,
            "gen_ai.usage.output_tokens": meter.tokens,
            "gen_ai.latency.e2e": self._dispatcher.clock() - job.arrival,
            "gen_ai.latency.time_to_first_token": call.first_byte_s,
            "gen_ai.latency.time_in_queue": None if job.started is None else job.started - job.arrival,
            "lengthwise.engine": call.engine,
            "lengthwise.policy": self._dispatcher.policy.name,
            "lengthwise.prediction.source": call.source,
            "lengthwise.prediction.median": job.median,
            "lengthwise.retries": len(call.refused_by),
        }
        span.set_attributes({name: value for name, value in found.items() if value is not None})
        if job.started is not None:
            span.add_event("sent to the engine", timestamp=self._ns(job.started))
        if call.first_byte_s is not None:
            span.add_event("first byte", timestamp=self._ns(job.arrival + call.first_byte_s))
        if call.failed:
            span.set_attribute("error.type", "engine_error" if call.engine else "refused")
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _ns(self, clock_s: float) -> int:
        return time.time_ns() - int(1e9 * (self._dispatcher.clock() - clock_s))
