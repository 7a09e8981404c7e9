"""The gateway's metrics. Names begin with `lengthwise_`, times are in seconds, labels are bounded."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.recent_requests import Names
from lengthwise.gateway.streaming import BodyBudget
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.policies import Job
from lengthwise.predictors.service import LearningProgress, PredictionService
from lengthwise.traffic.rows import PredictionSource, RequestOutcome

# From a cache hit on an idle engine to the longest answers.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


_T_AT_95: Final = log_t.isf(0.05, TIE_NU)
_MAX_LOG: Final = 40.0  # beyond any length
_EVENTS: Final = ("asked", "answered", "quick", "late", "failed", "dropped", "hung", "observed", "learned", "unlearned")


class _State:
    """Metrics read from the dispatcher and the prediction service at each scrape."""

    def __init__(
        self, dispatcher: Dispatcher, predictor: str, predictions: PredictionService, budget: BodyBudget
    ) -> None:
        self.received = 0
        self.progress = LearningProgress(0, 0, math.nan, math.nan)
        self._budget = budget
        self._dispatcher = dispatcher
        self._predictor = predictor
        self.predictions = predictions

    def collect(self) -> Iterator[Metric]:
        dispatcher, routes, counts = self._dispatcher, self._dispatcher.routes, self.predictions.counts
        engines = dispatcher.engines
        routes.settle()
        self.predictions.learn()
        text = "Requests whose head has arrived; those that have not ended are in no lengthwise_requests_total."
        yield CounterMetricFamily("lengthwise_requests_received", text, self.received)
        held = self._budget.total - self._budget.free
        text = "Bytes of request bodies that are held; 0 without requests."
        yield GaugeMetricFamily("lengthwise_held_bytes", text, held)
        yield GaugeMetricFamily(
            "lengthwise_tasks", "Tasks of the event loop; without requests, as at the start.", len(asyncio.all_tasks())
        )
        reading, running = (
            defaultdict[str, int](int),
            defaultdict[str, int](int),
        )  # one that leaves may share its name with one that has joined
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
        if self.predictions.remembers:
            text = "Nodes of prefix memory: prefixes, sessions, tenants and templates."
            yield GaugeMetricFamily("lengthwise_prefix_memory_nodes", text, self.predictions.memory_nodes)
        answers, _, alone, learned = self.progress
        text = "Answers with a prediction that were learned from, those before a restart included."
        yield CounterMetricFamily("lengthwise_learned_answers", text, answers)
        text = (
            "Kendall's tau of predicted medians and lengths within each model, over the last 1,000 complete answers: "
            "of the predictor's model alone, and of the predictions as they were made. NaN before there are answers."
        )
        taus = {"alone": alone, "learned": learned}
        yield _gauge("lengthwise_prediction_tau", text, "predictions", taus)
        if (saver := self.predictions.saver) is not None:
            text = "Times that what is learned was saved, and that it could not be. Alert on failed."
            yield _counter("lengthwise_state_saves", text, "result", {"ok": saver.saves, "failed": saver.failures})
        works = self.predictions.works or not self.predictions.predicts
        text = "1 for the predictor in use; 0 while it hangs or after it failed for good, when history is used."
        yield _gauge("lengthwise_predictor", text, "predictor", {self._predictor: works})
        events = {event: getattr(counts, event) for event in _EVENTS}
        text = (
            "Predictions: asked = answered + failed + dropped + in progress; quick are those of `fast` in place of a "
            "predictor that cannot keep up, or where nothing depends on it. Lengths: observed, and learned from; "
            "learned also by a predictor of your own; unlearned where it raised. Alert on failed, dropped, hung and "
            "unlearned."
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


class _Registry(CollectorRegistry):
    """Metrics without the `_created` series that the client adds to counters and histograms."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class Metrics:
    """The metrics of one gateway, in a registry of its own.

    Counters and histograms are those of Prometheus's client: 6.3 us of CPU time for a request, 1.6 % of the gateway's,
    since children are kept by their labels.
    """

    def __init__(
        self, dispatcher: Dispatcher, predictor: str, predictions: PredictionService, budget: BodyBudget
    ) -> None:
        self._registry = registry = _Registry()
        self._labels: dict[str, tuple[str, ...]] = {}
        self._state = _State(dispatcher, predictor, predictions, budget)
        registry.register(self._state)
        text = f"Finished requests by outcome: {', '.join(get_args(RequestOutcome))}."
        self._ended = cache(self._counter("lengthwise_requests", text, "endpoint", "outcome").labels)
        text = "Requests by the source of their prediction when sent; under load most should be from the predictor."
        self._predicted = cache(self._counter("lengthwise_predictions", text, "source").labels)
        text = (
            "Failed calls of an engine: unreachable, broken, timeout, overdue (it hangs), refused (429, 503) and "
            "failed (500, 502) where the request is sent again, unfinished (a stream without [DONE])."
        )
        self._engine_failures = self._counter("lengthwise_engine_failures", text, "engine", "kind")
        text = (
            "Complete answers with a prediction of the predictor, by model and by where their length is: below, inside "
            "or above its 90 % interval. Inside should be 90 %; further models than 255 count as others."
        )
        self._predicted_answers = cache(self._counter("lengthwise_predicted_answers", text, "model", "interval").labels)
        self._models = Names()
        text = (
            "Requests sent to an engine once more: after unreachable, broken, refused (429, 503), failed (500, 502) or "
            "overdue (the engine hangs)."
        )
        self.retries = self._counter("lengthwise_retries", text, "reason")
        text = "Time from a request's arrival to its slot on an engine."
        self.queue_seconds = self._histogram("lengthwise_queue_seconds", text)
        text = "Time from a request's arrival to the first byte of its answer: TTFT for streams, else the whole answer."
        self.first_byte_seconds = self._histogram("lengthwise_time_to_first_byte_seconds", text, "endpoint")
        text = "Time from a request's arrival to the last byte of its answer, for every outcome."
        self.request_seconds = self._histogram("lengthwise_request_seconds", text, "endpoint")
        self.policy_changes = self._counter(
            "lengthwise_policy_changes", "Policy changes at run time, by the admin API."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._labels[name] = labels
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        self._labels[name] = labels
        return Histogram(name, text, labels, registry=self._registry, buckets=_BUCKETS)

    def ended(self, endpoint: str, outcome: RequestOutcome) -> None:
        """Count a request at its end."""
        self._ended(endpoint, outcome).inc()

    def predicted(self, source: PredictionSource) -> None:
        """Count the source of a prediction that a request was dispatched with."""
        self._predicted(source).inc()

    def answered(self, job: Job, model: str, tokens: int) -> None:
        """Count a complete answer by where its length is in the interval that was predicted."""
        reach = _T_AT_95 * job.sigma
        low, high = (math.exp(min(job.mu + side * reach, _MAX_LOG)) for side in (-1.0, 1.0))
        place = "below" if tokens < low - 0.5 else "above" if tokens > high + 0.5 else "inside"
        self._predicted_answers(self._models.names[self._models.number(model)], place).inc()

    def receive(self) -> None:
        """Count a request at its arrival; `requests` counts it at its end."""
        self._state.received += 1

    def register(self, collector: Collector) -> None:
        """Add metrics that are read at each scrape."""
        self._registry.register(collector)

    def failed(self, engine: GatewayEngine, kind: str) -> None:
        """Count a failed call."""
        self._engine_failures.labels(engine.name, kind).inc()

    def forget(self, engine: GatewayEngine) -> None:
        """Remove the counts of an engine that has left."""
        self._engine_failures.remove_by_labels({"engine": engine.name})

    def families(self) -> Iterator[tuple[str, str, list[str], str]]:
        """Yield name, type, labels and text of each metric; needs a running event loop, as a scrape does."""
        for family in self._registry.collect():
            own = self._labels.get(family.name)
            labels = list(family._labelnames if own is None else own)  # type: ignore[attr-defined]  # noqa: SLF001
            name = family.name + ("_total" if family.type == "counter" else "")
            yield name, family.type, labels, family.documentation

    async def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format; scores are computed in another thread."""
        self._state.progress = await asyncio.to_thread(self._state.predictions.progress)
        return generate_latest(self._registry)
