"""Preemption has a bounded cost, and starvation bounds hold under it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.lengths import Point
from lengthwise.policies import Job, PolicyQueue, make_policy
from lengthwise.policies.base import choose_victim
from lengthwise.simulator import Fleet, Outcome, predict_workload, simulate
from lengthwise.workloads import Workload
from tests.simulator.builders import UNEVEN, engine

PLENTY = 100_000


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Long and short requests, dense enough that some wait and that short ones arrive while long ones run."""
    n = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns: dict[str, Any] = {
        "arrival_s": np.sort(rng.uniform(0, draw(st.sampled_from([0.1, 1.0, 4.0])), n)),
        "input_tokens": rng.integers(1, 60, n),
        "output_tokens": np.where(rng.random(n) < 0.3, rng.integers(40, 120, n), rng.integers(1, 10, n)),
    }
    return Workload.from_table(columns, name="drawn")


def served(
    workload: Workload, policy: str, predictor: str = "oracle", *, slots: int = 2, caching: bool = False
) -> Outcome:
    spec = engine(UNEVEN, seqs=slots, budget=64, blocks=PLENTY, block_size=1, caching=caching)
    return simulate(workload, Fleet((spec,)), policy, predictor=predictor)


@settings(max_examples=60)
@given(
    workloads(),
    st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
    st.integers(0, 5),
    st.sampled_from(["oracle", "noisy:log=0.8", "none"]),
    st.booleans(),
)
def test_recomputed_tokens_are_at_most_times_prompt_plus_c_times_the_prediction(
    workload: Workload, c: float, times: int, predictor: str, caching: bool
) -> None:
    outcome = served(workload, f"srpt:c={c:g},times={times}", predictor, caching=caching)
    assert np.isfinite(outcome.finished_s).all()
    assert outcome.preemptions.max() <= times
    initial_expected = predict_workload(workload, predictor).expected_and_tail()[0]
    once = outcome.input_tokens + np.floor(c * initial_expected + 1e-9)
    assert (outcome.recomputed_tokens <= times * once).all()


def max_overtakes(workload: Workload, outcome: Outcome) -> int:
    """Return the largest number of later arrivals that finish before one request."""
    earlier = outcome.finished_s[None, :] < outcome.finished_s[:, None]
    later = workload.arrival_s[None, :] > workload.arrival_s[:, None]
    return int((earlier & later).sum(axis=1).max())


@settings(max_examples=60)
@given(workloads(), st.integers(0, 6), st.sampled_from(["oracle", "noisy:log=0.8"]))
def test_inside_bounded_a_preempted_request_is_not_overtaken_beyond_the_bound(
    workload: Workload, overtakes: int, predictor: str
) -> None:
    outcome = served(workload, f"bounded(srpt:c=1):overtakes={overtakes}", predictor, slots=1)
    assert max_overtakes(workload, outcome) <= overtakes


def stream_of_short_requests(count: int) -> Workload:
    """A long request, and a short one shortly after each resumption of the long one."""
    return Workload.from_table(
        {
            "arrival_s": np.concatenate([[0.0], 0.05 + 0.1 * np.arange(count)]),
            "input_tokens": np.concatenate([[40], np.full(count, 1)]),
            "output_tokens": np.concatenate([[400], np.full(count, 1)]),
        },
        name="stream",
    )


def test_c_alone_does_not_bound_the_recomputed_tokens() -> None:
    """Without a limit, each short request makes the long one recompute its prompt and its tokens."""
    few, many = (served(stream_of_short_requests(n), "srpt:c=1,times=1000", slots=1) for n in (10, 40))
    assert few.preemptions[0] >= 8
    assert many.preemptions[0] > 2 * few.preemptions[0]
    assert many.recomputed_tokens[0] > 2 * few.recomputed_tokens[0]
    limited = served(stream_of_short_requests(40), "srpt:c=1,times=3", slots=1)
    assert limited.preemptions[0] == 3
    assert limited.finished_s[0] < many.finished_s[0]


def test_requests_preempted_often_are_evicted_last() -> None:
    preempted, fresh = (
        Job(name, 0.0, prediction=Point(length)) for name, length in (("preempted", 100), ("fresh", 50))
    )
    srpt = make_policy("srpt:c=0.8,times=2")
    assert choose_victim(srpt, [preempted, fresh], None, 0.0) is preempted
    preempted.preemptions = 2
    assert choose_victim(srpt, [preempted, fresh], None, 0.0) is fresh
    assert choose_victim(srpt, [preempted], None, 0.0) is preempted, "the only candidate"


@pytest.mark.parametrize("policy", ["srpt:c=0.8", "gittins", "bounded(srpt:c=0.8):overtakes=0"])
def test_a_preempted_request_keeps_its_round_and_waits_before_equal_keys(policy: str) -> None:
    queue = PolicyQueue(make_policy(policy))
    preempted, equal = Job("preempted", 0.0, prediction=Point(100)), Job("equal", 1.0, prediction=Point(100))
    queue.push(preempted, 0.0)
    assert queue.pop(0.0) is preempted
    round_before = preempted.round_number
    queue.push(equal, 1.0)
    queue.push(preempted, 2.0, front=True)
    assert preempted.round_number == round_before
    assert queue.pop(2.0) is preempted
