"""The row of a request that the gateway has served, and the metrics of the log that holds it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from lengthwise.gateway.access_log import shortened
from lengthwise.gateway.types import Call
from lengthwise.lengths import LogT
from lengthwise.predictors.prediction_worker import Counts
from lengthwise.predictors.service import PredictionTrace
from lengthwise.prefixes import Scopes
from lengthwise.traffic.log import MAX_BLOCKS, PredictorCounts, TrafficLog, kept_text
from lengthwise.traffic.rows import RequestRow


def request_row(
    call: Call, trace: PredictionTrace, scopes: Scopes | None, now: float, *, policy: str, keep_prompt: bool
) -> RequestRow:
    """Return the row of a request that ends now, by the dispatcher's clock; its times are seconds since 1970.

    `scopes` are its scopes under the log's key.
    """
    job, meter, body = call.job, call.meter, call.body
    limits = job.limits
    since_1970 = time.time() - now
    tokens, censored = (meter.length if body.one_answer else None) or (None, False)
    counted = tokens is None or not meter.reported
    if tokens is None and body.one_answer:
        tokens = meter.counted
    outcome = call.outcome
    if outcome is None:  # clients may close the connection at the last event
        outcome = "ok" if meter.done or meter.finish_reason is not None else "cancelled"
    mu, sigma = _pair(trace.prediction)
    if mu is None and call.source != "prior":
        mu, sigma = job.mu, job.sigma
    predictor_mu, predictor_sigma = _pair(trace.text)
    text = body.text_or_none() if keep_prompt else None
    return RequestRow(
        arrival_s=job.arrival + since_1970,
        started_s=None if job.started is None else job.started + since_1970,
        first_token_s=None if call.ttft_s is None or job.started is None else job.started + call.ttft_s + since_1970,
        finished_s=now + since_1970,
        outcome=outcome,
        finish_reason=meter.finish_reason,
        censored=censored,
        request_id=shortened(call.request_id.decode("latin-1")),
        tenant=call.tenant,
        request_class=job.request_class,
        llm=shortened(body.llm),
        engine=call.engine,
        policy=policy,
        input_tokens=meter.prompt_tokens,
        input_bytes=len(call.raw),
        output_tokens=tokens,
        counted=counted and tokens is not None,
        one_answer=body.one_answer,
        max_tokens=job.max_tokens,
        ttft_limit_s=limits.get("ttft_limit_s"),
        per_token_limit_s=limits.get("per_token_limit_s"),
        e2e_limit_s=limits.get("e2e_limit_s"),
        thinking=body.switch,
        resubmissions=len(call.refused_by),
        source=call.source,
        predictor=trace.predictor,
        mu=mu,
        sigma=sigma,
        predictor_mu=predictor_mu,
        predictor_sigma=predictor_sigma,
        history_mu=trace.history.mu,
        history_sigma=trace.history.sigma,
        names="" if scopes is None else scopes.names.tobytes().hex(),
        blocks="" if scopes is None else scopes.blocks[:MAX_BLOCKS].tobytes().hex(),
        text=None if text is None else kept_text(text),
    )


def _pair(prediction: LogT | None) -> tuple[float | None, float | None]:
    return (None, None) if prediction is None else (prediction.mu, prediction.sigma)


def predictor_counts(counts: Counts) -> PredictorCounts:
    """Return the counts of the predictor as they are logged."""
    age_s = counts.age_s / max(1, counts.answered)
    return PredictorCounts(counts.asked, counts.answered, counts.failed, counts.dropped, counts.cpu_s, age_s)


class TrafficLogMetrics:
    """The counters of a traffic log."""

    def __init__(self, log: TrafficLog) -> None:
        self._log = log

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        yield CounterMetricFamily("lengthwise_traffic_log_rows", "Rows written to the traffic log.", self._log.written)
        text = "Rows of the traffic log that were dropped because the disk is too slow or full."
        yield CounterMetricFamily("lengthwise_traffic_log_dropped", text, self._log.dropped)
