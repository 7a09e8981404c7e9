"""Policies that serve in turns, inside vLLM: the queue is told what each request really took."""

from __future__ import annotations

import pytest

from tests.engines.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from lengthwise.engines.vllm import LengthwiseScheduler
from tests.engines.scheduling import drain, make_request, make_scheduler, tiny_model


def test_what_was_charged_by_expectation_is_charged_by_the_truth_at_the_end(tmp_path: Path) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, tiny_model(tmp_path), policy="fair(sjf)", predictor="none")
    scheduler.add_request(make_request("a", 8, 30, said={"expected_tokens": 2}))
    rounds = scheduler.waiting._queue._rounds
    assert list(rounds.ends.values()) == [8 + 2]
    drain(scheduler, {})
    assert list(rounds.ends.values()) == [8 + 30]


def test_a_request_that_is_aborted_is_charged_what_it_took_until_then(tmp_path: Path) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, tiny_model(tmp_path), policy="fair(sjf)", predictor="none")
    drain(scheduler, {0: [make_request("a", 8, 30, said={"expected_tokens": 20})]}, {5: ["a"]})
    assert list(scheduler.waiting._queue._rounds.ends.values()) == [8 + 5]
