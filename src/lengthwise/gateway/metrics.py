"""The gateway's metrics. Names begin with `lengthwise_`, times are in seconds, labels are bounded."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.streaming import BodyBudget
from lengthwise.gateway.types import Outcome
from lengthwise.predictors.service import PredictionService
from lengthwise.traffic.rows import PredictionSource

# From a cache hit on an idle engine to the longest answers.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


_EVENTS: Final = ("asked", "answered", "quick", "late", "failed", "dropped", "hung", "observed")


class _State:
    """Metrics read from the dispatcher and the prediction service at each scrape."""

    def __init__(
        self, dispatcher: Dispatcher, predictor: str, predictions: PredictionService, budget: BodyBudget
    ) -> None:
        self.received = 0
        self._budget = budget
        self._dispatcher = dispatcher
        self._predictor = predictor
        self._predictions = predictions

    def collect(self) -> Iterator[Metric]:
        dispatcher, routes, counts = self._dispatcher, self._dispatcher.routes, self._predictions.counts
        engines = dispatcher.engines
        routes.settle()
        self._predictions.learn()
        text = "Requests whose head has arrived; those that have not ended are in no lengthwise_requests_total."
        yield CounterMetricFamily("lengthwise_requests_received", text, self.received)
        held = self._budget.total - self._budget.free
        text = "Bytes of request bodies that are held; 0 without requests."
        yield GaugeMetricFamily("lengthwise_held_bytes", text, held)
        yield GaugeMetricFamily(
            "lengthwise_tasks", "Tasks of the event loop; without requests, as at the start.", len(asyncio.all_tasks())
        )
        reading, running = Counter[str](), Counter[str]()  # one that leaves may share its name with one that has joined
        for engine in engines:
            reading[engine.name] += engine.client.open_answers
            running[engine.name] += engine.in_flight
        yield _gauge("lengthwise_engine_answers_open", "Answers of an engine that are being read.", "engine", reading)
        text = "Requests waiting in the gateway. If it is always 0, requests queue in the engines: lower --in-flight."
        yield GaugeMetricFamily("lengthwise_requests_waiting", text, dispatcher.waiting)
        text = "Requests running on an engine; at --in-flight it is full."
        yield _gauge("lengthwise_requests_running", text, "engine", running)
        up = {engine.name: engine.up for engine in engines}
        yield _gauge("lengthwise_engine_up", "1 if the engine answers its health check. Alert on 0.", "engine", up)
        failing = {engine.name: engine.breaker.state != "closed" for engine in engines}
        text = "1 while the engine's breaker is open or half open. Alert on 1."
        yield _gauge("lengthwise_engine_breaker_open", text, "engine", failing)
        yield _gauge("lengthwise_policy", "1 for the policy in force.", "policy", {dispatcher.policy.name: 1})
        text = "Policies that raised; waiting requests continue in order of arrival until a policy is set again."
        yield CounterMetricFamily("lengthwise_policy_failures", text, dispatcher.policy_failures)
        text = "Calls of the router that raised; the request then goes to the free engine with the fewest requests."
        yield CounterMetricFamily("lengthwise_router_failures", text, routes.failures)
        if routes.name is not None:
            yield _gauge("lengthwise_router", "1 for the router in use.", "router", {routes.name: 1})
        chosen = {engine.name: routes.decisions[engine.name] for engine in engines}
        yield _counter("lengthwise_router_choices", "Requests routed to an engine.", "engine", chosen)
        text = "Sum of the cost terms of the chosen engines, in the router's unit; over choices, the mean of a request."
        yield _counter("lengthwise_router_cost", text, "term", routes.costs)
        decisions = routes.decisions.total()
        text = "Time of a routing decision."
        yield SummaryMetricFamily("lengthwise_router_seconds", text, decisions, routes.seconds)
        if (memory := self._predictions.memory) is not None:
            text = "Nodes of prefix memory: prefixes, sessions, tenants and templates."
            yield GaugeMetricFamily("lengthwise_prefix_memory_nodes", text, memory.held)
        works = self._predictions.works or not self._predictions.predicts
        text = "1 for the predictor in use; 0 while it hangs or after it failed for good, when history is used."
        yield _gauge("lengthwise_predictor", text, "predictor", {self._predictor: works})
        events = {event: getattr(counts, event) for event in _EVENTS}
        text = (
            "Predictions: asked = answered + failed + dropped + in progress; quick are those of `fast` in place of a "
            "predictor that cannot keep up, or where nothing depends on it. Alert on failed, dropped and hung."
        )
        yield _counter("lengthwise_predictor_events", text, "event", events)
        text = "CPU time of reading prompts and predicting."
        yield CounterMetricFamily("lengthwise_predictor_cpu_seconds", text, counts.cpu_s)
        text = "Time from a request to its prediction."
        yield SummaryMetricFamily("lengthwise_predictor_prediction_age_seconds", text, counts.answered, counts.age_s)


def _gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(GaugeMetricFamily(name, text, labels=[label]), values)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    return _labelled(CounterMetricFamily(name, text, labels=[label]), values)


def _labelled(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
) -> GaugeMetricFamily | CounterMetricFamily:
    for label, value in values.items():
        family.add_metric([label], value)
    return family


class _Counts:
    """A counter by labels. The gateway has one thread, so it needs no locks, which take most of the client's time."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def increment(self, *values: str) -> None:
        self._counts[values] = self._counts.get(values, 0) + 1

    def forget(self, first: str) -> None:
        self._counts = {values: count for values, count in self._counts.items() if values[0] != first}

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class Observations:
    """Times of one kind: their number up to each bound, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a time."""
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.sum_s += seconds


