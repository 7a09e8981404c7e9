"""One policy object gives the same order in the simulator, in the gateway's queue and inside vLLM.

The same 40 requests of known length, all queued before the first step, run in the simulator and in a real vLLM with a
real LLM. A preempted request keeps its arrival, and with it its key, in all three hosts.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.policies import Job, QueueView, make_policy
from lengthwise.predictors import PredictionInput, load_predictor
from lengthwise.predictors.contract import render_chat
from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.workloads import Workload
from tests.vllm.host import CHATS, REQUESTS, SLOTS, SRPT
from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

COUNT = len(REQUESTS)


@pytest.fixture
def vllm(vllm_runs: dict[str, Any]) -> dict[str, Any]:
    return vllm_runs


@pytest.fixture
def requests() -> list[dict[str, Any]]:
    return REQUESTS


def simulated(requests: list[dict[str, Any]], vllm: dict[str, Any], policy: str) -> Outcome:
    finished = vllm[policy]["finished"]
    workload = Workload.from_table(
        {
            "arrival_s": np.zeros(COUNT),
            "input_tokens": [finished[request["id"]]["prompt_tokens"] for request in requests],
            "output_tokens": [request["output_tokens"] for request in requests],
        },
        name="known",
    )
    fleet = Fleet.parse("1*llama-3-8b@a100").limited_to(max_num_seqs=SLOTS, max_num_batched_tokens=vllm["budget"])
    return simulate(workload, fleet, make_policy(policy), predictor="oracle")


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_the_order_of_admission_is_the_same_in_simulator_and_vllm(
    requests: list[dict[str, Any]], vllm: dict[str, Any], policy: str
) -> None:
    ours = [str(row) for row in simulated(requests, vllm, policy).admitted(0)]
    assert len(ours) == COUNT
    assert vllm[policy]["admitted"] == ours


def test_sjf_admits_by_length_and_fcfs_by_arrival(requests: list[dict[str, Any]], vllm: dict[str, Any]) -> None:
    lengths = [requests[int(name)]["output_tokens"] for name in vllm["sjf"]["admitted"]]
    assert lengths == sorted(lengths)
    assert vllm["fcfs"]["admitted"] == [request["id"] for request in requests]


def test_sjf_lowers_mean_latency_in_both(requests: list[dict[str, Any]], vllm: dict[str, Any]) -> None:
    steps = {p: np.mean([one["step"] for one in vllm[p]["finished"].values()]) for p in ("fcfs", "sjf")}
    virtual = {p: simulated(requests, vllm, p).summary.e2e_s.mean for p in ("fcfs", "sjf")}
    assert steps["sjf"] < 0.75 * steps["fcfs"]
    assert virtual["sjf"] < 0.75 * virtual["fcfs"]


def test_requests_without_a_hint_are_admitted_by_their_predictions(vllm: dict[str, Any]) -> None:
    sjf, fast, predicted = make_policy("sjf"), load_predictor("fast"), vllm["predicted"]
    keys = []
    for number, chat in enumerate(CHATS):
        prediction = fast.predict([PredictionInput(render_chat(chat), predicted["llm"], predicted["max_tokens"])])[0]
        keys.append(
            sjf.key(Job(str(number), 0.0, prediction=prediction, max_tokens=predicted["max_tokens"]), QueueView(), 0.0)
        )
    assert len(set(keys)) > len(CHATS) / 2, "most keys must differ; equal ones keep the order of arrival"
    assert predicted["admitted"] == [str(number) for number in sorted(range(len(CHATS)), key=keys.__getitem__)]
    assert predicted["late"] == 0


def test_every_answer_is_token_for_token_the_same_under_either_policy(vllm: dict[str, Any]) -> None:
    assert len(vllm["fcfs"]["finished"]) == COUNT
    for name, answer in vllm["fcfs"]["finished"].items():
        assert vllm["sjf"]["finished"][name]["tokens"] == answer["tokens"]


@pytest.mark.parametrize("policy", ["fcfs", "boost", "lengthwise"])
def test_a_preempted_request_keeps_its_arrival_and_key_in_every_host(tmp_path: Path, policy: str) -> None:
    from lengthwise.policies import PolicyQueue
    from lengthwise.vllm.scheduler import LengthwiseScheduler
    from tests.simulator.builders import engine
    from tests.vllm.scheduling import Run, drain, make_request, make_scheduler, step, tiny_model

    lengths = [60, 50, 40, 30, 20]
    requests = [
        make_request(str(n), 16, length, arrival=float(n), extra_args={"expected_tokens": length})
        for n, length in enumerate(lengths)
    ]
    scheduler = make_scheduler(LengthwiseScheduler, tiny_model(tmp_path), slots=4, blocks=14, policy=policy)
    for request in requests:
        scheduler.add_request(request)
    run = Run()
    while scheduler.has_unfinished_requests():
        step(scheduler, run)
        jobs = [scheduler.jobs.of(request) for request in scheduler.requests.values()]
        assert all(job.arrival == float(job.id) for job in jobs)
        waiting = [scheduler.jobs.of(request) for request in scheduler.waiting]
        # The gateway's queue, given the same jobs in order of arrival, has them in the same order.
        queue = PolicyQueue(make_policy(policy), slots=4)
        queue.running = len(scheduler.running)
        for job in sorted(waiting, key=lambda job: job.arrival):
            queue.push(dataclasses.replace(job), scheduler.now)
        if policy != "lengthwise":  # whose rounds depend on the order of arrival and completion as well
            assert [job.id for job in queue] == [job.id for job in waiting]
    assert run.preemptions > 0, "memory must run out"
    drain(scheduler, {})
    workload = Workload.from_table(
        {"arrival_s": [float(n) for n in range(len(lengths))], "input_tokens": [16] * 5, "output_tokens": lengths},
        name="preempted",
    )
    outcome = simulate(workload, Fleet((engine(seqs=4, blocks=13, block_size=16),)), policy, predictor="oracle")
    assert outcome.preemptions.sum() > 0
    assert outcome.arrival_s.tolist() == workload.arrival_s.tolist()


def test_running_requests_are_preempted_for_shorter_ones_at_most_twice(vllm: dict[str, Any]) -> None:
    served = vllm["preempting"]
    assert set(served["fcfs"]["preemptions"].values()) == {0}
    preempted = served[SRPT]["preemptions"]
    assert max(preempted.values()) == 2
    assert all(count == 0 for name, count in preempted.items() if name.startswith("short"))
    assert next(iter(served[SRPT]["answers"])).startswith("short")
    assert next(iter(served["fcfs"]["answers"])).startswith("long")


def test_preemption_changes_no_token_of_an_answer(vllm: dict[str, Any]) -> None:
    served = vllm["preempting"]
    assert len(served["fcfs"]["answers"]) == 14
    assert served[SRPT]["answers"] == served["fcfs"]["answers"]
