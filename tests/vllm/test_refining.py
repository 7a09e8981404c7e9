"""Predictions refined inside vLLM's scheduler: by the right state of the right request, without changing a step."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from vllm.v1.request import RequestStatus

from lengthwise.errors import InputError
from lengthwise.lengths import After, LogT, Point
from lengthwise.vllm.refine import ATTRIBUTE, Due, Refiner, State
from lengthwise.vllm.scheduler import LengthwiseScheduler, LengthwiseSyncScheduler
from tests.vllm.probed import BINS, LAYER, ProbedHost, exact_probe, probed_host, states_of
from tests.vllm.scheduling import make_request, make_scheduler, tiny_model
from tests.vllm.test_refine import broken


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exact_probe(tmp_path_factory.mktemp("probe"))


def host(model: Path, probe: Path | None, policy: str = "srpt:c=0.8", **more: Any) -> ProbedHost:
    return probed_host(LengthwiseScheduler, model, probe, policy, **more)


def hinted(name: str, prompt: int, length: int, hint: int | None = None) -> Any:
    return make_request(name, prompt, length, extra_args=None if hint is None else {"expected_tokens": hint})


@pytest.mark.parametrize("depth", [1, 2])
def test_the_first_state_and_then_every_sixteenth_make_the_prediction(model: Path, probe: Path, depth: int) -> None:
    engine = host(model, probe, depth=depth)
    engine.scheduler.add_request(hinted("1", 8, 100))
    job = engine.scheduler.jobs.of(engine.scheduler.requests["1"])
    assert not isinstance(job.prediction, After)
    engine.steps(depth)
    assert isinstance(job.prediction, After)
    assert job.prediction.generated == 0
    assert 51.2 <= job.prediction.quantile(0.01) < job.prediction.quantile(0.99) <= 102.4
    assert job.initial_expected == job.expected == pytest.approx(76.8, abs=0.1), (
        "no token is generated: this is the initial expectation"
    )
    engine.steps(16)
    assert job.prediction.generated == 16
    assert job.initial_expected == pytest.approx(76.8, abs=0.1)
    assert job.expected == pytest.approx(16 + 73.5, abs=0.1), (
        "at most 84 tokens remain, and a part of the bin lies beyond"
    )
    engine.drain()
    assert engine.scheduler.refiner.counts.readings == 7
    assert engine.scheduler.refiner.counts.requests == 1


def test_a_request_that_proves_long_is_preempted_for_a_shorter_one(model: Path, probe: Path) -> None:
    for given, victims in ((None, []), (probe, ["1"])):
        engine = host(model, given)
        engine.scheduler.add_request(hinted("1", 8, 400, hint=20))
        engine.steps(3)
        engine.scheduler.add_request(hinted("2", 8, 100, hint=100))
        engine.steps(2)
        assert engine.preempted == victims
        engine.drain()
        assert sorted(engine.finished) == ["1", "2"]


@pytest.mark.parametrize(
    ("cls", "depth"), [(LengthwiseSyncScheduler, 1), (LengthwiseScheduler, 1), (LengthwiseScheduler, 2)]
)
@pytest.mark.parametrize(("blocks", "caching"), [(1000, False), (24, True)])
@pytest.mark.parametrize("chunked", [True, False])
def test_every_request_is_read_at_its_positions_after_any_number_of_preemptions(
    model: Path, probe: Path, cls: type[Any], depth: int, blocks: int, caching: bool, chunked: bool
) -> None:
    """With mixed steps, chunked prefill, recomputation, memory running out, aborts, and outputs a step late."""
    preempted = 0
    for seed in range(3):
        rng = random.Random(seed)
        limits: dict[str, Any] = {"slots": 3, "blocks": blocks, "prefix_caching": caching, "chunked": chunked}
        budget: dict[str, Any] = {"budget": 64} if chunked else {"budget": 300, "context": 300}
        engine = probed_host(cls, model, probe, "srpt:c=1,times=100", depth=depth, **limits, **budget)
        read: dict[str, list[int]] = {}
        requests = {
            str(row): hinted(str(row), rng.choice([1, 16, 40, 130]), rng.choice([1, 9, 60])) for row in range(30)
        }
        _spy(engine, read, requests)
        for request in requests.values():
            engine.scheduler.add_request(request)
            engine.steps(rng.randrange(6))
        aborted = [name for name, request in requests.items() if rng.random() < 0.1 and not request.is_finished()]
        engine.scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
        engine.drain()
        preempted += len(engine.preempted)
        for name, request in requests.items():
            positions = list(range(0, request.max_tokens, 16))
            assert read.get(name, []) == (positions[: len(read.get(name, []))] if name in aborted else positions)
        assert engine.scheduler.refiner._open == {}, "every finished request is removed"
        assert engine.scheduler.refiner.counts.failed == 0
    assert preempted > 3, "too few preemptions to test anything"


def _spy(engine: ProbedHost, read: dict[str, list[int]], requests: dict[str, Any]) -> None:
    """Record what is read, and check that it is the state of that request at that position."""
    reading = engine.scheduler.refiner.read

    def noting(due: list[Due]) -> Any:
        for each in due:
            read.setdefault(each.key, []).append(each.generated)
            assert each.state.layers[LAYER].argmax() == BINS.of(requests[each.key].max_tokens - each.generated)
        return reading(due)

    engine.scheduler.refiner.read = noting


def test_a_probe_that_raises_changes_no_step(model: Path, probe: Path) -> None:
    runs = []
    for given in (probe, None):
        engine = host(model, given, slots=2, blocks=30)
        if given is not None:
            engine.scheduler.refiner = Refiner(broken())
        for row in range(12):
            engine.scheduler.add_request(hinted(str(row), 20, 5 + 7 * row, hint=40 + row))
            engine.steps(3)
        engine.drain()
        runs.append((engine.scheduled, engine.preempted, engine.finished, engine.tokens))
        if given is not None:
            assert engine.scheduler.refiner.counts.failed == 12
            assert engine.scheduler.refiner.counts.readings == 0
    assert runs[0] == runs[1]


def test_a_late_prediction_reaches_the_probe_and_replaces_no_reading(model: Path, probe: Path) -> None:
    engine = host(model, probe)
    engine.scheduler.add_request(hinted("1", 8, 100))
    engine.scheduler.add_request(hinted("2", 8, 100))
    engine.steps(3)
    late = LogT(4.0, 0.5, 100)
    assert not engine.scheduler._predict("1", late)
    job = engine.scheduler.jobs.of(engine.scheduler.requests["1"])
    assert isinstance(job.prediction, After)
    assert engine.scheduler._predict("2", late), "it waits, and has no state"
    assert engine.scheduler.jobs.of(engine.scheduler.requests["2"]).prediction == late
    request = engine.scheduler.requests["1"]
    engine.drain()
    assert request.lengthwise_job.prediction == late, "a queue learns from the prediction that it ordered by"


def test_a_finished_request_has_its_declared_length_again(model: Path, probe: Path) -> None:
    engine = host(model, probe, "lengthwise")
    request = hinted("1", 8, 40, hint=30)
    engine.scheduler.add_request(request)
    engine.drain()
    assert request.lengthwise_job.prediction == Point(30, 40)
    assert engine.scheduler.refiner.counts.readings == 3


def test_a_state_beyond_the_generated_tokens_is_not_read(model: Path, probe: Path) -> None:
    engine = host(model, probe)
    engine.scheduler.add_request(hinted("1", 8, 100))
    engine.steps(2)
    ahead = State(8 + 16, {LAYER: states_of([84])[0]})
    output = SimpleNamespace(**{ATTRIBUTE: [("1", ahead)]})
    engine.scheduler._refine(engine.scheduler.refiner, output)
    assert engine.scheduler.refiner.counts.readings == 1


def test_under_a_policy_without_predictions_nothing_is_read(model: Path, probe: Path) -> None:
    engine = host(model, probe, "fcfs")
    engine.scheduler.add_request(hinted("1", 8, 40))
    engine.steps(5)
    assert engine.scheduler.refiner.counts.readings == 0
    engine.scheduler.use(replace(engine.scheduler.setup, policy="srpt:c=0.8"))
    engine.drain()
    assert engine.scheduler.refiner.counts.readings == 3, "from the next state on: after 5, 21 and 37 tokens"


def test_the_account_has_the_counts_of_the_probe(model: Path, probe: Path, tmp_path: Path) -> None:
    account = tmp_path / "account.json"
    engine = host(model, probe, slots=2, measuring={"account": str(account)})
    for row in range(3):
        engine.scheduler.add_request(hinted(str(row), 8, 20))
    engine.drain()
    counts = json.loads(account.read_text())
    assert (counts["probe"]["requests"], counts["probe"]["readings"], counts["probe"]["failed"]) == (3, 6, 0)
    assert counts["probe"]["cpu_s"] > 0
    engine.scheduler.shutdown()


def test_an_engine_without_the_states_worker_is_refused_with_the_missing_option(model: Path, probe: Path) -> None:
    with pytest.raises(InputError, match=r"add --worker-cls lengthwise\.vllm\.worker\.StatesWorker"):
        make_scheduler(LengthwiseScheduler, model, policy="srpt", measuring={"probe": str(probe)}, worker="auto")


def test_a_probe_of_another_llm_is_refused_at_the_start(model: Path, tmp_path: Path) -> None:
    other = exact_probe(tmp_path, llm="other/Other-7B")
    with pytest.raises(InputError, match="for other/Other-7B, and the engine serves SmolLM2-135M-Instruct"):
        host(model, other)
    with pytest.raises(InputError, match="the LLM's have 16"):
        make_scheduler(LengthwiseScheduler, model, policy="srpt", measuring={"probe": "default"})
