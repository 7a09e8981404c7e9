"""Laws that hold for any workload on any engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.policies import POLICIES
from lengthwise.simulator import EngineSpec, Fleet, Outcome, simulate
from lengthwise.workloads import Workload
from tests.simulator.builders import UNEVEN, engine, requests

policies = st.sampled_from(sorted(POLICIES))
predictors = st.sampled_from(["oracle", "none"])


@st.composite
def specs(draw: st.DrawFn) -> EngineSpec:
    """Engines so small that every limit is reached."""
    seqs = draw(st.integers(1, 6))
    return engine(
        UNEVEN,
        seqs=seqs,
        budget=draw(st.integers(seqs, 40)),
        blocks=draw(st.integers(12, 40)),
        block_size=draw(st.sampled_from([1, 2, 4, 16])),
        caching=draw(st.booleans()),
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
    return ~np.isnan(outcome.finished_s)


@given(simulations())
def test_every_request_finishes_or_is_refused(case: tuple[Workload, Fleet, str, str]) -> None:
    workload, fleet, policy, predictor = case
    outcome = simulate(workload, fleet, policy, predictor=predictor)
    sizes = zip(workload.input_tokens, workload.output_tokens, outcome.engine, strict=True)
    fits = [bool(fleet.engines[at].can_hold(prompt, answer)) for prompt, answer, at in sizes]
    assert (served(outcome) == fits).all()
    assert outcome.summary.requests + outcome.summary.refused == len(workload)


@given(simulations())
def test_arrival_start_first_token_and_finish_are_in_order(case: tuple[Workload, Fleet, str, str]) -> None:
    workload, fleet, policy, predictor = case
    outcome = simulate(workload, fleet, policy, predictor=predictor)
    finished = served(outcome)
    assert (outcome.arrival_s[finished] <= outcome.started_s[finished]).all()
    assert (outcome.started_s[finished] < outcome.first_token_s[finished]).all()
    several = outcome.output_tokens[finished] > 1
    assert ((outcome.first_token_s[finished] < outcome.finished_s[finished]) == several).all()
    assert (outcome.first_token_s[finished] <= outcome.finished_s[finished]).all()


@given(simulations())
def test_the_same_inputs_give_the_same_outcome_bit_for_bit(case: tuple[Workload, Fleet, str, str]) -> None:
    workload, fleet, policy, predictor = case
    once = simulate(workload, fleet, policy, predictor=predictor)
    again = simulate(workload, fleet, policy, predictor=predictor)
    assert once.to_table().equals(again.to_table())
    for one, two in zip(once.engines, again.engines, strict=True):
        assert one.admissions.tolist() == two.admissions.tolist()


@given(specs(), workloads(), st.sampled_from(["fcfs", "sjf", "tie", "hrrn"]))
def test_peak_admission_on_true_lengths_never_runs_out_of_memory(
    spec: EngineSpec, workload: Workload, policy: str
) -> None:
    """If a prompt is computed in one step: a longer prefill starts its answer later than predicted."""
    memory = max(spec.kv_tokens, 80 * spec.block_size)
    fleet = Fleet((replace(spec, kv_tokens=memory, max_num_batched_tokens=4096, admission="peak"),))
    assert simulate(workload, fleet, policy, predictor="oracle").summary.preemptions == 0


@given(st.lists(st.tuples(st.just(7), st.integers(1, 30)), min_size=1, max_size=20))
def test_sjf_minimises_mean_latency_of_simultaneous_arrivals_on_one_slot(lengths: list[tuple[int, int]]) -> None:
    workload, one_slot = requests(lengths), Fleet((engine(UNEVEN, seqs=1),))
    fcfs, sjf = (simulate(workload, one_slot, name, predictor="oracle").summary.e2e_s.mean for name in ("fcfs", "sjf"))
    assert sjf <= fcfs * (1 + 1e-12)
