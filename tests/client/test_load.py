"""The load generator sends each request when it is due, and measures its latency."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lengthwise.client.load import LoadPlan, LoadReport, request_of, run_load
from lengthwise.errors import InputError
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.workloads import Workload, load_trace
from tests.gateway.engine import RawEngine, StandIn, free_port, served


def workload(arrivals: Sequence[float], lengths: Sequence[int], **columns: Any) -> Workload:
    table = {"arrival_s": arrivals, "input_tokens": [10] * len(lengths), "output_tokens": lengths, **columns}
    return Workload.from_table(table, name="test", block_size=4 if "block_hashes" in columns else None)


def load(given: Workload, url: str, **options: Any) -> LoadReport:
    report = LoadReport(len(given), LoadPlan(url, **options))
    asyncio.run(run_load(given, report, lambda: None))
    return report


def body_of(given: Workload, row: int = 0, **options: Any) -> tuple[str, dict[str, Any]]:
    path, body = request_of(given, row, "m", LoadPlan("http://h", **options))
    return path, json.loads(body)


def test_requests_are_sent_when_due_whether_or_not_earlier_ones_have_finished() -> None:
    engine = StandIn(token_s=0.02)
    given = workload([100.0, 100.2, 100.4], [40, 2, 1])
    with served(engine.app()) as url:
        report = load(given, url, speed=2.0)
    assert [sample.due_s for sample in report.samples] == pytest.approx([0.0, 0.1, 0.2])
    assert all(sample.arrival_s >= sample.due_s for sample in report.samples)
    first, second, third = report.samples
    assert second.finished_s < first.finished_s
    assert third.arrival_s < first.finished_s


def test_lengths_and_latencies_are_measured() -> None:
    engine = StandIn(token_s=0.01)
    with served(engine.app()) as url:
        report = load(workload([0.0, 0.0], [10, 1]), url)
    summary = report.summary()
    assert report.model == "stand-in"
    assert [sample.output_tokens for sample in report.samples] == [10, 1]
    assert (summary.requests, report.errors, report.lengths_differ) == (2, {}, 0)
    long = report.samples[0]
    assert long.arrival_s < long.first_token_s < long.finished_s
    assert summary.tpot_s.mean == pytest.approx((long.finished_s - long.first_token_s) / 9)
    assert summary.e2e_s.p99 >= 0.1
    assert report.table().column_names[:3] == ["request", "due_s", "asked_tokens"]


def test_lengths_are_forced_unless_free_and_hints_are_sent_only_if_chosen() -> None:
    given = workload([0.0], [7], max_tokens=[50])
    path, forced = body_of(given)
    assert path == "/v1/completions"
    assert (forced["max_tokens"], forced["ignore_eos"], "nvext" in forced) == (7, True, False)
    assert len(forced["prompt"].split()) == 10
    _, free = body_of(given, free=True, hints="oracle")
    assert (free["max_tokens"], "ignore_eos" in free) == (50, False)
    assert free["nvext"] == {"agent_hints": {"osl": 7}}


def test_a_request_is_sent_with_its_class_and_limits() -> None:
    columns = {"request_class": ["chat", None], "ttft_limit_s": [1.5, None], "e2e_limit_s": [None, 30.0]}
    given = workload([0.0, 0.0], [7, 7], **columns)
    extras = [{"vllm_xargs": {"other": 1}}] * 2
    assert body_of(given, extras=extras)[1]["vllm_xargs"] == {"other": 1, "request_class": "chat", "ttft_s": 1.5}
    assert body_of(given, 1)[1]["vllm_xargs"] == {"slo_s": 30.0}
    assert "vllm_xargs" not in body_of(workload([0.0], [7]))[1]


def test_attainment_counts_a_requests_own_limits_and_the_given_ones_for_the_rest() -> None:
    given = workload([0.0, 0.0, 0.0], [2, 2, 2], ttft_limit_s=[1e-9, 1e9, None])
    engine = StandIn()
    with served(engine.app()) as url:
        report = load(given, url)
    none, strict = LatencyLimits.given(None, None, None, None), LatencyLimits.given(1e-9, None, None, None)
    assert report.within(none) == pytest.approx(2 / 3)
    assert report.within(strict) == pytest.approx(1 / 3)
    assert report.table()["ttft_limit_s"].to_pylist() == [1e-9, 1e9, None]
    assert sorted(body.get("vllm_xargs", {}).get("ttft_s", 0.0) for body in engine.bodies) == [0.0, 1e-9, 1e9]


def test_a_prompt_with_text_is_sent_as_a_chat() -> None:
    path, body = body_of(workload([0.0], [7], prompt=["why?"]))
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "why?"}]


def test_synthetic_prompts_share_the_prefixes_of_the_workload() -> None:
    given = workload([0.0, 0.0, 0.0], [1, 1, 1], block_hashes=[[5, 6], [5, 7], [8, 6]])
    words = [body_of(given, row)[1]["prompt"].split() for row in range(3)]
    assert words[0][:4] == words[1][:4] != words[2][:4]
    assert words[0][4:8] != words[1][4:8]
    assert words[0][8:] != words[1][8:] or words[0][8:] != words[2][8:]


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (b'data: {"choices":[{"text":"a"}]}\n\n', "truncated"),
        (b'data: {"error":{"message":"no"}}\n\n', "stream_error"),
        (b"data: {oops\n\n", "malformed"),
        (b"data: 5\n\n", "malformed"),
        (b"data: [DONE]\n\n", "empty"),
    ],
)
def test_an_incomplete_stream_is_an_error_of_its_kind(stream: bytes, kind: str) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    with RawEngine(head + stream) as engine:
        engine.models = b'{"data": [{"id": "m"}]}'
        report = load(workload([0.0], [1]), engine.url)
    assert report.errors == {kind: 1}
    assert report.summary().requests == 0


def test_refusals_are_counted_by_status() -> None:
    with served(StandIn(mode="refuse").app()) as url:
        assert load(workload([0.0, 0.0], [1, 2]), url).errors == {"http_400": 2}


def test_an_answer_of_another_length_is_counted() -> None:
    tokens = b'data: {"choices":[{"text":"a"}]}\n\n' * 3 + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    with RawEngine(head + tokens) as engine:
        engine.models = b'{"data": [{"id": "m"}]}'
        report = load(workload([0.0, 0.0], [3, 4]), engine.url)
    assert [sample.output_tokens for sample in report.samples] == [3, 3]
    assert report.lengths_differ == 1


def test_an_endpoint_that_cannot_be_reached_is_reported_before_any_request() -> None:
    with pytest.raises(InputError, match="cannot be reached"):
        load(workload([0.0], [1]), f"http://127.0.0.1:{free_port()}")


@pytest.mark.parametrize("options", [{"speed": 0.0}, {"speed": float("nan")}, {"timeout_s": -1.0}])
def test_an_invalid_plan_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError):
        LoadPlan("http://h", **options)  # type: ignore[arg-type]


def test_hidden_lengths_are_no_cap_and_reach_simulated_engines_only() -> None:
    workload = load_trace("azure_sample").head(1)
    plan = LoadPlan("http://127.0.0.1:1", hide_lengths=True)
    _, raw = request_of(workload, 0, "m", plan)
    sent = json.loads(raw)
    assert sent["max_tokens"] == workload.table["max_tokens"][0].as_py()
    assert sent["vllm_xargs"]["simulated_tokens"] == int(workload.output_tokens[0])
    assert "ignore_eos" not in sent
