"""Every policy inside vLLM's scheduler, with too little memory: every request finishes."""

from __future__ import annotations

import random

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from lengthwise.policies import POLICIES
from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.scheduling import drain, make_request, make_scheduler, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("policy", [*POLICIES, "classes(srpt)", "fair(tie)", "bounded(lengthwise):overtakes=3"])
def test_every_request_finishes_with_its_whole_answer_under_every_policy(model: Path, policy: str) -> None:
    rng = random.Random(policy)
    requests = [
        make_request(
            str(number),
            rng.choice([1, 15, 16, 17, 64, 300]),
            length := rng.randrange(1, 80),
            extra_args={"length_mu": rng.gauss(3, 1), "length_sigma": 0.7}
            if number % 3
            else {"expected_tokens": length},
            arrival=float(number),
        )
        for number in range(30)
    ]
    scheduler = make_scheduler(LengthwiseScheduler, model, blocks=25, policy=policy, predictor="none")
    run = drain(scheduler, {10 * n: requests[6 * n : 6 * n + 6] for n in range(5)})
    assert sorted(run.finished_at, key=int) == [str(number) for number in range(30)]
    assert all(request.num_output_tokens == request.max_tokens for request in requests)
    assert run.preemptions > 0
