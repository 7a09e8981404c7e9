"""The gateway's metrics. Names begin with `lengthwise_`, times are in seconds, labels are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from lengthwise.gateway.dispatch import Dispatcher, GatewayEngine
    from lengthwise.predictors.service import PredictionService

Outcome = Literal["ok", "refused", "client_error", "engine_error", "broken_stream", "cancelled", "bug"]
Source = Literal["hint", "predictor", "history", "prior"]

# From a cache hit on an idle engine to the longest answers.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class _State:
    """Gauges read from the dispatcher at each scrape."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "lengthwise_requests_waiting", "Requests waiting in the gateway.", self._dispatcher.waiting
        )
        running = GaugeMetricFamily("lengthwise_requests_running", "Requests running on an engine.", labels=["engine"])
        up = GaugeMetricFamily("lengthwise_engine_up", "1 if the engine answers its health check.", labels=["engine"])
        for engine in self._dispatcher.engines:
            running.add_metric([engine.url], engine.in_flight)
            up.add_metric([engine.url], engine.up)
        yield running
        yield up
        policy = GaugeMetricFamily("lengthwise_policy", "1 for the policy in force.", labels=["policy"])
        policy.add_metric([self._dispatcher.policy.name], 1)
        yield policy
        yield from self._routing()

    def _routing(self) -> Iterator[Metric]:
        routes = self._dispatcher.routes
        router = GaugeMetricFamily("lengthwise_router", "1 for the router in use.", labels=["router"])
        if routes.name is not None:
            router.add_metric([routes.name], 1)
            yield router
        chosen = CounterMetricFamily("lengthwise_router_choices", "Requests routed to an engine.", labels=["engine"])
        for engine in self._dispatcher.engines:
            chosen.add_metric([engine.url], routes.decisions[engine.url])
        yield chosen
        costs = CounterMetricFamily(
            "lengthwise_router_cost", "Sum of the cost terms of the chosen engines.", labels=["term"]
        )
        for term, sum_of in routes.costs.items():
            costs.add_metric([term], sum_of)
        yield costs
        yield SummaryMetricFamily(
            "lengthwise_router_seconds",
            "Time of a routing decision.",
            count_value=routes.decisions.total(),
            sum_value=routes.seconds,
        )


class _Predictor:
    """Counts of the prediction service, read at each scrape."""

    def __init__(self, name: str, predictions: PredictionService) -> None:
        self._name = name
        self._predictions = predictions

    def collect(self) -> Iterator[Metric]:
        predictor = GaugeMetricFamily("lengthwise_predictor", "1 for the predictor in use.", labels=["predictor"])
        predictor.add_metric([self._name], 1)
        yield predictor
        counts = self._predictions.counts
        events = CounterMetricFamily(
            "lengthwise_predictor_events", "Predictions by what became of them.", labels=["event"]
        )
        for event in ("asked", "answered", "late", "failed", "dropped", "hung", "observed"):
            events.add_metric([event], getattr(counts, event))
        yield events
        yield CounterMetricFamily(
            "lengthwise_predictor_cpu_seconds", "CPU time of reading prompts and predicting.", counts.cpu_s
        )
        yield SummaryMetricFamily(
            "lengthwise_predictor_prediction_age_seconds",
            "Time from a request to its prediction.",
            count_value=counts.answered,
            sum_value=counts.age_s,
        )


class Metrics:
    """The metrics of one gateway, in a registry of its own."""

    def __init__(self, dispatcher: Dispatcher, predictor: str, predictions: PredictionService) -> None:
        self._registry = registry = CollectorRegistry()
        registry.register(_State(dispatcher))
        registry.register(_Predictor(predictor, predictions))
        self.requests = Counter(
            "lengthwise_requests", "Finished requests by outcome.", ["endpoint", "outcome"], registry=registry
        )
        self.predictions = Counter(
            "lengthwise_predictions",
            "Source of the prediction that a request was dispatched with.",
            ["source"],
            registry=registry,
        )
        self.engine_failures = Counter(
            "lengthwise_engine_failures",
            "Failed calls of an engine.",
            ["engine", "kind"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "lengthwise_queue_seconds",
            "Time from a request's arrival to its slot on an engine.",
            registry=registry,
            buckets=_BUCKETS,
        )
        self.first_byte_seconds = Histogram(
            "lengthwise_time_to_first_byte_seconds",
            "Time from a request's arrival to the first byte of its answer.",
            ["endpoint"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self.request_seconds = Histogram(
            "lengthwise_request_seconds",
            "Time from a request's arrival to the last byte of its answer.",
            ["endpoint"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self.policy_changes = Counter("lengthwise_policy_changes", "Policy changes at run time.", registry=registry)

    def failed(self, engine: GatewayEngine, kind: str) -> None:
        """Count a failed call."""
        self.engine_failures.labels(engine.url, kind).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
