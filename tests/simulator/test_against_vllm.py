"""The simulated engine takes the same steps as vLLM's own scheduler, with prefix caching and too little memory.

A step takes one second, so that times count steps. vLLM hashes blocks from token ids, the workload brings its hashes;
equal tokens have equal hashes in both.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.vllm.need import need_vllm

need_vllm()
pytestmark = pytest.mark.engine

from pathlib import Path

from vllm.v1.core.sched.scheduler import Scheduler

from lengthwise.simulator import Fleet, Outcome, simulate
from lengthwise.workloads import Workload
from tests.simulator.builders import engine
from tests.vllm.scheduling import BLOCK_SIZE, make_request, make_scheduler, model_output, tiny_model

SLOTS = 6
BUDGET = 96


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@dataclass(frozen=True)
class Drawn:
    """Requests, many with a common prefix: prompts as token ids, lengths of answers, steps of arrival."""

    prompts: list[list[int]]
    answers: list[int]
    steps: list[int]

    @classmethod
    def of(cls, seed: int, *, shared_prefixes: bool = True) -> Drawn:
        rng = random.Random(seed)
        streams = [[rng.randrange(1000) for _ in range(200)] for _ in range(3)]
        prompts = []
        for _ in range(40):
            length = rng.choice([1, 15, 16, 17, 33, 64, 130])
            same = rng.choice([0, 16, 40, 64, 200]) if shared_prefixes else 0
            stream = rng.choice(streams)
            prompts.append([token if i < same else rng.randrange(1000) for i, token in enumerate(stream[:length])])
        answers = [rng.choice([1, 2, 8, 30, 70]) for _ in prompts]
        return cls(prompts, answers, sorted(rng.randrange(120) for _ in prompts))

    def workload(self, *, hashed: bool = True) -> Workload:
        """Return the same requests for the simulator; equal prefixes have equal hashes."""
        known: dict[tuple[int, ...], int] = {}
        blocks = [
            [
                known.setdefault(tuple(prompt[:end]), len(known))
                for end in range(BLOCK_SIZE, len(prompt) + 1, BLOCK_SIZE)
            ]
            for prompt in self.prompts
        ]
        return Workload.from_table(
            {
                "arrival_s": [float(step) for step in self.steps],
                "input_tokens": [len(prompt) for prompt in self.prompts],
                "output_tokens": self.answers,
                "block_hashes": blocks if hashed else [None] * len(blocks),
            },
            name="drawn",
            block_size=BLOCK_SIZE,
        )


def run_vllm(scheduler: Any, drawn: Drawn) -> list[tuple[int, int, int]]:
    """Return (step of finish, preemptions, cached tokens) of each request; its id is its only token."""
    requests = [
        make_request(str(row), len(prompt), answer, arrival=float(step), prompt=prompt)
        for row, (prompt, answer, step) in enumerate(zip(drawn.prompts, drawn.answers, drawn.steps, strict=True))
    ]
    finished: dict[str, int] = {}
    cached: dict[str, int] = {}
    now = 0
    while now <= drawn.steps[-1] or scheduler.has_unfinished_requests():
        for request, step in zip(requests, drawn.steps, strict=True):
            if step == now:
                scheduler.add_request(request)
        output = scheduler.schedule()
        for data in output.scheduled_new_reqs:
            cached.setdefault(data.req_id, data.num_computed_tokens)
        names = list(output.num_scheduled_tokens)
        done = [scheduler.requests[name] for name in names]
        sampled = [[int(one.request_id)] if one.num_computed_tokens >= one.num_tokens else [] for one in done]
        now += 1
        if not names:
            continue
        result = model_output(names, sampled)
        for outputs in scheduler.update_from_output(output, result).values():
            finished |= {one.request_id: now for one in outputs.outputs if one.finish_reason is not None}
        assert now < 20_000, "the schedule does not drain"
    return [(finished[str(row)], one.num_preemptions, cached[str(row)]) for row, one in enumerate(requests)]


def simulated(drawn: Drawn, *, blocks: int, caching: bool, hashed: bool = True) -> Outcome:
    spec = engine(seqs=SLOTS, budget=BUDGET, blocks=blocks, block_size=BLOCK_SIZE, caching=caching)
    return simulate(drawn.workload(hashed=hashed), Fleet((spec,)))


def columns(outcome: Outcome) -> list[tuple[int, int, int]]:
    finish = outcome.finished_s.astype(int).tolist()
    return list(zip(finish, outcome.preemptions.tolist(), outcome.cached_tokens.tolist(), strict=True))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("blocks", [16, 24, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_every_request_finishes_in_the_same_step_as_in_vllm(model: Path, seed: int, blocks: int, caching: bool) -> None:
    drawn = Drawn.of(seed)
    # One of vLLM's blocks is never used.
    options: dict[str, Any] = {"slots": SLOTS, "budget": BUDGET, "blocks": blocks + 1, "prefix_caching": caching}
    theirs = run_vllm(make_scheduler(Scheduler, model, **options), drawn)
    assert columns(simulated(drawn, blocks=blocks, caching=caching)) == theirs


@pytest.mark.parametrize(("seed", "blocks"), [(21, 1000), (31, 1000), (36, 1000), (74, 1000), (34, 16), (51, 16)])
def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it(model: Path, seed: int, blocks: int) -> None:
    drawn = dense_arrivals(seed)
    limits: dict[str, Any] = {"slots": SLOTS, "budget": WHOLE, "blocks": blocks + 1, "prefix_caching": True}
    theirs = run_vllm(make_scheduler(Scheduler, model, **limits, context=WHOLE, chunked=False), drawn)
    assert columns(simulated_whole(drawn, blocks=blocks, chunked=False)) == theirs
    assert columns(simulated_whole(drawn, blocks=blocks, chunked=True)) != theirs


WHOLE = 208  # no request is longer: one prompt always fits into a step, two long ones do not


def dense_arrivals(seed: int) -> Drawn:
    drawn = Drawn.of(seed)
    return replace(drawn, steps=[step // 10 for step in drawn.steps])


def simulated_whole(drawn: Drawn, *, blocks: int, chunked: bool) -> Outcome:
    spec = engine(seqs=SLOTS, budget=WHOLE, blocks=blocks, block_size=BLOCK_SIZE, context=WHOLE, caching=True)
    return simulate(drawn.workload(), Fleet((replace(spec, chunked_prefill=chunked),)))


@pytest.mark.parametrize("blocks", [16, 24])
@pytest.mark.parametrize("seed", range(10, 16))
def test_without_hashes_a_preempted_request_finds_its_own_cached_blocks(model: Path, seed: int, blocks: int) -> None:
    drawn = Drawn.of(seed, shared_prefixes=False)
    options: dict[str, Any] = {"slots": SLOTS, "budget": BUDGET, "blocks": blocks + 1, "prefix_caching": True}
    theirs = run_vllm(make_scheduler(Scheduler, model, **options), drawn)
    ours = [columns(simulated(drawn, blocks=blocks, caching=True, hashed=hashed)) for hashed in (True, False)]
    assert ours == [theirs, theirs]


def test_the_drawn_requests_cause_preemptions_and_cache_hits() -> None:
    short = simulated(Drawn.of(0), blocks=16, caching=True)
    assert short.preemptions.sum() > 5
    assert short.cached_tokens.sum() > 100
    own = Drawn.of(11, shared_prefixes=False)
    assert columns(simulated(own, blocks=16, caching=True)) != columns(simulated(own, blocks=16, caching=False))
