"""What another release of vLLM changes: a feature whose names are missing is off, and the scheduler serves."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import RequestStatus

from lengthwise.vllm.adapter import SkippedQueue
from lengthwise.vllm.contract import Feature
from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.overlap import Host
from tests.vllm.scheduling import drain, make_request, make_scheduler, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def hinted(name: str, length: int) -> Any:
    return make_request(name, 8, length, extra_args={"expected_tokens": length})


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> dict[Feature, list[str]]:
    """Make the installed vLLM a release that nobody has tested; what is put into the result is missing in it."""
    missing: dict[Feature, list[str]] = {}
    monkeypatch.setattr(vllm, "__version__", "0.99.1")
    monkeypatch.setattr("lengthwise.vllm.adapter.problems", lambda _: missing)
    return missing


def test_an_untested_release_is_warned_of_with_the_contract_test_to_run_and_serves(
    model: Path, untested: dict[Feature, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf")
    (warning,) = [record for record in caplog.records if record.name == "lengthwise.vllm.adapter"]
    assert "make test-vllm RELEASE=0.99.1" in warning.getMessage()
    assert "tests/vllm/test_contract.py" in warning.getMessage()
    requests = [hinted(str(number), length) for number, length in enumerate([50, 3, 20])]
    assert drain(scheduler, {0: requests}).admitted == ["1", "2", "0"]


def test_without_the_names_that_order_needs_vllms_own_scheduler_serves(
    model: Path, untested: dict[Feature, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    untested[Feature.ORDER] = ["no Scheduler.waiting (vllm/v1/core/sched/scheduler.py)"]
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf")
    assert type(scheduler) is AsyncScheduler
    assert [record.getMessage() for record in caplog.records if "lacks" in record.getMessage()] == [
        "vLLM 0.99.1 lacks what `order` needs, which is off: no Scheduler.waiting (vllm/v1/core/sched/scheduler.py)"
    ]
    requests = [hinted(str(number), length) for number, length in enumerate([50, 3, 20])]
    assert drain(scheduler, {0: requests}).admitted == ["0", "1", "2"]


@pytest.mark.parametrize("feature", [each for each in Feature if each is not Feature.ORDER])
def test_without_what_another_feature_needs_the_queue_is_still_ordered(
    model: Path, untested: dict[Feature, list[str]], feature: Feature, tmp_path: Path
) -> None:
    untested[feature] = ["no such name"]
    options = {"bench_token": "secret", "steps": str(tmp_path / "steps.parquet")}
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=1, policy="srpt:c=0.8", measuring=options)
    assert not scheduler.has(feature)
    assert (scheduler.bench is None) == (feature is Feature.BENCH)
    assert (scheduler.steps is None) == (feature is Feature.STEPS)
    engine = Host(scheduler)
    scheduler.add_request(hinted("1", 100))
    engine.steps(5)
    scheduler.add_request(hinted("2", 30))
    scheduler.add_request(hinted("3", 10))
    engine.drain()
    assert engine.preempted == ([] if feature is Feature.PREEMPTION else ["1"])
    assert engine.finished == (["1", "3", "2"] if feature is Feature.PREEMPTION else ["3", "2", "1"])


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("can_admit", {Feature.PREEMPTION}),
        ("is_skipped", {Feature.PREEMPTION}),
        ("_blocks_left", {Feature.VICTIMS, Feature.PREEMPTION}),
    ],
)
def test_a_name_that_is_missing_when_it_is_reached_turns_its_features_off_once_and_loses_no_request(
    model: Path, name: str, features: set[Feature], caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=2, policy="srpt:c=0.8")

    def changed(*_: Any) -> Any:
        raise TypeError("takes other arguments")

    setattr(scheduler, name, changed)
    engine = Host(scheduler)
    for number in (1, 2):
        scheduler.add_request(hinted(str(number), 60))
    engine.steps(3)
    scheduler.add_request(hinted("3", 5))
    engine.drain()
    assert sorted(engine.finished) == ["1", "2", "3"]
    assert set(scheduler.features_off) == features
    assert len([record for record in caplog.records if "lacks" in record.getMessage()]) == len(features)


def test_the_warnings_are_the_only_difference_for_a_tested_release(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="lengthwise")
    scheduler = make_scheduler(LengthwiseScheduler, model, policy="sjf")
    assert scheduler.features_off == {}
    assert [record for record in caplog.records if record.name.startswith("lengthwise")] == []


def test_0_30s_queue_of_skipped_requests_drains_only_those_that_hold_blocks_first(model: Path) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, model, policy="sjf")
    skipped = SkippedQueue(scheduler.waiting, scheduler.kv_holding_waiting)
    plain, holding, loading = (hinted(name, 10) for name in ("plain", "holding", "loading"))
    holding.num_computed_tokens = 8
    loading.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    skipped.add_request(plain)
    skipped.prepend_requests([holding, loading])
    assert list(scheduler.waiting) == [plain]
    assert sorted(request.request_id for request in skipped) == ["holding", "loading"]
    assert len(skipped) == 2
    assert skipped.peek_request() is skipped.pop_request()
    skipped.remove_requests([plain, holding, loading])
    assert not skipped
    assert not scheduler.waiting
    with pytest.raises(IndexError):
        skipped.pop_request()
