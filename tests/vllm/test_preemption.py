"""Limited preemption inside vLLM: the choice of victims, and that a victim loses no token, also with steps in flight.

test_vllm_preempts_as_simulated.py checks that the victims are those of the simulator.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from lengthwise.errors import InputError
from lengthwise.lengths import Point
from lengthwise.vllm.scheduler import LengthwiseScheduler, LengthwiseSyncScheduler
from tests.vllm.overlap import Host, token_at
from tests.vllm.scheduling import make_request, make_scheduler, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def with_hint(name: str, prompt: int, length: int, **more: Any) -> Any:
    return make_request(name, prompt, length, extra_args={"expected_tokens": length}, **more)


def host(
    model: Path, policy: str = "srpt:c=0.8", *, depth: int = 1, cls: type[Any] = LengthwiseScheduler, **limits: Any
) -> Host:
    return Host(make_scheduler(cls, model, policy=policy, **{"slots": 1, **limits}), depth)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_running_request_is_preempted_for_a_shorter_one_which_runs_in_the_same_step(model: Path, depth: int) -> None:
    engine = host(model, depth=depth)
    engine.scheduler.add_request(with_hint("1", 8, 100))
    engine.steps(5)
    engine.scheduler.add_request(with_hint("2", 8, 10))
    engine.step()
    assert engine.preempted == ["1"]
    assert engine.scheduled[-1] == {"2"}
    engine.drain()
    assert engine.finished == ["2", "1"]
    assert engine.preempted == ["1"], "it resumes when the other finishes, not before"


def test_a_request_past_c_is_not_preempted(model: Path) -> None:
    engine = host(model, "srpt:c=0.2")
    engine.scheduler.add_request(with_hint("1", 8, 100))
    engine.steps(21)  # 21 tokens
    engine.scheduler.add_request(with_hint("2", 8, 10))
    engine.drain()
    assert engine.preempted == []
    assert engine.finished == ["1", "2"]


def test_a_request_is_preempted_when_the_head_of_the_queue_lacks_memory(model: Path) -> None:
    engine = host(model, slots=4, blocks=21)  # 20 of 16 tokens
    engine.scheduler.add_request(with_hint("1", 150, 100))
    engine.scheduler.add_request(with_hint("2", 100, 60))
    engine.steps(3)
    engine.scheduler.add_request(with_hint("3", 120, 5))
    engine.step()
    assert engine.preempted == ["1"]
    assert engine.scheduled[-1] == {"2", "3"}
    engine.drain()
    assert sorted(engine.finished) == ["1", "2", "3"]


class Watched(LengthwiseScheduler):
    """Records in which steps memory suffices, and the requests that are preempted in them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.enough: list[bool] = []
        self.short: list[bool] = []
        self.wrong: list[str] = []

    def memory_runs_out(self) -> bool:
        self.enough.append(not super().memory_runs_out())
        self.short.append(self.memory_may_run_out())
        return not self.enough[-1]

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self.enough[-1]:
            self.wrong.append(request.request_id)
        super()._preempt_request(request, *args, **kwargs)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [False, True])
def test_victims_are_searched_only_in_steps_that_may_preempt(model: Path, depth: int, caching: bool) -> None:
    preempted, steps = 0, [0, 0]
    for seed in range(4):
        rng = random.Random(seed)
        engine = host(model, "sjf", depth=depth, cls=Watched, slots=6, blocks=32, prefix_caching=caching, budget=64)
        for row in range(40):
            engine.scheduler.add_request(with_hint(str(row), rng.choice([1, 16, 40, 130]), rng.choice([1, 9, 60, 120])))
            engine.steps(rng.randrange(6))
        engine.drain()
        assert engine.scheduler.wrong == []
        preempted += len(engine.preempted)
        for enough, short in zip(engine.scheduler.enough, engine.scheduler.short, strict=True):
            steps[enough] += short
    assert preempted > 0
    assert steps[True] > 4 * steps[False], "most steps with little free memory do not run out of it"


@pytest.mark.parametrize(
    ("cls", "depth"), [(LengthwiseSyncScheduler, 1), (LengthwiseScheduler, 1), (LengthwiseScheduler, 2)]
)
@pytest.mark.parametrize(
    "policy", ["srpt:c=0.8", "srpt:c=1,times=100", "gittins:margin=1,times=100", "bounded(srpt:c=0.8):overtakes=9"]
)
@pytest.mark.parametrize(("blocks", "caching"), [(1000, False), (24, True)])
def test_every_answer_is_complete_and_in_order_after_any_number_of_preemptions(
    model: Path, policy: str, depth: int, blocks: int, caching: bool, cls: type[Any]
) -> None:
    preempted = 0
    for seed in range(4):
        rng = random.Random(seed)
        engine = host(model, policy, depth=depth, cls=cls, slots=3, blocks=blocks, prefix_caching=caching, budget=64)
        requests = [with_hint(str(row), rng.choice([1, 16, 40, 130]), rng.choice([1, 2, 9, 60])) for row in range(40)]
        for request in requests:
            engine.scheduler.add_request(request)
            engine.steps(rng.randrange(6))
        aborted = [request.request_id for request in requests if rng.random() < 0.1 and not request.is_finished()]
        engine.scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
        engine.drain()
        preempted += len(engine.preempted)
        assert sorted(engine.finished + aborted) == sorted(request.request_id for request in requests)
        for request in requests:
            name, prompt = request.request_id, request.num_prompt_tokens
            answer = engine.tokens.get(name, [])
            assert answer == [token_at(name, prompt + place) for place in range(len(answer))]
            assert name in aborted or len(answer) == request.max_tokens
    assert preempted > 5, "too few preemptions to test anything"


