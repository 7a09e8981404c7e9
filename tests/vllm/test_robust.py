"""The plug-in under random arrivals, aborts, little memory, and predictions that are late, missing or invalid.

The scheduler and its KV blocks are vLLM's; tokens are made up. The predictor runs at moments that Hypothesis chooses,
so that every run can be reproduced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from collections.abc import Sequence
from pathlib import Path

from vllm.v1.request import RequestStatus

from lengthwise.policies.lengthwise import FAST_WORK_FRACTION
from lengthwise.predictors.contract import LogTPredictions, PredictionInput
from lengthwise.predictors.service import PredictionService
from lengthwise.vllm.scheduler import LengthwiseScheduler
from lengthwise.vllm.smollm2 import model_folder
from tests.policies.raising import CALLS
from tests.predictors.guesses import Guess
from tests.vllm.scheduling import BLOCK_SIZE, Run, drain, make_request, make_scheduler, step, tiny_model

POLICIES = ["fcfs", "sjf", "tie", "srpt:c=0.8", "lengthwise"]
Behaviour = Literal["valid", "raises", "nonsense", "hangs"]
Hint = Literal["none", "tokens", "prediction", "invalid"]
SMALL = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@dataclass(frozen=True)
class Arrival:
    """One request: its arrival (a step), its sizes, its hint, and the steps after which it is aborted, if it is."""

    at: int
    prompt: int
    output: int
    hint: Hint
    aborted_after: int | None

    def extra_args(self) -> dict[str, Any] | None:
        return {
            "none": None,
            "tokens": {"expected_tokens": self.output},
            "prediction": {"length_mu": math.log(self.output) + 0.5, "length_sigma": 0.7},
            "invalid": {"expected_tokens": "soon", "length_mu": None},
        }[self.hint]


@dataclass(frozen=True)
class Traffic:
    """Requests in order of arrival, the limits of an engine with little memory, and the behaviour of a predictor."""

    arrivals: list[Arrival]
    slots: int
    blocks: int
    budget: int
    behaviour: Behaviour
    predicts_every: int

    def requests(self) -> dict[int, list[Any]]:
        made: dict[int, list[Any]] = {}
        for number, each in enumerate(self.arrivals):
            request = make_request(
                str(number), each.prompt, each.output, arrival=float(each.at), extra_args=each.extra_args()
            )
            made.setdefault(each.at, []).append(request)
        return made

    def aborts(self) -> dict[int, list[str]]:
        aborts: dict[int, list[str]] = {}
        for number, each in enumerate(self.arrivals):
            if each.aborted_after is not None:
                aborts.setdefault(each.at + each.aborted_after, []).append(str(number))
        return aborts


def arrivals(max_tokens: int, hints: Sequence[Hint]) -> st.SearchStrategy[Arrival]:
    return st.builds(
        Arrival,
        at=st.integers(0, 40),
        prompt=st.integers(1, max_tokens // 2),
        output=st.integers(1, max_tokens // 2),
        hint=st.sampled_from(hints),
        aborted_after=st.none() | st.none() | st.integers(0, 30),
    )


@st.composite
def traffic(draw: st.DrawFn, hints: Sequence[Hint] = ("none", "tokens", "prediction", "invalid")) -> Traffic:
    blocks = draw(st.integers(4, 14))
    fits = (blocks - 1) * BLOCK_SIZE  # vLLM keeps one block for itself; a larger request never runs
    drawn = draw(st.lists(arrivals(fits, hints), min_size=1, max_size=14))
    drawn.sort(key=lambda each: each.at)
    return Traffic(
        drawn,
        slots=draw(st.integers(1, 4)),
        blocks=blocks,
        budget=draw(st.sampled_from([16, 33, 256])),
        behaviour=draw(st.sampled_from(["valid", "raises", "nonsense", "hangs"])),
        predicts_every=draw(st.integers(1, 12)),
    )


@dataclass
class FaultyPredictor:
    """A predictor that is valid, raises, or returns invalid numbers; deterministic per prompt."""

    behaviour: Behaviour
    calls: int = 0

    def predict(self, inputs: Sequence[PredictionInput]) -> LogTPredictions:
        self.calls += 1
        if self.behaviour == "raises":
            raise RuntimeError("prediction failed")
        mu = [3.0 + len(each.text) % 7 / 3 for each in inputs]
        if self.behaviour == "nonsense":
            mu = [math.nan if len(each.text) % 2 else 900.0 for each in inputs]
        return LogTPredictions.of(mu, 0.5, [each.cap for each in inputs])


@dataclass
class Host:
    """A scheduler whose predictor runs every `predicts_every` steps."""

    scheduler: Any
    service: PredictionService
    predicts_every: int
    hangs: bool
    steps: int = 0
    run: Run = field(default_factory=Run)

    def step(self) -> None:
        step(self.scheduler, self.run)
        self.steps += 1
        self.check_every_request_is_held_once()
        worker = self.service._worker
        if worker is None or self.steps % self.predicts_every:
            return
        if self.hangs:
            worker.busy_since = worker.busy_since or 1e-9  # called, and not returned
        elif worker.waiting:
            worker.work(wait=False)

    def check_every_request_is_held_once(self) -> None:
        scheduler = self.scheduler
        names = [
            each.request_id
            for group in (scheduler.running, scheduler.waiting, scheduler.kv_holding_waiting)
            for each in group
        ]
        assert sorted(names) == sorted(name for name, each in scheduler.requests.items() if not each.is_finished())


def host(given: Traffic, model: Path, policy: str) -> Host:
    predictor = FaultyPredictor(given.behaviour)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.01
        return now

    service = PredictionService(lambda: predictor, patience_s=1.0, deadline_s=3.0, max_waiting=4, clock=clock)
    worker = service._worker
    assert worker is not None
    worker.start = lambda: None  # type: ignore[method-assign]  # no thread: `Host.step` runs it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lengthwise.vllm.scheduler.prediction_service", lambda _, **__: service)
        scheduler = make_scheduler(
            LengthwiseScheduler,
            model,
            slots=given.slots,
            blocks=given.blocks,
            budget=given.budget,
            policy=policy,
            tokenizer=model_folder(),
        )
    return Host(scheduler, service, given.predicts_every, hangs=predictor.behaviour == "hangs")


def serve(given: Traffic, engine: Host) -> dict[str, Any]:
    """Add the traffic and run until every request has finished; return the requests by name."""
    requests, aborts = given.requests(), given.aborts()
    last = max([*requests, *aborts, 0])
    while engine.steps <= last or engine.scheduler.has_unfinished_requests():
        for request in requests.get(engine.steps, []):
            engine.scheduler.add_request(request)
        for name in aborts.get(engine.steps, []):
            engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        engine.step()
        assert engine.steps < 20_000, "the schedule does not drain"
    return {request.request_id: request for batch in requests.values() for request in batch}


@pytest.mark.parametrize("policy", POLICIES)
@SMALL
@given(given=traffic())
def test_every_request_finishes_once_with_its_whole_answer_or_is_aborted(
    model: Path, policy: str, given: Traffic
) -> None:
    engine = host(given, model, policy)
    requests = serve(given, engine)
    aborted = {name for name, each in requests.items() if each.status == RequestStatus.FINISHED_ABORTED}
    may_abort = {str(n) for n, each in enumerate(given.arrivals) if each.aborted_after is not None}
    assert aborted <= may_abort
    assert set(engine.run.finished_at) == set(requests) - aborted
    assert all(each.num_output_tokens == each.max_tokens for name, each in requests.items() if name not in aborted)
    assert not engine.scheduler.requests
    assert engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == given.blocks - 1
    assert not engine.service._open, "every admitted request has ended"


@SMALL
@given(given=traffic())
def test_fcfs_admits_in_order_of_arrival_with_little_memory(model: Path, given: Traffic) -> None:
    engine = host(given, model, "fcfs")
    serve(given, engine)
    admitted = [int(name) for name in engine.run.admitted]
    assert admitted == sorted(admitted)
    assert engine.service.counts.asked == 0


@st.composite
def flood(draw: st.DrawFn) -> Traffic:
    """A long request, then a stream of short ones, each of which precedes it by length alone."""
    slots = draw(st.integers(1, 2))
    long = draw(st.integers(30, 60))
    shorts = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 9)), min_size=60, max_size=80))
    drawn, at = [Arrival(0, 8, 30, "tokens", None)] * slots + [Arrival(0, 8, long, "tokens", None)], 1
    for gap, output in shorts:
        at += gap
        drawn.append(Arrival(at, 8, output, "tokens", None))
    return Traffic(drawn, slots, blocks=40, budget=256, behaviour="hangs", predicts_every=1)


@pytest.mark.parametrize("traffic", [traffic(hints=["tokens"]), flood()], ids=["random", "flood"])
@settings(SMALL, max_examples=12)
@given(data=st.data())
def test_no_request_is_overtaken_by_more_than_the_policys_bound(
    model: Path, traffic: st.SearchStrategy[Traffic], data: st.DataObject
) -> None:
    """The bound of `lengthwise`: the work of its own length on every slot, and the fast lane's share."""
    given = data.draw(traffic)
    engine = host(given, model, "lengthwise")
    requests = serve(given, engine)
    order = [int(name) for name in engine.run.admitted]
    median = {int(name): float(each.max_tokens) for name, each in requests.items()}
    fast_lane = FAST_WORK_FRACTION * sum(median.values()) + max(median.values())
    for place, one in enumerate(order):
        overtaking = sum(median[other] for other in order[:place] if other > one)
        assert overtaking <= given.slots * (median[one] + 16) + fast_lane


