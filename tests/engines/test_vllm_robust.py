"""The plug-in under whatever comes: random arrivals, aborts, tiny memory, predictions that are late, missing or
never come.

The scheduler and its KV blocks are vLLM's; tokens come out of a hat. Predicting is done in steps of its own, at
moments that Hypothesis chooses, so that every run can be run again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engines.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from collections.abc import Sequence
from pathlib import Path

from vllm.v1.request import RequestStatus

from lengthwise.engines.smollm2 import model_folder
from lengthwise.engines.vllm import LengthwiseScheduler
from lengthwise.policies.lengthwise import FAST_WORK_FRACTION
from lengthwise.predictors.contract import LogTPredictions, PredictionInput
from lengthwise.predictors.service import PredictionService
from tests.engines.scheduling import BLOCK_SIZE, Run, drain, make_request, make_scheduler, step, tiny_model
from tests.policies.raising import CALLS
from tests.predictors.guesses import Guess

POLICIES = ["fcfs", "sjf", "tie", "srpt:c=0.8", "lengthwise"]
Mood = Literal["well", "raises", "nonsense", "hangs"]
Says = Literal["nothing", "tokens", "prediction", "rubbish"]
SMALL = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@dataclass(frozen=True)
class Coming:
    """One request: when it comes, how large it is, what its client says of it, and when it leaves, if it does."""

    at: int
    prompt: int
    output: int
    says: Says
    leaves_after: int | None

    def said(self) -> dict[str, Any] | None:
        return {
            "nothing": None,
            "tokens": {"expected_tokens": self.output},
            "prediction": {"length_mu": math.log(self.output) + 0.5, "length_sigma": 0.7},
            "rubbish": {"expected_tokens": "soon", "length_mu": None},
        }[self.says]


@dataclass(frozen=True)
class Traffic:
    """Requests in order of coming, an engine with hardly any memory, and a predictor in some mood."""

    coming: list[Coming]
    slots: int
    blocks: int
    budget: int
    mood: Mood
    works_every: int

    def requests(self) -> dict[int, list[Any]]:
        made: dict[int, list[Any]] = {}
        for number, each in enumerate(self.coming):
            request = make_request(str(number), each.prompt, each.output, arrival=float(each.at), said=each.said())
            made.setdefault(each.at, []).append(request)
        return made

    def aborts(self) -> dict[int, list[str]]:
        leaving: dict[int, list[str]] = {}
        for number, each in enumerate(self.coming):
            if each.leaves_after is not None:
                leaving.setdefault(each.at + each.leaves_after, []).append(str(number))
        return leaving


def requests(most_tokens: int, says: Sequence[Says]) -> st.SearchStrategy[Coming]:
    return st.builds(
        Coming,
        at=st.integers(0, 40),
        prompt=st.integers(1, most_tokens // 2),
        output=st.integers(1, most_tokens // 2),
        says=st.sampled_from(says),
        leaves_after=st.none() | st.none() | st.integers(0, 30),
    )


@st.composite
def traffic(draw: st.DrawFn, says: Sequence[Says] = ("nothing", "tokens", "prediction", "rubbish")) -> Traffic:
    blocks = draw(st.integers(4, 14))
    fits = (blocks - 1) * BLOCK_SIZE  # vLLM keeps one block for itself; who does not fit alone never runs
    coming = draw(st.lists(requests(fits, says), min_size=1, max_size=14))
    coming.sort(key=lambda each: each.at)
    return Traffic(
        coming,
        slots=draw(st.integers(1, 4)),
        blocks=blocks,
        budget=draw(st.sampled_from([16, 33, 256])),
        mood=draw(st.sampled_from(["well", "raises", "nonsense", "hangs"])),
        works_every=draw(st.integers(1, 12)),
    )


@dataclass
class Moody:
    """A predictor that is right, raises, or says what no prediction may say; by the prompt, the same each time."""

    mood: Mood
    calls: int = 0

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        self.calls += 1
        if self.mood == "raises":
            raise RuntimeError("in a bad mood")
        mu = [3.0 + len(each.text) % 7 / 3 for each in inputs]
        if self.mood == "nonsense":
            mu = [math.nan if len(each.text) % 2 else 900.0 for each in inputs]
        return LogTPredictions.of(mu, 0.5, [each.cap for each in inputs])


@dataclass
class Host:
    """A scheduler whose predictor works when told to, on a clock that goes on by the step."""

    scheduler: Any
    service: PredictionService
    works_every: int
    hangs: bool
    steps: int = 0
    run: Run = field(default_factory=Run)

    def step(self) -> None:
        step(self.scheduler, self.run)
        self.steps += 1
        self.nobody_is_lost_or_there_twice()
        worker = self.service._worker
        if worker is None or self.steps % self.works_every:
            return
        if self.hangs:
            worker.busy_since = worker.busy_since or 1e-9  # called, and not returned
        elif worker.waiting:
            worker.work(wait=False)

    def nobody_is_lost_or_there_twice(self) -> None:
        here = self.scheduler
        names = [each.request_id for group in (here.running, here.waiting, here.kv_holding_waiting) for each in group]
        assert sorted(names) == sorted(name for name, each in here.requests.items() if not each.is_finished())


def host(given: Traffic, model: Path, policy: str, mood: Mood | None = None) -> Host:
    """`mood` None: no predictor at all."""
    moody = Moody(given.mood if mood is None else mood)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.01
        return now

    service = PredictionService(lambda: moody, patience_s=1.0, deadline_s=3.0, max_waiting=4, clock=clock)
    worker = service._worker
    assert worker is not None
    worker.start = lambda: None  # type: ignore[method-assign]  # no thread: its steps are taken here
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.engines.vllm.prediction_service", lambda _, **__: service)
        scheduler = make_scheduler(
            LengthwiseScheduler,
            model,
            slots=given.slots,
            blocks=given.blocks,
            budget=given.budget,
            policy=policy,
            tokenizer=model_folder(),
        )
    return Host(scheduler, service, given.works_every, hangs=moody.mood == "hangs")


def serve(given: Traffic, into: Host) -> dict[str, Any]:
    """Feed the traffic and run to drain; all requests by name."""
    coming, leaving = given.requests(), given.aborts()
    last = max([*coming, *leaving, 0])
    while into.steps <= last or into.scheduler.has_unfinished_requests():
        for request in coming.get(into.steps, []):
            into.scheduler.add_request(request)
        for name in leaving.get(into.steps, []):
            into.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        into.step()
        assert into.steps < 20_000, "the schedule does not drain"
    return {request.request_id: request for batch in coming.values() for request in batch}


@pytest.mark.parametrize("policy", POLICIES)
@SMALL
@given(given=traffic())
def test_whatever_comes_everybody_is_served_once_and_whole_or_has_left(
    model: Path, policy: str, given: Traffic
) -> None:
    into = host(given, model, policy)
    everybody = serve(given, into)
    left = {name for name, each in everybody.items() if each.status == RequestStatus.FINISHED_ABORTED}
    may_leave = {str(n) for n, each in enumerate(given.coming) if each.leaves_after is not None}
    assert left <= may_leave
    assert set(into.run.finished_at) == set(everybody) - left
    assert all(each.num_output_tokens == each.max_tokens for name, each in everybody.items() if name not in left)
    assert not into.scheduler.requests
    assert into.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == given.blocks - 1
    assert not into.service._open, "every request that was admitted has ended"


@SMALL
@given(given=traffic())
def test_first_come_first_served_inside_tiny_memory_admits_in_order(model: Path, given: Traffic) -> None:
    into = host(given, model, "fcfs")
    serve(given, into)
    admitted = [int(name) for name in into.run.admitted]
    assert admitted == sorted(admitted)
    assert into.service.counts.asked == 0


@st.composite
def flood(draw: st.DrawFn) -> Traffic:
    """A long request, and then short ones for ever so long, each of which would go before it by length alone."""
    slots = draw(st.integers(1, 2))
    long = draw(st.integers(30, 60))
    shorts = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 9)), min_size=60, max_size=80))
    coming, at = [Coming(0, 8, 30, "tokens", None)] * slots + [Coming(0, 8, long, "tokens", None)], 1
    for gap, output in shorts:
        at += gap
        coming.append(Coming(at, 8, output, "tokens", None))
    return Traffic(coming, slots, blocks=40, budget=256, mood="hangs", works_every=1)


@pytest.mark.parametrize("traffic", [traffic(says=["tokens"]), flood()], ids=["anything", "flood"])
@settings(SMALL, max_examples=12)
@given(data=st.data())
def test_nobody_is_overtaken_by_more_than_the_policys_bound(
    model: Path, traffic: st.SearchStrategy[Traffic], data: st.DataObject
) -> None:
    """Of `lengthwise`, as its docstring has it: the work of its own length on every slot, and the fast lane's share."""
    given = data.draw(traffic)
    into = host(given, model, "lengthwise")
    everybody = serve(given, into)
    order = [int(name) for name in into.run.admitted]
    median = {int(name): float(each.max_tokens) for name, each in everybody.items()}
    fast_lane = FAST_WORK_FRACTION * sum(median.values()) + max(median.values())
    for place, one in enumerate(order):
        overtaking = sum(median[other] for other in order[:place] if other > one)
        assert overtaking <= given.slots * (median[one] + 16) + fast_lane


