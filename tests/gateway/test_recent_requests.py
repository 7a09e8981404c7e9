"""The ring of finished requests, and latency by bucket, policy and tenant."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.gateway.recent_requests import HOUR_S, SOURCES, RecentRequests, latency_series
from lengthwise.gateway.types import Call
from lengthwise.policies import Fcfs, Job, make_policy


@dataclass
class Clocked:
    """The part of a dispatcher that the ring reads."""

    now: float = 0.0
    policy: Any = field(default_factory=Fcfs)

    def clock(self) -> float:
        return self.now


@dataclass
class Measured:
    tokens: int | None
    prompt_tokens: int | None = 10
    length: tuple[int, bool] | None = None


def ended(number: int, tokens: int | None, arrival: float, tenant: str = "a", *, failed: bool = False) -> Call:
    job = Job(str(number), arrival)
    job.started = arrival
    body = cast("Any", None)
    call = Call(job, body, b"", body, b"", cast("Any", Measured(tokens)), None, tenant=tenant, failed=failed)
    call.ttft_s = 0.5
    cast("Any", call).body = type("Body", (), {"hint": None})
    return call


@given(st.lists(st.integers(1, 4000), max_size=40), st.integers(1, 12), st.integers(0, 15))
def test_the_ring_keeps_the_last_requests_in_order(lengths: list[int], most: int, wanted: int) -> None:
    clock = Clocked()
    recent = RecentRequests(cast("Any", clock), most)
    for number, tokens in enumerate(lengths):
        clock.now += 1.0
        recent.add(ended(number, tokens, clock.now - 1.0))
    kept = min(most, wanted, len(lengths))
    assert recent.last(wanted)["output_tokens"].tolist() == lengths[len(lengths) - kept :]
    assert recent.added == len(lengths)


def test_requests_older_than_an_hour_are_not_returned() -> None:
    clock = Clocked()
    recent = RecentRequests(cast("Any", clock))
    recent.add(ended(0, 5, 0.0))
    clock.now = HOUR_S + 1.0
    recent.add(ended(1, 7, clock.now))
    assert recent.last(recent.added)["output_tokens"].tolist() == [7]


def test_failures_and_answers_without_a_length_have_no_row() -> None:
    recent = RecentRequests(cast("Any", Clocked()))
    recent.add(ended(0, None, 0.0))
    recent.add(ended(1, 3, 0.0, failed=True))
    assert (recent.added, recent.failed) == (0, 1)


def test_a_row_holds_the_prediction_and_its_source() -> None:
    recent = RecentRequests(cast("Any", Clocked()))
    call = ended(3, 5, 0.0)
    recent.add(call)
    row = recent.last(recent.added)[0]
    assert (row["request"], row["max_tokens"], SOURCES[row["source"]]) == (3, call.job.cap, "prior")
    assert row["mu"] == pytest.approx(call.job.mu, abs=1e-5)


def test_names_beyond_the_limit_share_one_number() -> None:
    recent = RecentRequests(cast("Any", Clocked()))
    numbers = {recent.tenants.number(f"tenant-{i}") for i in range(1000)}
    assert len(numbers) == len(recent.tenants.names) <= 256


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 500), st.sampled_from("abc")), min_size=1, max_size=60))
def test_latency_is_the_mean_and_p99_of_each_bucket_and_tenant(requests: list[tuple[float, int, str]]) -> None:
    clock = Clocked()
    recent = RecentRequests(cast("Any", clock))
    expected: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for number, (took, tokens, tenant) in enumerate(requests):
        clock.now += 3.0
        recent.add(ended(number, tokens, clock.now - took, tenant))
        expected[int(clock.now // 15.0), recent.tenants.number(tenant)].append(took)
    series = list(latency_series(recent.last(recent.added), 15.0))
    assert {(bucket, tenant): n for bucket, _, tenant, n, *_ in series} == {k: len(v) for k, v in expected.items()}
    for bucket, _, tenant, _, ttft, _, e2e, e2e_p99, *_ in series:
        assert ttft == pytest.approx(0.5)
        assert e2e == pytest.approx(np.mean(expected[bucket, tenant]), rel=1e-3, abs=1e-6)
        assert e2e_p99 == pytest.approx(np.percentile(expected[bucket, tenant], 99), rel=1e-3, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.6, 100), st.sampled_from([None, 1.0, 20.0])), min_size=1, max_size=30),
    st.sampled_from(["fcfs", "fair(ontime:ttft=0.4)", "ontime:ttft=0.5"]),
)
def test_requests_with_limits_are_counted_and_those_within_them(
    requests: list[tuple[float, float | None]], policy: str
) -> None:
    clock = Clocked(policy=make_policy(policy))
    recent = RecentRequests(cast("Any", clock))
    for number, (took, slo_s) in enumerate(requests):
        clock.now = 200.0
        call = ended(number, 7, clock.now - took)
        call.job.use_limits(slo_s=slo_s)
        recent.add(call)
    ((*_, limited, met),) = latency_series(recent.last(recent.added), 15.0)
    within = [slo_s is None or took <= slo_s for took, slo_s in requests]
    if policy == "fcfs":
        given_any = [slo_s is not None for _, slo_s in requests]
        assert (limited, met) == (sum(given_any), sum(a and b for a, b in zip(given_any, within, strict=True)))
    else:  # the first token of all comes after 0.5 s
        assert (limited, met) == (len(requests), 0 if "0.4" in policy else sum(within))


def test_a_request_s_own_limit_comes_before_that_of_the_policy() -> None:
    recent = RecentRequests(cast("Any", Clocked(policy=make_policy("ontime:ttft=0.4"))))
    call = ended(0, 7, 0.0)
    call.job.use_limits(ttft_s=0.6)
    recent.add(call)
    ((*_, limited, met),) = latency_series(recent.last(recent.added), 15.0)
    assert (limited, met) == (1, 1)
