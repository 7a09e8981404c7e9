"""Hypothesis strategies for policies by name, jobs and queues, shared by the conformance tests."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from lengthwise.policies import POLICIES, WRAPPERS, Job, QueueView, make_policy
from tests.lengths.strategies import predictions

VARIANTS = (
    "tie:beta=0.3",
    "tie:gamma=1",
    "tie:beta=0,gamma=0.5,tau=1",
    "srpt:c=0.8",
    "srpt:c=1,times=1",
    "gittins:margin=1",
    "boost:horizon=100,scale=10",
    "slo:seconds=5",
    "ontime:ttft=2",
    "ontime:ttft=30,per_token=0.05,late_share=0.5",
    "tests.conformance.outside_policy:ShortPrompt:rate=5",
)
INSIDE = (*POLICIES, *VARIANTS)

plain = st.sampled_from(INSIDE)
wrapped = st.builds("{}({})".format, st.sampled_from(sorted(WRAPPERS)), plain)
twice = st.builds("{}({})".format, st.sampled_from(sorted(WRAPPERS)), wrapped)
specs = st.one_of(plain, wrapped, twice)
policies = specs.map(make_policy)


def preempting(depth: int = 2) -> st.SearchStrategy[str]:
    """Policies that preempt for a waiting job, up to `depth` wrappers deep."""
    inside = st.sampled_from([spec for spec in INSIDE if make_policy(spec).preempts])
    for _ in range(depth):
        inside |= st.builds("{}({})".format, st.sampled_from(sorted(WRAPPERS)), inside)
    return inside


without_predictions = st.one_of(
    st.sampled_from(["fcfs", "boost", "lpm", "preble"]),
    st.sampled_from(["bounded(fcfs)", "classes(boost)", "bounded(classes(preble))"]),
)
views = st.builds(QueueView, st.integers(0, 10_000), st.integers(0, 512), st.integers(1, 512))
times = st.floats(0, 1e6)
limits = st.just(math.inf) | st.floats(1e-3, 86_400.0)


@st.composite
def jobs(draw: st.DrawFn, job_id: str = "a") -> Job:
    """Any job, in any state."""
    prompt = draw(st.integers(0, 100_000))
    job = Job(
        id=job_id,
        arrival=draw(times),
        prompt_tokens=prompt,
        prediction=draw(st.none() | predictions()),
        max_tokens=draw(st.none() | st.integers(1, 20_000)),
        priority=draw(st.integers(-2, 2)),
        generated=draw(st.one_of(st.just(0), st.integers(0, 20_000))),
        cached_tokens=draw(st.integers(0, prompt)),
        tenant=draw(st.sampled_from([None, "a", "b"])),
        session=draw(st.sampled_from([None, "s", "t"])),
        deadline=draw(st.just(math.inf) | times),
        ttft_limit_s=draw(limits),
        per_token_limit_s=draw(limits),
    )
    if draw(st.booleans()):  # a later prediction, so that `initial_expected` and `expected` differ
        job.update_prediction(draw(predictions()))
    job.round_number = draw(st.integers(0, 3))
    job.preemptions = draw(st.integers(0, 6))
    return job
