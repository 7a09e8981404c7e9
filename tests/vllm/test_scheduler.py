"""The plug-in against vLLM's own scheduler, step by step."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from lengthwise.errors import InputError
from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.scheduling import Run, drain, make_request, make_scheduler, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def traffic(seed: int, count: int = 40) -> tuple[dict[int, list[Any]], dict[int, list[str]]]:
    """Requests of all sizes and priorities over a hundred steps, a few of them aborted."""
    rng = random.Random(seed)
    requests: dict[int, list[Any]] = {}
    aborts: dict[int, list[str]] = {}
    for number in range(count):
        at = rng.randrange(60)
        request = make_request(
            str(number),
            rng.choice([1, 15, 16, 17, 64, 300]),
            rng.randrange(1, 80),
            arrival=float(at) + rng.random(),
            priority=rng.randrange(3),
        )
        requests.setdefault(at, []).append(request)
        if rng.random() < 0.15:
            aborts.setdefault(at + rng.randrange(30), []).append(str(number))
    return requests, aborts


@pytest.mark.parametrize("stock", [Scheduler, AsyncScheduler])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("vllm_policy", ["fcfs", "priority"])
@pytest.mark.parametrize("blocks", [1000, 25])
def test_under_fcfs_every_step_is_that_of_upstream(
    model: Path, stock: type[Any], seed: int, vllm_policy: str, blocks: int
) -> None:
    runs: list[Run] = []
    for cls, policy in ((stock, None), (LengthwiseScheduler, "fcfs")):
        options: dict[str, Any] = {"blocks": blocks, "vllm_policy": vllm_policy, "prefix_caching": seed % 2 == 0}
        runs.append(drain(make_scheduler(cls, model, policy=policy, **options), *traffic(seed)))
    assert runs[1].steps == runs[0].steps
    assert runs[1].finished_at == runs[0].finished_at
    if blocks == 25:
        assert runs[0].preemptions > 0, "the traffic must exceed the memory"


def queued(lengths: list[int]) -> dict[int, list[Any]]:
    return {0: [make_request(str(i), 8, n, extra_args={"expected_tokens": n}) for i, n in enumerate(lengths)]}


def test_sjf_admits_the_shortest_first(model: Path) -> None:
    lengths = [50, 3, 20, 8, 60, 1]
    run = drain(make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf"), queued(lengths))
    assert run.admitted == ["5", "1", "3", "2", "0", "4"]


def test_a_declared_distribution_orders_requests(model: Path) -> None:
    declared: list[dict[str, Any]] = [
        {"length_mu": 6.0, "length_sigma": 0.5},
        {"length_mu": 2.0, "length_sigma": 0.5},
        {"expected_tokens": 60},
    ]
    requests = [make_request(str(i), 8, 200, extra_args=one) for i, one in enumerate(declared)]
    run = drain(make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf"), {0: requests})
    assert run.admitted == ["1", "2", "0"]


@pytest.mark.parametrize(
    "declared", [{"expected_tokens": "soon"}, {"expected_tokens": -4}, {"length_mu": 3}, {"x": 1}, None]
)
def test_an_invalid_hint_is_replaced_by_the_wide_prior(model: Path, declared: dict[str, Any] | None) -> None:
    requests = [
        make_request("long", 8, 4000, extra_args={"expected_tokens": 3000}),
        make_request("odd", 8, 4000, extra_args=declared),
    ]
    run = drain(make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf"), {0: requests}, {5: ["odd", "long"]})
    assert run.admitted[0] == "odd"


def test_when_memory_runs_out_the_request_with_the_most_remaining_is_preempted(model: Path) -> None:
    requests = [make_request(str(i), 16, n, extra_args={"expected_tokens": n}) for i, n in enumerate([150, 100, 40])]
    run = drain(make_scheduler(LengthwiseScheduler, model, slots=3, blocks=14, policy="sjf"), {0: requests})
    victims = [name for _, preempted in run.steps for name in preempted]
    assert victims
    assert set(victims) == {"0"}


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
@pytest.mark.parametrize("seed", range(4))
def test_every_request_finishes_once_with_its_whole_answer(model: Path, policy: str, seed: int) -> None:
    requests, _ = traffic(seed)
    by_name = {request.request_id: request for batch in requests.values() for request in batch}
    run = drain(make_scheduler(LengthwiseScheduler, model, blocks=25, policy=policy), requests)
    assert sorted(run.finished_at) == sorted(by_name)
    assert all(request.num_output_tokens == request.max_tokens for request in by_name.values())


def test_the_kill_switch_reorders_waiting_requests_by_arrival(model: Path) -> None:
    scheduler = make_scheduler(LengthwiseScheduler, model, slots=1, policy="sjf")
    for request in queued([50, 3, 20])[0]:
        scheduler.add_request(request)
    scheduler.use(replace(scheduler.setup, policy="fcfs"))
    assert drain(scheduler, {}).admitted == ["0", "1", "2"]


def test_the_policy_can_be_set_in_the_environment(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LENGTHWISE_POLICY", "fcfs")
    assert make_scheduler(LengthwiseScheduler, model).length_policy.name == "fcfs"


def test_an_unknown_policy_is_refused_with_the_known_ones(model: Path) -> None:
    with pytest.raises(InputError, match="known are fcfs, sjf"):
        make_scheduler(LengthwiseScheduler, model, policy="nope")
