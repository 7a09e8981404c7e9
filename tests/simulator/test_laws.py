"""Laws that hold for any workload on any engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.lengths import Point
from lengthwise.policies import POLICIES, Job, make_policy
from lengthwise.simulator import Engine, EngineSpec, Fleet, Outcome, simulate
from lengthwise.simulator.outcome import Ledger
from tests.simulator.builders import UNEVEN, engine, requests

if TYPE_CHECKING:
    from lengthwise.workloads import Workload

policies = st.sampled_from(sorted(POLICIES))
predictors = st.sampled_from(["oracle", "none"])


@st.composite
def specs(draw: st.DrawFn) -> EngineSpec:
    """Engines small enough that every limit is met."""
    seqs = draw(st.integers(1, 6))
    return engine(
        UNEVEN,
        seqs=seqs,
        budget=draw(st.integers(seqs, 40)),
        blocks=draw(st.integers(12, 40)),
        block_size=draw(st.sampled_from([1, 2, 4, 16])),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    lengths = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=25))
    arrivals = draw(st.lists(st.floats(0, 1), min_size=len(lengths), max_size=len(lengths)))
    return requests(lengths, sorted(arrivals) if draw(st.booleans()) else 0.0)


@st.composite
def simulations(draw: st.DrawFn) -> tuple[Workload, Fleet, str, str]:
    workload = draw(workloads())
    # One engine is large enough that the workload is not refused as a whole.
    fleet = Fleet((engine(UNEVEN), *draw(st.lists(specs(), max_size=2))))
    return workload, fleet, draw(policies), draw(predictors)


def served(outcome: Outcome) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return ~np.isnan(outcome.finish)


@settings(deadline=None)
@given(simulations())
def test_everybody_is_served_to_the_end_or_refused(case: tuple[Workload, Fleet, str, str]) -> None:
    workload, fleet, policy, predictor = case
    outcome = simulate(workload, fleet, policy, predictor=predictor)
    sizes = zip(workload.input_tokens, workload.output_tokens, outcome.engine, strict=True)
    fits = [fleet.engines[at].can_hold(prompt, answer) for prompt, answer, at in sizes]
    assert (served(outcome) == fits).all()
    assert outcome.summary.requests + outcome.summary.refused == len(workload)


@settings(deadline=None)
@given(simulations())
def test_nothing_happens_before_its_cause(case: tuple[Workload, Fleet, str, str]) -> None:
    workload, fleet, policy, predictor = case
    outcome = simulate(workload, fleet, policy, predictor=predictor)
    there = served(outcome)
    assert (outcome.arrival[there] <= outcome.started[there]).all()
    assert (outcome.started[there] < outcome.first_token[there]).all()
    several = outcome.output_tokens[there] > 1
    assert ((outcome.first_token[there] < outcome.finish[there]) == several).all()
    assert (outcome.first_token[there] <= outcome.finish[there]).all()


@settings(deadline=None)
@given(simulations())
def test_the_same_inputs_give_the_same_outcome_to_the_last_bit(case: tuple[Workload, Fleet, str, str]) -> None:
    workload, fleet, policy, predictor = case
    once = simulate(workload, fleet, policy, predictor=predictor)
    again = simulate(workload, fleet, policy, predictor=predictor)
    singly = simulate(workload, fleet, policy, predictor=predictor, jump=False)
    for other in (again, singly):
        assert once.to_table().equals(other.to_table())
        assert once.admissions == other.admissions


@settings(deadline=None)
@given(specs(), workloads(), policies)
def test_no_step_exceeds_a_limit_and_none_is_wasted(spec: EngineSpec, workload: Workload, policy: str) -> None:
    ledger = Ledger(len(workload))
    host = Engine(spec, make_policy(policy), ledger)
    lengths = workload.output_tokens.tolist()
    for row, prompt in enumerate(workload.input_tokens.tolist()):
        host.submit(Job(str(row), 0.0, prompt, Point(lengths[row])), row, lengths[row])
    generated = [0] * len(workload)
    computed = 0
    while host.busy:
        before = {request: request.job.generated for request in [*host.running]}
        step = host.step()
        assert 0 < step.tokens <= spec.max_num_batched_tokens
        assert len(step.scheduled) <= spec.max_num_seqs
        assert len(host.running) <= spec.max_num_seqs
        assert 0 <= host.kv.free <= host.kv.total
        assert host.kv.free == host.kv.total - sum(request.blocks for request in host.running)
        assert not (step.preempted and step.admitted)
        assert step.end > step.start
        computed += step.tokens
        for request in step.scheduled:
            assert request.job.generated - before.get(request, request.job.generated) <= 1
            generated[request.row] = request.job.generated
    fitting = [row for row in range(len(workload)) if row not in ledger.refused]
    assert [generated[row] for row in fitting] == [lengths[row] for row in fitting]
    assert host.kv.free == host.kv.total
    sizes = workload.input_tokens + workload.output_tokens - 1  # the last token is never computed
    least = int(sizes[fitting].sum())
    assert computed >= least
    if not any(ledger.preemptions):
        assert computed == least


@settings(deadline=None)
@given(st.lists(st.tuples(st.just(7), st.integers(1, 30)), min_size=1, max_size=20))
def test_sjf_has_the_least_mean_when_all_arrive_at_once_at_one_slot(lengths: list[tuple[int, int]]) -> None:
    workload, one_slot = requests(lengths), Fleet((engine(UNEVEN, seqs=1),))
    fcfs, sjf = (simulate(workload, one_slot, name).summary.e2e_s.mean for name in ("fcfs", "sjf"))
    assert sjf <= fcfs * (1 + 1e-12)
