"""Memory is bounded: 20,000 requests leave no object behind."""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from collections.abc import Sequence
from pathlib import Path

from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from lengthwise.predictors.contract import LogTPredictions, PredictionInput
from lengthwise.predictors.service import PredictionService
from lengthwise.vllm.scheduler import LengthwiseScheduler
from lengthwise.vllm.smollm2 import model_folder
from tests.vllm.scheduling import Run, make_scheduler, step, tiny_model

REQUESTS, AT_ONCE, SLOTS = 20_000, 48, 32


class PromptLengthPredictor:
    """Predicts the length of the prompt; raises for some prompts."""

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        if any(len(each.text) % 20 == 0 for each in inputs):
            raise ValueError("not this one")
        return LogTPredictions.of([math.log(1 + len(each.text)) for each in inputs], 0.5, [each.cap for each in inputs])


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    service = PredictionService(PromptLengthPredictor)
    worker = service._worker
    assert worker is not None
    worker.start = lambda: None  # type: ignore[method-assign]  # its steps are run by `serve`, so that counts can be compared
    monkeypatch.setattr("lengthwise.vllm.scheduler.prediction_service", lambda _, **__: service)
    # Little memory: preemptions occur throughout.
    return make_scheduler(
        LengthwiseScheduler,
        tiny_model(tmp_path),
        slots=SLOTS,
        blocks=SLOTS - 8,
        budget=2048,
        policy="lengthwise",
        tokenizer=model_folder(),
    )


def request(number: int) -> Request:
    """A request with a unique prompt and an answer of one to three tokens; every tenth has a hint."""
    params = SamplingParams(
        max_tokens=1 + number % 3,
        ignore_eos=True,
        extra_args={"expected_tokens": 1 + number % 3} if number % 10 == 0 else None,
    )
    ids = [100 + number % 7, 200 + number // 200, 200 + number % 200, *range(300, 300 + number % 14)]
    return Request(str(number), ids, params, None, arrival_time=float(number))


def serve(scheduler: Any, numbers: range) -> int:
    """Serve the requests, `AT_ONCE` arriving every few steps, every seventh aborted; return the preemptions."""
    run = Run()
    arriving = iter(numbers)
    more = True
    while more or scheduler.has_unfinished_requests():
        batch = [request(number) for number, _ in zip(arriving, range(AT_ONCE), strict=False)]
        more = bool(batch)
        for each in batch:
            scheduler.add_request(each)
        scheduler.finish_requests(
            [each.request_id for each in batch if int(each.request_id) % 7 == 0], RequestStatus.FINISHED_ABORTED
        )
        for _ in range(3):
            step(scheduler, run)
            while scheduler.predictions._worker.waiting:
                scheduler.predictions._worker.work(wait=False)
        preempted = run.preemptions
        run.steps.clear()
        run.admitted.clear()
        run.finished_at.clear()
    return preempted


def held(scheduler: Any) -> dict[str, int]:
    """Return the size of every collection that grows and the number of live objects of each class."""
    service, worker = scheduler.predictions, scheduler.predictions._worker
    service.learn()  # the lengths of the last requests wait for the next one
    queues = (scheduler.waiting, scheduler.kv_holding_waiting)
    # By identity: reading an attribute of some of torch's objects raises warnings.
    kinds = {id(Request)} | {
        id(each)
        for name, module in sys.modules.items()
        if name.startswith("lengthwise.")
        for each in vars(module).values()
        if isinstance(each, type)
    }
    gc.collect()
    living = Counter(type(each).__qualname__ for each in gc.get_objects() if id(type(each)) in kinds)
    return {
        "requests": len(scheduler.requests),
        "open": len(service._open),
        "inputs": len(worker._served._open),
        "outbox": len(worker._outbox),
        "inbox": worker.waiting,
        "llms": len(service._learned[None].history.by_llm),
        "learners": len(worker._served._parts[0].learner._tenants),
        "predictions": len(worker._served._parts[0].learner._waiting),
        "waiting": sum(len(queue._requests) + len(queue.queue._places) for queue in queues),
        **living,
    }


def test_twenty_thousand_requests_leave_no_object_behind(scheduler: Any) -> None:
    preempted = serve(scheduler, range(REQUESTS // 2))
    before = held(scheduler)
    preempted += serve(scheduler, range(REQUESTS // 2, REQUESTS))
    after = held(scheduler)
    # The newest predictions are kept, up to a limit, and what their prompts are described by.
    assert before.pop("predictions") < after.pop("predictions") == 8192
    for kind in ("_Seen", "Description"):
        assert before.pop(kind) < after.pop(kind) <= 8192 + 1
    assert after == before
    assert (after["requests"], after["open"], after["inputs"], after["waiting"]) == (0, 0, 0, 0)
    assert max(after.get("Job", 0), after.get("Request", 0)) <= SLOTS, "vLLM may keep those of its last step"
    assert max(len(queue.queue._heap) for queue in (scheduler.waiting, scheduler.kv_holding_waiting)) <= 128
    counts = scheduler.predictions.counts
    assert counts.answered > REQUESTS // 3
    assert counts.failed > 0
    assert preempted > 0
