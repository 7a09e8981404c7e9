"""A policy in the simulator and inside vLLM: the same order, the same victims, the same steps.

A step takes one second in both, also for a policy whose keys change with time.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine


from pathlib import Path

from lengthwise.lengths import Point
from lengthwise.policies import Job, PolicyQueue, TokenRate, make_policy
from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.vllm.scheduler import LengthwiseScheduler, LengthwiseSyncScheduler
from tests.simulator.builders import engine
from tests.simulator.test_against_vllm import Drawn
from tests.vllm.scheduling import BLOCK_SIZE, make_request, make_scheduler, model_output, tiny_model

SLOTS = 3
BUDGET = 96
PLENTY = 1000
RATE = 3.0  # tokens per second
POLICY = "srpt:c=0.8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


class StepClock:
    """The `time` module of the plug-in: the time of day is the number of the step."""

    monotonic = staticmethod(time.monotonic)
    step = 0

    def time(self) -> float:
        return float(self.step)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> StepClock:
    clock = StepClock()
    monkeypatch.setattr("lengthwise.vllm.scheduler.time", clock)
    return clock


@dataclass
class Served:
    """What a scheduler did: admissions (also after a preemption) with their steps, finish steps, preemptions."""

    admissions: list[int] = field(default_factory=list)
    admitted_at: list[int] = field(default_factory=list)
    finish: dict[int, int] = field(default_factory=dict)
    preemptions: list[int] = field(default_factory=list)


def run_vllm(scheduler: Any, drawn: Drawn, clock: StepClock) -> Served:
    requests = [
        make_request(
            str(row), len(prompt), answer, arrival=float(at), prompt=prompt, extra_args={"expected_tokens": answer}
        )
        for row, (prompt, answer, at) in enumerate(zip(drawn.prompts, drawn.answers, drawn.steps, strict=True))
    ]
    served, now = Served(), 0
    while now <= drawn.steps[-1] or scheduler.has_unfinished_requests():
        for request, at in zip(requests, drawn.steps, strict=True):
            if at == now:
                scheduler.add_request(request)
        before = {request.request_id for request in scheduler.running}
        clock.step = now
        output = scheduler.schedule()
        preempted = set(output.preempted_req_ids or ())
        served.admissions += [
            int(one.request_id)
            for one in scheduler.running
            if one.request_id not in before or one.request_id in preempted
        ]
        served.admitted_at += [now] * (len(served.admissions) - len(served.admitted_at))
        names = list(output.num_scheduled_tokens)
        done = [scheduler.requests[name] for name in names]
        sampled = [[int(one.request_id)] if one.num_computed_tokens >= one.num_tokens else [] for one in done]
        now += 1
        if not names:
            continue
        result = model_output(names, sampled)
        for outputs in scheduler.update_from_output(output, result).values():
            served.finish |= {int(one.request_id): now for one in outputs.outputs if one.finish_reason is not None}
        assert now < 20_000, "the schedule does not drain"
    served.preemptions = [request.num_preemptions for request in requests]
    return served


def simulated(drawn: Drawn, policy: str, *, blocks: int, caching: bool, accelerate: bool | None = None) -> Outcome:
    spec = engine(seqs=SLOTS, budget=BUDGET, blocks=blocks, block_size=BLOCK_SIZE, caching=caching)
    return simulate(drawn.workload(), Fleet((spec,)), make_policy(policy), predictor="oracle", accelerate=accelerate)


def scheduler(model: Path, policy: str, *, blocks: int, caching: bool, cls: type[Any] = LengthwiseSyncScheduler) -> Any:
    limits: dict[str, Any] = {"slots": SLOTS, "budget": BUDGET, "blocks": blocks + 1, "prefix_caching": caching}
    return make_scheduler(cls, model, policy=policy, **limits)


def assert_same(theirs: Served, ours: Outcome) -> None:
    assert theirs.admissions == ours.engines[0].admissions.tolist()
    assert theirs.preemptions == ours.preemptions.tolist()
    assert [theirs.finish[row] for row in range(len(ours))] == ours.finished_s.astype(int).tolist()


@pytest.mark.parametrize("cls", [LengthwiseSyncScheduler, LengthwiseScheduler])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    "policy",
    [
        POLICY,
        "srpt:c=0",
        "srpt:c=1",
        "srpt:c=0.5,times=1",
        "gittins",
        "bounded(srpt:c=0.8):overtakes=5",
        "sjf",
        "tie",
        "hrrn",
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_requests_are_admitted_and_preempted_in_the_same_steps(
    model: Path, clock: StepClock, seed: int, policy: str, caching: bool, cls: type[Any]
) -> None:
    drawn = Drawn.of(seed)
    theirs = run_vllm(scheduler(model, policy, blocks=PLENTY, caching=caching, cls=cls), drawn, clock)
    assert_same(theirs, simulated(drawn, policy, blocks=PLENTY, caching=caching))
    if policy == POLICY:
        assert sum(theirs.preemptions) > 3, "at least one request is preempted"


@pytest.mark.parametrize(
    ("policy", "caching"),
    [
        (POLICY, True),
        (POLICY, False),
        ("fcfs", True),
        ("fcfs", False),
        ("boost", True),
        ("boost", False),
        ("preble", True),
        ("tie", True),
        ("tie", False),
        ("hrrn", True),
        ("hrrn", False),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_requests_are_preempted_when_memory_runs_out(
    model: Path, clock: StepClock, seed: int, policy: str, caching: bool
) -> None:
    """Keys of fcfs and boost contain the arrival, which a preemption does not change in either host."""
    drawn = Drawn.of(seed)
    theirs = run_vllm(scheduler(model, policy, blocks=16, caching=caching), drawn, clock)
    assert_same(theirs, simulated(drawn, policy, blocks=16, caching=caching))
    assert theirs.preemptions != simulated(drawn, policy, blocks=PLENTY, caching=caching).preemptions.tolist()


def queued(drawn: Drawn, policy: str, served: Served) -> list[int]:
    """The order of the gateway's queue, given the arrivals, free slots and ends of another host."""
    queue, order = PolicyQueue(make_policy(policy), slots=SLOTS), []
    jobs = [
        Job(str(row), float(at), len(prompt), prediction=Point(answer, 4096))
        for row, (prompt, answer, at) in enumerate(zip(drawn.prompts, drawn.answers, drawn.steps, strict=True))
    ]
    for now in range(max(served.finish.values()) + 1):
        for row, job in enumerate(jobs):
            if served.finish[row] == now:
                job.generated = drawn.answers[row]
                queue.finished(job)
                queue.tokens_per_s = RATE
            if drawn.steps[row] == now:
                queue.push(job, float(now))
        for _ in range(served.admitted_at.count(now)):
            first = queue.pop(float(now))
            order.append(-1 if first is None else int(first.id))
    return order