@pytest.mark.parametrize("overtakes", [0, 2])
@SMALL
@given(given=traffic(hints=["none", "tokens", "prediction"]))
def test_a_bound_on_overtaking_holds_for_any_prediction_at_any_time(
    model: Path, overtakes: int, given: Traffic
) -> None:
    engine = host(given, model, f"bounded(sjf):overtakes={overtakes},wait=1000000")
    serve(given, engine)
    order = [int(name) for name in engine.run.admitted]
    for place, one in enumerate(order):
        assert sum(other > one for other in order[:place]) <= overtakes


def test_a_predictor_that_hangs_in_its_thread_delays_no_step(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The predictor's thread hangs for the whole run."""
    hanging = Guess()
    hanging.gate.clear()
    runs = []
    for load in (lambda: hanging, None):
        monkeypatch.setattr(
            "lengthwise.vllm.scheduler.prediction_service", lambda _, load=load, **__: PredictionService(load)
        )
        scheduler = make_scheduler(LengthwiseScheduler, model, blocks=30, policy="sjf", tokenizer=model_folder())
        runs.append(drain(scheduler, {n: [make_request(str(n), 5 + n % 40, 1 + n % 17)] for n in range(60)}))
        if load is not None:
            assert hanging.inside.wait(60)
            assert scheduler.predictions.counts.answered == 0
    hanging.gate.set()
    assert runs[0].steps == runs[1].steps


HUGE = [
    {"expected_tokens": 1e308},
    {"expected_tokens": 2**64 - 1},
    {"expected_tokens": 0},
    {"length_mu": 49.0, "length_sigma": 1e308},
    {"length_mu": -49.0, "length_sigma": 1e-300},
    {"expected_tokens": 9, "cap": 2**64 - 1, "slo_s": "nan"},
    {"slo_s": 1e308, "ttft_s": 1e-300, "per_token_s": True},
    {"slo_s": 0, "ttft_s": -1, "per_token_s": "soon"},
]


@pytest.mark.parametrize("declared", HUGE)
@pytest.mark.parametrize("policy", ["lengthwise", "fair(tie)", "slo", "ontime:ttft=2"])
def test_numbers_that_a_client_declares_are_clamped(model: Path, policy: str, declared: dict[str, Any]) -> None:
    scheduler = make_scheduler(
        LengthwiseScheduler, model, slots=1, policy=policy, predictor="none", vllm_policy="priority"
    )
    requests = [make_request(str(n), 4, 8, extra_args=declared, priority=(-1) ** n * 10**400) for n in range(4)]
    jobs = [scheduler.jobs.of(request) for request in requests]
    most = 4096 if "cap" in declared else 8  # the context length, or max_tokens
    assert all(1.0 <= job.median <= job.cap <= most and job.expected <= most for job in jobs)
    assert all(abs(job.priority) <= 1 << 31 and job.deadline > 0 for job in jobs)
    for job in jobs:
        left = (job.deadline - job.arrival, job.ttft_limit_s, job.per_token_limit_s)
        assert all(math.isinf(limit) or 1e-4 <= limit <= 86_401 for limit in left)
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
        assert scheduler.waiting.queue.policy.name == "fcfs"
    scheduler.predictions.close()