@pytest.mark.parametrize("overtakes", [0, 2])
@SMALL
@given(given=traffic(says=["nothing", "tokens", "prediction"]))
def test_a_bound_on_overtaking_holds_whatever_is_predicted_and_whenever(
    model: Path, overtakes: int, given: Traffic
) -> None:
    into = host(given, model, f"bounded(sjf):overtakes={overtakes},wait=1000000")
    serve(given, into)
    order = [int(name) for name in into.run.admitted]
    for place, one in enumerate(order):
        assert sum(other > one for other in order[:place]) <= overtakes


def test_a_predictor_that_really_hangs_delays_no_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own thread, stuck inside the predictor for all of the run."""
    stuck = Guess()
    stuck.gate.clear()
    runs = []
    for load in (lambda: stuck, None):
        monkeypatch.setattr(
            "lengthwise.engines.vllm.prediction_service", lambda _, load=load, **__: PredictionService(load)
        )
        scheduler = make_scheduler(LengthwiseScheduler, model, blocks=30, policy="sjf", tokenizer=model_folder())
        runs.append(drain(scheduler, {n: [make_request(str(n), 5 + n % 40, 1 + n % 17)] for n in range(60)}))
        if load is not None:
            assert stuck.inside.wait(20)
            assert scheduler.predictions.counts.answered == 0
    stuck.gate.set()
    assert runs[0].steps == runs[1].steps


HUGE = [
    {"expected_tokens": 1e308},
    {"expected_tokens": 2**64 - 1},
    {"expected_tokens": 0},
    {"length_mu": 49.0, "length_sigma": 1e308},
    {"length_mu": -49.0, "length_sigma": 1e-300},
    {"expected_tokens": 9, "cap": 2**64 - 1, "slo_s": "nan"},
]


@pytest.mark.parametrize("said", HUGE)
@pytest.mark.parametrize("policy", ["lengthwise", "fair(tie)", "slo"])
def test_numbers_that_a_client_declares_are_clamped(model: Path, policy: str, said: dict[str, Any]) -> None:
    scheduler = make_scheduler(
        LengthwiseScheduler, model, slots=1, policy=policy, predictor="none", vllm_policy="priority"
    )
    requests = [make_request(str(n), 4, 8, said=said, priority=(-1) ** n * 10**400) for n in range(4)]
    jobs = [scheduler.jobs.of(request) for request in requests]
    most = 4096 if "cap" in said else 8  # the context length, or max_tokens
    assert all(1.0 <= job.median <= job.cap <= most and job.expected <= most for job in jobs)
    assert all(abs(job.priority) <= 1 << 31 and job.deadline > 0 for job in jobs)
    scheduler.predictions.close()


@pytest.mark.parametrize("policy", [f"tests.policies.raising:Raising:at={n}" for n in range(len(CALLS))])
def test_a_policy_that_raises_loses_no_request(model: Path, policy: str) -> None:
    rare = CALLS[int(policy[-1])] in ("rounds", "prediction_changed", "eviction_scores")
    spec = policy + (",after=0" if rare else "")
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=2, policy=spec, predictor="none", blocks=6)
    run = drain(scheduler, {0: [make_request(str(n), 16, 24) for n in range(8)]})
    assert sorted(run.finished_at) == [str(n) for n in range(8)]
    if CALLS[int(policy[-1])] != "prediction_changed":
        assert scheduler.policy_failures >= 1
        assert scheduler.waiting.policy.name == "fcfs"
    scheduler.predictions.close()