@pytest.mark.parametrize("times", [0, 2, 5])
def test_a_stream_of_short_requests_preempts_a_long_one_at_most_times_times(model: Path, times: int) -> None:
    engine = host(model, f"srpt:c=0.8,times={times}")
    long = with_hint("0", 8, 200)
    engine.scheduler.add_request(long)
    engine.step()
    for number in range(1, 30):
        engine.scheduler.add_request(with_hint(str(number), 8, 3))
        engine.steps(5)
    engine.drain()
    assert engine.preempted == ["0"] * times
    assert len(engine.finished) == 30


def test_a_late_prediction_can_preempt(model: Path) -> None:
    engine = host(model)
    engine.scheduler.add_request(with_hint("1", 8, 100))
    engine.scheduler.add_request(with_hint("2", 8, 300))
    engine.steps(3)
    assert engine.preempted == []
    engine.scheduler.predictions.deliver = lambda take: take("2", Point(20, 300))
    engine.step()
    assert engine.preempted == ["1"]


def test_the_kill_switch_ends_preemption(model: Path) -> None:
    engine = host(model)
    engine.scheduler.add_request(with_hint("1", 8, 100))
    engine.steps(3)
    engine.scheduler.use(replace(engine.scheduler.setup, policy="fcfs"))
    engine.scheduler.add_request(with_hint("2", 8, 10))
    engine.drain()
    assert engine.preempted == []


def test_the_choice_of_a_victim_respects_vllms_priorities(model: Path) -> None:
    engine = host(model, "classes(fcfs)", vllm_policy="priority")
    engine.scheduler.add_request(with_hint("1", 8, 100, priority=1))
    engine.steps(3)
    engine.scheduler.add_request(with_hint("2", 8, 100, priority=1))
    engine.step()
    assert engine.preempted == []
    engine.scheduler.add_request(with_hint("3", 8, 100, priority=0))
    engine.drain()
    assert engine.preempted == ["1"]
    assert engine.finished == ["3", "1", "2"], "a preempted request keeps its place before later arrivals"


@pytest.mark.parametrize("vllm_policy", ["fcfs", "priority"])
def test_a_request_of_a_more_urgent_class_preempts_one_of_another_class(model: Path, vllm_policy: str) -> None:
    classes = {"interactive": {"ttft_s": 1.0}, "batch": {"priority": 10}}
    engine = host(model, "classes(fcfs)", vllm_policy=vllm_policy, measuring={"classes": classes})

    def of_class(name: str, request_class: str, **more: Any) -> Any:
        xargs = {"expected_tokens": 50, "request_class": request_class, **more}
        return make_request(name, 8, 50, extra_args=xargs)

    engine.scheduler.add_request(of_class("1", "batch"))
    engine.steps(3)
    engine.scheduler.add_request(of_class("2", "batch"))
    engine.scheduler.add_request(of_class("3", "none of them"))
    engine.step()
    assert engine.preempted == ["1"], "a request of no class has priority 0"
    engine.scheduler.add_request(of_class("4", "interactive"))
    engine.scheduler.add_request(of_class("5", "batch", priority=-1))  # what a gateway says comes first
    engine.drain()
    assert engine.preempted == ["1", "3"]
    assert engine.finished == ["5", "3", "4", "1", "2"]


def test_the_limits_of_a_class_are_those_of_requests_that_declare_none(model: Path) -> None:
    classes = {"interactive": {"priority": -5, "ttft_s": 1.0, "slo_s": 30}}
    scheduler = host(model, "ontime", measuring={"classes": classes}).scheduler
    xargs = {"request_class": "interactive", "ttft_s": 7, "priority": "urgent"}
    job = scheduler.jobs.of(make_request("1", 8, 50, arrival=100.0, extra_args=xargs))
    assert (job.priority, job.ttft_limit_s, job.deadline) == (-5, 7.0, 130.0)


def test_classes_that_are_not_valid_are_an_error_at_the_start(model: Path) -> None:
    with pytest.raises(InputError, match=r"field 'classes\.batch\.ttft_s'"):
        host(model, "classes(fcfs)", measuring={"classes": {"batch": {"ttft_s": 0}}})


def test_no_request_is_preempted_while_vllm_would_not_admit_the_head_of_the_queue(model: Path) -> None:
    engine = host(model)
    engine.scheduler.add_request(with_hint("1", 8, 100))
    engine.steps(3)
    short = with_hint("2", 8, 10)
    engine.scheduler.add_request(short)
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    engine.step()
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    short.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    engine.step()
    short.status = RequestStatus.WAITING
    engine.scheduler.schedule(throttle_prefills=True)
    assert engine.preempted == []
    assert not engine.scheduler.is_skipped(short)
    engine.scheduler.lora_config = SimpleNamespace(max_loras=1)
    engine.scheduler.running[0].lora_request = SimpleNamespace(lora_int_id=1)
    for adapter, passed in ((1, False), (2, True)):
        short.lora_request = SimpleNamespace(lora_int_id=adapter)
        assert engine.scheduler.is_skipped(short) is passed


def test_a_request_whose_last_token_is_in_flight_is_not_preempted(model: Path) -> None:
    engine = host(model, "srpt:c=1", depth=2)
    engine.scheduler.add_request(make_request("1", 8, 6, extra_args={"expected_tokens": 90}))
    engine.steps(6)
    assert len(engine.tokens["1"]) == 5
    engine.scheduler.add_request(with_hint("2", 8, 3))
    engine.drain()
    assert engine.preempted == []
    assert engine.finished == ["1", "2"]