class _Durations:
    """A histogram of times, without locks likewise."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._observations: dict[tuple[str, ...], Observations] = {}

    def labels(self, *values: str) -> Observations:
        return self._observations.setdefault(values, Observations())

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*map(str, _BUCKETS), "+Inf"]
        for values, seen in self._observations.items():
            buckets = list(zip(bounds, accumulate(seen.counts), strict=True))
            family.add_metric(values, buckets, seen.sum_s)
        yield family


class Metrics:
    """The metrics of one gateway, in a registry of its own."""

    def __init__(
        self, dispatcher: Dispatcher, predictor: str, predictions: PredictionService, budget: BodyBudget
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._state = _State(dispatcher, predictor, predictions, budget)
        registry.register(self._state)
        text = f"Finished requests by outcome: {', '.join(get_args(Outcome))}."
        self._requests = _Counts("lengthwise_requests", text, ["endpoint", "outcome"])
        text = "Requests by the source of their prediction when sent; under load most should be from the predictor."
        self._predictions = _Counts("lengthwise_predictions", text, ["source"])
        text = "Failed calls of an engine: unreachable, broken, timeout, unfinished (a stream without [DONE])."
        self._engine_failures = _Counts("lengthwise_engine_failures", text, ["engine", "kind"])
        text = "Requests sent to an engine once more: after unreachable, broken or refused (429, 502, 503)."
        self.retries = _Counts("lengthwise_retries", text, ["reason"])
        text = "Time from a request's arrival to its slot on an engine."
        queued = _Durations("lengthwise_queue_seconds", text)
        self.queue_seconds = queued.labels()
        text = "Time from a request's arrival to the first byte of its answer: TTFT for streams, else the whole answer."
        self.first_byte_seconds = _Durations("lengthwise_time_to_first_byte_seconds", text, ["endpoint"])
        text = "Time from a request's arrival to the last byte of its answer, for every outcome."
        self.request_seconds = _Durations("lengthwise_request_seconds", text, ["endpoint"])
        self.policy_changes = _Counts("lengthwise_policy_changes", "Policy changes at run time, by the admin API.")
        counts = (self._requests, self._predictions, self._engine_failures, self.retries, self.policy_changes)
        for own in (*counts, queued, self.first_byte_seconds, self.request_seconds):
            registry.register(own)

    def ended(self, endpoint: str, outcome: Outcome) -> None:
        """Count a request at its end."""
        self._requests.increment(endpoint, outcome)

    def predicted(self, source: PredictionSource) -> None:
        """Count the source of a prediction that a request was dispatched with."""
        self._predictions.increment(source)

    def receive(self) -> None:
        """Count a request at its arrival; `requests` counts it at its end."""
        self._state.received += 1

    def register(self, collector: Collector) -> None:
        """Add metrics that are read at each scrape."""
        self._registry.register(collector)

    def failed(self, engine: GatewayEngine, kind: str) -> None:
        """Count a failed call."""
        self._engine_failures.increment(engine.name, kind)

    def forget(self, engine: GatewayEngine) -> None:
        """Remove the counts of an engine that has left."""
        self._engine_failures.forget(engine.name)

    def families(self) -> Iterator[tuple[str, str, list[str], str]]:
        """Yield name, type, labels and text of each metric; needs a running event loop, as a scrape does."""
        for family in self._registry.collect():
            labels = list(family._labelnames)  # type: ignore[attr-defined]  # noqa: SLF001
            name = family.name + ("_total" if family.type == "counter" else "")
            yield name, family.type, labels, family.documentation

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
