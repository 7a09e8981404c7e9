"""The compiled engine beside the one that is written plainly: the same to the last bit, whatever the case."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.policies import make_policy
from lengthwise.simulator import Fleet, Outcome, predict_workload, simulate
from lengthwise.simulator.traffic import Traffic
from lengthwise.workloads import Workload
from tests.simulator.builders import UNEVEN, engine
from tests.simulator.reference import ReferenceEngine

POLICIES = [
    "fcfs", "sjf", "tie", "ltr", "sept", "srpt:c=0.8", "srpt:c=0.3,times=2", "gittins", "hrrn", "boost", "preble",
    "lengthwise", "fair(tie)", "bounded(sjf):overtakes=3", "classes(sjf)", "fair(srpt:c=0.8)",
]  # fmt: skip


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
    columns["tenant"] = rng.choice(["a", "b", "c"], n).tolist()
    size = draw(st.sampled_from([None, 2, 4, 8]))
    if size is not None:  # a few streams, each beginning alike
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
    if draw(st.booleans()):  # prompts in one piece: a step must hold the longest, and seldom holds two
        budget = draw(st.integers(48, 60))
        spec = replace(spec, max_model_len=48, max_num_batched_tokens=budget, chunked_prefill=False)
        large = replace(large, max_model_len=512, max_num_batched_tokens=512, chunked_prefill=False)
    options = {
        "prediction_delay_s": draw(st.sampled_from([0.0, 0.0, 0.03, 0.5])),
        "decision_s": draw(st.sampled_from([0.0, 0.002])),
    }
    predictor = draw(st.sampled_from(["oracle", "none", "noisy:log=0.6"]))
    return Case(workload, Fleet((large, spec)), draw(st.sampled_from(POLICIES)), predictor, options)


def plainly(case: Case) -> list[ReferenceEngine]:
    quantile = None if case.fleet.engines[0].admission == "prompt" else case.fleet.engines[0].admission_quantile
    predictions = predict_workload(case.workload, case.predictor)
    delay = case.options["prediction_delay_s"]
    traffic = Traffic.of(case.workload, predictions, prediction_delay_s=delay, quantile=quantile)
    hosts = []
    for number, spec in enumerate(case.fleet.engines):
        rows = range(number, len(case.workload), len(case.fleet))
        host = ReferenceEngine(spec, make_policy(case.policy), traffic, rows, decision_s=case.options["decision_s"])
        host.run()
        hosts.append(host)
    return hosts


def agree(case: Case, outcome: Outcome) -> None:
    for number, host in enumerate(plainly(case)):
        assert outcome.engines[number].admissions.tolist() == host.admissions
        for one in host.arriving:
            ours = [getattr(outcome, name)[one.row] for name in ("started", "first_token", "finish")]
            assert np.array_equal(ours, [one.started, one.first_token, one.finish], equal_nan=True)
            assert outcome.preemptions[one.row] == one.preemptions
            assert outcome.recomputed_tokens[one.row] == one.recomputed
            assert outcome.cached_tokens[one.row] == one.cached


@settings(deadline=None, max_examples=150)
@given(cases())
def test_every_moment_is_that_of_the_plain_engine(case: Case) -> None:
    agree(case, simulate(case.workload, case.fleet, case.policy, predictor=case.predictor, **case.options))


@settings(deadline=None, max_examples=50)
@given(cases())
def test_steps_that_are_leapt_over_change_nothing(case: Case) -> None:
    agree(case, simulate(case.workload, case.fleet, case.policy, predictor=case.predictor, jump=False, **case.options))
