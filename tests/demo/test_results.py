"""The figures and the verdict of a race."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lengthwise.client.load import Sample
from lengthwise.demo.results import COMMANDS, decode_rate, live_figures, race_document, recent_latency
from lengthwise.demo.traffic import TRUE, RaceTraffic
from lengthwise.simulator.fleet import Fleet
from lengthwise.workloads import Workload

FLEET = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=4)


def sample(number: int, sent: float, first: float = math.nan, end: float = math.nan, tokens: int = 10) -> Sample:
    made = Sample(number, sent, tokens, arrival_s=sent, first_token_s=first, finished_s=end)
    made.output_tokens = 0 if math.isnan(end) else tokens
    return made


def traffic(requests: int) -> RaceTraffic:
    lengths = np.arange(10, 10 + requests)
    table = {"arrival_s": np.arange(requests, dtype=float), "input_tokens": [5] * requests, "output_tokens": lengths}
    workload = Workload.from_table(table, name="made", block_size=None)
    return RaceTraffic("made", workload, FLEET, 1.0, 1.2, {"fast": None}, "m", drawn=False)  # type: ignore[dict-item]


def test_a_request_that_waits_for_longer_than_2_s_counts_as_late_before_it_is_answered() -> None:
    late, early, fresh = sample(0, 0.0), sample(1, 0.0, first=1.0, end=2.0), sample(2, 9.0)
    found = live_figures([late, early, fresh], np.array([0, 0, 1]), now=10.0)
    assert found["within"] == 0.5  # the fresh one is not decided
    assert found["short"] == 0.5
    assert found["ttft"][0] == pytest.approx(5.5)
    assert (found["sent"], found["answered"], found["failed"]) == (3, 1, 0)


def test_a_failed_request_is_counted_and_has_no_latency() -> None:
    broken = sample(0, 0.0)
    broken.error = "http_503"
    found = live_figures([broken], np.array([0]), now=10.0)
    assert (found["failed"], found["within"], found["e2e"]) == (1, None, None)


def test_recent_latencies_are_those_of_the_last_10_s() -> None:
    old, new = sample(0, 0.0, first=5.0, end=6.0), sample(1, 90.0, first=91.0, end=95.0)
    assert list(recent_latency([old, new], 100.0)) == [1.0, 0.5]
    assert list(recent_latency([old], 100.0)) == [None, None]


def test_the_rate_of_a_running_answer_is_that_of_the_latest() -> None:
    assert decode_rate([sample(0, 0.0, first=1.0, end=2.0, tokens=101)]) == pytest.approx(100.0)
    assert decode_rate([]) > 0


def sides(requests: int, faster: float) -> list[list[Sample]]:
    rng = np.random.default_rng(0)
    waits = rng.uniform(1.0, 6.0, requests)
    return [
        [
            sample(n, float(n), n + wait * factor, n + wait * factor + 1, tokens=10 + n)
            for n, wait in enumerate(waits.tolist())
        ]
        for factor in (1.0, faster)
    ]


def judged(samples: list[list[Sample]], predictor: str = "fast") -> dict[str, object]:
    facts: dict[str, object] = race_document(
        traffic(200), samples, policy="sjf", predictor=predictor, loads=[1.2], late_s=0.0
    ).facts
    return facts


def test_the_verdict_is_about_the_requests_that_both_sides_have_answered() -> None:
    left, right = sides(200, 0.2)
    right[-1].finished_s = math.nan
    facts = judged([left, right])
    assert facts["requests"] == 199
    assert "sjf" in str(facts["verdict"])
    assert facts["next"] == COMMANDS
    within = facts["within"]
    assert isinstance(within, list)
    assert within[1] == 1.0 > within[0]


def test_true_lengths_are_named_as_such() -> None:
    assert "TRUE LENGTHS" in str(judged(sides(200, 0.2), TRUE)["verdict"])


def test_few_requests_give_no_verdict_but_a_sentence() -> None:
    facts = judged(sides(5, 0.2))
    assert "too few" in str(facts["verdict"])
    assert facts["next"] == COMMANDS