@pytest.mark.parametrize(
    "policy", ["slo", "slo:seconds=60", "slo:seconds=400", "ontime:ttft=59.5", "ontime:per_token=3.7"]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_policy_that_selects_admits_in_the_same_order_in_simulator_vllm_and_the_gateways_queue(
    model: Path, clock: StepClock, monkeypatch: pytest.MonkeyPatch, seed: int, policy: str
) -> None:
    """The rate is the same constant in all three: hosts count tokens at different moments of a step."""

    def known_rate(rate: TokenRate, now: float, tokens: int, *, waiting: bool) -> None:
        rate.per_s = RATE

    monkeypatch.setattr(TokenRate, "observe", known_rate)
    drawn = Drawn.of(seed, shared_prefixes=False)
    theirs = run_vllm(scheduler(model, policy, blocks=PLENTY, caching=False), drawn, clock)
    assert_same(theirs, simulated(drawn, policy, blocks=PLENTY, caching=False, accelerate=False))
    assert theirs.admissions == queued(drawn, policy, theirs)
    if policy != "slo":  # which learns its target from more requests than these
        assert theirs.admissions != sorted(theirs.admissions)


def test_a_latency_target_in_vllm_xargs_is_a_deadline_and_moves_a_request_forward(
    model: Path, clock: StepClock
) -> None:
    """A target in vllm_xargs counts from the arrival; the gateway puts the time left of its header there."""
    served = make_scheduler(LengthwiseSyncScheduler, model, slots=1, policy="slo:seconds=5000")
    urgent = {"expected_tokens": 40, "slo_s": 60}
    for row in range(5):
        declared = urgent if row == 4 else {"expected_tokens": 40}
        served.add_request(make_request(str(row), 4, 40, arrival=float(row), extra_args=declared))
    jobs = [served.jobs.of(request) for request in served.requests.values()]
    assert [job.deadline for job in jobs] == [math.inf] * 4 + [64.0]
    served.jobs.rate.per_s = 1.0
    clock.step = 10
    served.schedule()
    assert [request.request_id for request in served.running] == ["4"]


def test_limits_in_vllm_xargs_come_before_requests_without_one(model: Path, clock: StepClock) -> None:
    served = make_scheduler(LengthwiseSyncScheduler, model, slots=1, policy="ontime")
    limits: list[dict[str, float]] = [{}, {"per_token_s": 2.0}, {"ttft_s": 100}, {"ttft_s": 3}]
    for row, limit in enumerate(limits):
        declared = {"expected_tokens": 40 - row, **limit}
        served.add_request(make_request(str(row), 4, 40, arrival=float(row), extra_args=declared))
    served.jobs.rate.per_s = 1.0
    clock.step = 10
    served.schedule()
    # The last is late, and the shortest of the others is the third.
    assert [request.request_id for request in served.running] == ["2"]
