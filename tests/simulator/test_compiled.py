"""The compiled engine gives the outcome of the readable engine, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.simulator import Fleet, Outcome, Pools, simulate
from lengthwise.simulator.fleet import parse_fleet_events
from lengthwise.workloads import Workload
from tests.simulator.builders import UNEVEN, engine, requests

POLICIES = [
    "fcfs", "sjf", "tie", "ltr", "sept", "lept", "srpt:c=0.8", "srpt:c=0.3,times=2", "gittins", "hrrn", "boost",
    "preble", "lpm", "lengthwise", "slo", "slo:seconds=0.3", "slo:seconds=2",
    "ontime", "ontime:ttft=0.3", "ontime:per_token=0.02,late_share=0.5",
    "fair(ontime:ttft=0.3)", "classes(ontime:ttft=0.5)", "bounded(slo:seconds=1):overtakes=4",
    "fair(tie)", "bounded(sjf):overtakes=3", "classes(sjf)", "fair(srpt:c=0.8)", "sessions(fcfs)", "sessions(slo)",
]  # fmt: skip


COMPILED = [
    "lengthwise",
    "slo",
    "slo:seconds=1",
    "slo:seconds=8",
    "ontime:ttft=1",
    "ontime:ttft=8,per_token=0.05",
    "hrrn",
    "boost",
    "lpm",
    "preble",
    "srpt:c=0.8",
    "gittins",
    "fair(ontime:ttft=1)",
    "background(lengthwise):share=0.2",
]


@dataclass(frozen=True)
class Case:
    workload: Workload
    fleet: Fleet
    policy: str
    predictor: str
    options: dict[str, Any]


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    n = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    prompts, answers = rng.integers(1, 40, n), rng.geometric(1 / draw(st.sampled_from([3, 12, 30])), n)
    arrivals = np.sort(rng.uniform(0, draw(st.sampled_from([0.0, 0.2, 1.0, 5.0])), n))
    columns: dict[str, Any] = {"arrival_s": arrivals, "input_tokens": prompts, "output_tokens": answers}
    columns["priority"] = rng.integers(0, 2, n).astype(np.int32) if draw(st.booleans()) else np.zeros(n, np.int32)
    if draw(st.booleans()):
        for name, seconds in (("ttft_limit_s", 0.4), ("per_token_limit_s", 0.03), ("e2e_limit_s", 1.0)):
            columns[name] = [seconds * scale if scale < 1.5 else None for scale in rng.uniform(0.1, 2, n).tolist()]
    columns["tenant"] = rng.choice(["a", "b", "c"], n).tolist()
    size = draw(st.sampled_from([None, 2, 4, 8]))
    if size is not None:  # a few groups with a common prefix
        streams = rng.integers(0, 3, n)
        shared = rng.integers(0, prompts // size + 1)
        columns["block_hashes"] = [
            [int(stream) * 1000 + i if i < same else 10_000 + row * 100 + i for i in range(prompt // size)]
            for row, (stream, same, prompt) in enumerate(zip(streams, shared, prompts, strict=True))
        ]
    return Workload.from_table(columns, name="drawn", block_size=size)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    workload = draw(workloads())
    seqs = draw(st.integers(1, 6))
    spec = engine(
        UNEVEN,
        seqs=seqs,
        budget=draw(st.integers(seqs, 40)),
        blocks=draw(st.integers(12, 40)),
        block_size=draw(st.sampled_from([1, 2, 4, 8])),
    )
    spec = replace(
        spec,
        prefix_caching=draw(st.booleans()),
        admission=draw(st.sampled_from(["prompt", "prompt", "peak", "reserve"])),
    )
    # One engine is large enough that the workload is not refused as a whole.
    large = replace(spec, kv_tokens=4096, max_model_len=4096)
    if draw(st.booleans()):  # without chunked prefill a step must hold the longest prompt, and seldom holds two
        budget = draw(st.integers(48, 60))
        spec = replace(spec, max_model_len=48, max_num_batched_tokens=budget, chunked_prefill=False)
        large = replace(large, max_model_len=512, max_num_batched_tokens=512, chunked_prefill=False)
    options = {
        "prediction_delay_s": draw(st.sampled_from([0.0, 0.0, 0.03, 0.5])),
        "decision_s": draw(st.sampled_from([0.0, 0.002])),
    }
    predictor = draw(st.sampled_from(["oracle", "none", "noisy:log=0.6"]))
    return Case(workload, Fleet((large, spec)), draw(st.sampled_from(POLICIES)), predictor, options)


def assert_equal(accelerated: Outcome, readable: Outcome) -> None:
    """Assert that every time and count of every request, and every admission, is the same."""
    for name in ("started_s", "first_token_s", "finished_s", "preemptions", "recomputed_tokens", "cached_tokens"):
        assert np.array_equal(getattr(accelerated, name), getattr(readable, name), equal_nan=True), name
    for ours, theirs in zip(accelerated.engines, readable.engines, strict=True):
        assert ours.admissions.tolist() == theirs.admissions.tolist()
        assert (ours.steps, ours.busy_s, ours.kv_peak) == (theirs.steps, theirs.busy_s, theirs.kv_peak)
        assert ours.kv_mean == theirs.kv_mean
        for name in ("time", "waiting", "running", "kv_use"):
            assert np.array_equal(getattr(ours.timeline, name), getattr(theirs.timeline, name)), name


def run(case: Case, **options: Any) -> Outcome:
    return simulate(case.workload, case.fleet, case.policy, predictor=case.predictor, **case.options, **options)


@settings(max_examples=150)
@given(cases())
def test_the_compiled_engine_equals_the_readable_engine(case: Case) -> None:
    assert_equal(run(case), run(case, accelerate=False))


def closed_loop(case: Case, seed: int) -> Case:
    """Return the case with its requests as the turns of a few sessions, which wait for the answers before."""
    rng = np.random.default_rng(seed)
    n = len(case.workload)
    think = [None if rng.uniform() < 0.2 else float(rng.choice([0.0, 0.05, 1.0])) for _ in range(n)]
    sessions = [f"s{number}" for number in rng.integers(0, max(1, n // 4), n)]
    turns = case.workload.replace(session=sessions, think_s=pa.array(think, pa.float64()))
    return replace(case, workload=turns)


@settings(max_examples=100)
@given(cases(), st.integers(0, 2**32), st.sampled_from(["round_robin", "least_load", "lengthwise"]), st.booleans())
def test_in_a_closed_loop_both_engines_have_the_same_outcome(case: Case, seed: int, router: str, fails: bool) -> None:
    events = parse_fleet_events("down", "1@0.3") if fails else []
    options: dict[str, Any] = {"router": router, "fleet_events": events, "routing_s": 0.003 if fails else 0.0}
    case = closed_loop(case, seed)
    compiled, readable = run(case, **options), run(case, accelerate=False, **options)
    assert compiled.engine.tolist() == readable.engine.tolist()
    assert np.array_equal(compiled.arrival_s, readable.arrival_s)
    assert_equal(compiled, readable)
    for row, turn in enumerate(case.workload.next_turn.tolist()):
        if turn >= 0 and np.isfinite(compiled.finished_s[row]):
            ready = compiled.finished_s[row] + case.workload.think_s[turn]
            assert compiled.arrival_s[turn] == max(case.workload.arrival_s[turn], ready)
        elif turn >= 0:
            assert np.isnan(compiled.finished_s[turn])  # a refused turn ends its session


@settings(max_examples=60)
@given(cases(), st.sampled_from(["least_load", "e2", "lengthwise"]), st.sampled_from([0.0, 0.004]))
def test_behind_a_router_both_engines_have_the_same_outcome(case: Case, router: str, routing_s: float) -> None:
    events = parse_fleet_events("down", "1@0.3") if routing_s else []
    options: dict[str, Any] = {"router": router, "routing_s": routing_s, "fleet_events": events}
    compiled, readable = run(case, **options), run(case, accelerate=False, **options)
    assert compiled.engine.tolist() == readable.engine.tolist()
    assert compiled.resubmissions.tolist() == readable.resubmissions.tolist()
    assert_equal(compiled, readable)


@pytest.mark.parametrize("delay", [0.0, 0.4])
@pytest.mark.parametrize("blocks", [4096, 90], ids=["ample memory", "short memory"])
@pytest.mark.parametrize("policy", COMPILED)
def test_a_compiled_policy_equals_the_readable_policy_over_many_requests(
    policy: str, blocks: int, delay: float
) -> None:
    """Under overload, with enough requests for the statistics of the policy, shared prefixes and two priorities."""
    rng, n = np.random.default_rng(4), 300
    lengths = np.clip(rng.lognormal(2.5, 1.0, n), 1, 120).astype(int)
    prompts = rng.integers(1, 30, n)
    hashes = [[int(row % 5) * 100 + block for block in range(prompt // 4)] for row, prompt in enumerate(prompts)]
    workload = requests(
        list(zip(prompts.tolist(), lengths.tolist(), strict=True)),
        np.sort(rng.uniform(0, 5, n)).tolist(),
        blocks=hashes,
        block_size=4,
        priority=(rng.random(n) < 0.2).astype(np.int32),
    )
    fleet = Fleet((engine(UNEVEN, seqs=6, blocks=blocks, caching=True),))
    compiled, readable = (
        simulate(workload, fleet, policy, predictor="noisy:0.6", prediction_delay_s=delay, accelerate=on)
        for on in (None, False)
    )
    assert_equal(compiled, readable)
    assert compiled.admitted() != sorted(compiled.admitted())


def test_with_separate_prefill_and_decode_pools_both_engines_agree() -> None:
    rng = np.random.default_rng(3)
    n = 60
    hashes = [[int(row % 4) * 100 + i for i in range(8)] for row in range(n)]
    lengths = list(zip((32 + rng.integers(0, 9, n)).tolist(), rng.integers(1, 30, n).tolist(), strict=True))
    workload = requests(lengths, np.sort(rng.uniform(0, 1, n)).tolist(), blocks=hashes, block_size=4)
    spec = engine(UNEVEN, seqs=4, blocks=60, caching=True, kv_bytes_per_token=1 << 20)
    compiled, readable = (
        simulate(
            workload,
            Fleet((spec,) * 4),
            "sjf",
            router="lengthwise",
            predictor="oracle",
            pools=Pools(2, 2),
            accelerate=on,
        )
        for on in (None, False)
    )
    assert_equal(compiled, readable)
    assert compiled.handover is not None
    assert readable.handover is not None
    assert compiled.handover.sent_tokens.tolist() == readable.handover.sent_tokens.tolist()
