"""The step log of vLLM's scheduler: every token of every request is in it, once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from lengthwise.simulator.step_log import read_steps
from lengthwise.vllm.scheduler import LengthwiseScheduler
from tests.vllm.scheduling import drain, make_request, make_scheduler, tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def traffic(seed: int) -> dict[int, list[Any]]:
    rng = random.Random(seed)
    arrivals: dict[int, list[Any]] = {}
    for row in range(30):
        made = make_request(str(row), rng.choice([1, 17, 64, 130]), rng.choice([1, 2, 9, 40]), arrival=float(row))
        arrivals.setdefault(rng.randrange(60), []).append(made)
    return arrivals


@pytest.mark.parametrize("seed", range(3))
def test_the_log_holds_the_content_of_each_step(model: Path, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "steps.parquet"
    limits: dict[str, Any] = {"slots": 4, "budget": 96, "blocks": 40, "prefix_caching": True}
    scheduler = make_scheduler(LengthwiseScheduler, model, policy="sjf", predictor="none", steps=path, **limits)
    run = drain(scheduler, traffic(seed))
    scheduler.steps.close()
    table, facts = read_steps(path)
    held = [sum(tokens.values()) for tokens, _ in run.steps if tokens]
    assert (table["prompt_tokens"].to_numpy() + table["decodes"].to_numpy()).tolist() == held
    assert (table["running"].to_numpy() >= [len(tokens) for tokens, _ in run.steps if tokens]).all()
    assert (table["seconds"].to_numpy() > 0).all()
    assert (table["schedule_cpu_s"].to_numpy() > 0).all()
    assert (facts.kv_tokens, facts.block_size, facts.max_num_seqs) == (39 * 16, 16, 4)
    assert (facts.max_num_batched_tokens, facts.prefix_caching, facts.chunked_prefill) == (96, True, True)


def test_without_preemption_or_cache_every_prompt_is_computed_once(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    scheduler = make_scheduler(LengthwiseScheduler, model, policy="fcfs", predictor="none", steps=path)
    arrivals = traffic(7)
    requests = [request for some in arrivals.values() for request in some]
    drain(scheduler, arrivals)
    scheduler.steps.close()
    table, _ = read_steps(path)
    assert table["prompt_tokens"].to_numpy().sum() == sum(one.num_prompt_tokens for one in requests)
    assert table["prompt_pairs"].to_numpy().sum() == sum(one.num_prompt_tokens**2 for one in requests)
    # The last token of an answer is never computed.
    assert table["decodes"].to_numpy().sum() == sum(one.max_tokens - 1 for one in requests)
    contexts = sum(one.num_prompt_tokens + n for one in requests for n in range(1, one.max_tokens))
    assert table["context_tokens"].to_numpy().sum() == contexts


def test_no_log_is_written_by_default(model: Path) -> None:
    assert make_scheduler(LengthwiseScheduler, model, policy="sjf").steps is None
