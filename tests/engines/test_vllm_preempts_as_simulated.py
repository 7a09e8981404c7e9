"""A policy in the simulator and inside vLLM: the same order, the same victims, the same steps.

A step takes one second in both, also for a policy whose keys change with time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.engines.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine


from pathlib import Path

from lengthwise.engines.vllm import LengthwiseScheduler, LengthwiseSyncScheduler
from lengthwise.policies import make_policy
from lengthwise.simulator import Fleet, Outcome, simulate
from tests.engines.scheduling import BLOCK_SIZE, make_request, make_scheduler, spoken, tiny_model
from tests.simulator.builders import engine
from tests.simulator.test_against_vllm import Drawn

SLOTS = 3
BUDGET = 96
PLENTY = 1000
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
    monkeypatch.setattr("lengthwise.engines.vllm.time", clock)
    return clock


@dataclass
class Served:
    """What a scheduler did: admissions (again after a preemption), the step of each end, preemptions of each."""

    admissions: list[int] = field(default_factory=list)
    finish: dict[int, int] = field(default_factory=dict)
    preemptions: list[int] = field(default_factory=list)


def run_vllm(scheduler: Any, drawn: Drawn, clock: StepClock) -> Served:
    requests = [
        make_request(str(row), len(prompt), answer, arrival=float(at), prompt=prompt, said={"expected_tokens": answer})
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
        names = list(output.num_scheduled_tokens)
        done = [scheduler.requests[name] for name in names]
        sampled = [[int(one.request_id)] if one.num_computed_tokens >= one.num_tokens else [] for one in done]
        now += 1
        if not names:
            continue
        result = spoken(names, sampled)
        for outputs in scheduler.update_from_output(output, result).values():
            served.finish |= {int(one.request_id): now for one in outputs.outputs if one.finish_reason is not None}
        assert now < 20_000, "the schedule does not drain"
    served.preemptions = [request.num_preemptions for request in requests]
    return served


def simulated(drawn: Drawn, policy: str, *, blocks: int, caching: bool) -> Outcome:
    spec = engine(seqs=SLOTS, budget=BUDGET, blocks=blocks, block_size=BLOCK_SIZE, caching=caching)
    return simulate(drawn.workload(), Fleet((spec,)), make_policy(policy), predictor="oracle")


def scheduler(model: Path, policy: str, *, blocks: int, caching: bool, cls: type[Any] = LengthwiseSyncScheduler) -> Any:
    limits: dict[str, Any] = {"slots": SLOTS, "budget": BUDGET, "blocks": blocks + 1, "prefix_caching": caching}
    return make_scheduler(cls, model, policy=policy, **limits)


def assert_same(theirs: Served, ours: Outcome) -> None:
    assert theirs.admissions == ours.engines[0].admissions.tolist()
    assert theirs.preemptions == ours.preemptions.tolist()
    assert [theirs.finish[row] for row in range(len(ours))] == ours.finish.astype(int).tolist()


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
def test_the_same_are_admitted_and_yield_in_the_same_steps(
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
def test_with_memory_too_short_as_well(model: Path, clock: StepClock, seed: int, policy: str, caching: bool) -> None:
    """Keys of fcfs and boost contain the arrival, which a preemption does not change in either host."""
    drawn = Drawn.of(seed)
    theirs = run_vllm(scheduler(model, policy, blocks=16, caching=caching), drawn, clock)
    assert_same(theirs, simulated(drawn, policy, blocks=16, caching=caching))
    assert theirs.preemptions != simulated(drawn, policy, blocks=PLENTY, caching=caching).preemptions.tolist()
