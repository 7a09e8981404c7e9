"""Fair policies inside vLLM: a finished request is charged its true tokens."""

from __future__ import annotations

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.scheduling import drain, make_request, make_scheduler, tiny_model


def test_the_expected_charge_becomes_the_true_one_when_a_request_finishes(tmp_path: Path) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, tiny_model(tmp_path), policy="fair(sjf)", predictor="none")
    scheduler.add_request(make_request("a", 8, 30, extra_args={"expected_tokens": 2}))
    rounds = scheduler.waiting.queue._rounds
    assert list(rounds.ends.values()) == [8 + 2]
    drain(scheduler, {})
    assert list(rounds.ends.values()) == [8 + 30]


def test_an_aborted_request_is_charged_the_tokens_generated_until_then(tmp_path: Path) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, tiny_model(tmp_path), policy="fair(sjf)", predictor="none")
    drain(scheduler, {0: [make_request("a", 8, 30, extra_args={"expected_tokens": 20})]}, {5: ["a"]})
    assert list(scheduler.waiting.queue._rounds.ends.values()) == [8 + 5]
