"""Capacity planning by bisection."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.defaults import COMPARED_POLICIES
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.planning import CapacitySearch, candidates, plan_seeds
from lengthwise.workloads import Workload
from tests.simulator.builders import engine, requests

NO_LIMIT = math.inf


def burst(count: int) -> Workload:
    """Requests of ten tokens, all at once: an engine with two slots needs about 10 s for two, 20 s for three."""
    return requests([(1, 10)] * count)


def search(workload: Workload, e2e_s: float, **options: float) -> CapacitySearch:
    limits = LatencyLimits(NO_LIMIT, NO_LIMIT, e2e_s)
    return CapacitySearch(workload, engine(seqs=2), limits, router="round_robin", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("requests_", "engines"), [(2, 1), (3, 2), (8, 4), (9, 5)])
def test_two_requests_per_engine_finish_in_time(requests_: int, engines: int) -> None:
    found = search(burst(requests_), e2e_s=15.0, attainment=1.0, most=8).run(["fcfs"])[0]
    assert found.engines == engines


@given(st.integers(1, 24), st.integers(1, 9), st.sampled_from([0.5, 0.9, 1.0]))
@settings(max_examples=25)
def test_bisection_finds_the_result_of_trying_every_count(count: int, most: int, attainment: float) -> None:
    workload = burst(count)
    found = search(workload, e2e_s=15.0, attainment=attainment, most=most).run(["fcfs"])[0]
    enough = [
        engines
        for engines in range(1, most + 1)
        if search(workload, e2e_s=15.0, attainment=attainment, fewest=engines, most=engines).run(["fcfs"])[0].engines
    ]
    assert found.engines == (min(enough) if enough else None)


def test_all_policies_are_simulated_with_the_fewest_engines_that_any_needs() -> None:
    lengths = [(1, 40), (1, 1), (1, 1), (1, 1)] * 3
    plans = search(requests(lengths), e2e_s=45.0, attainment=0.9, most=6).run(["fcfs", "sjf"])
    fewest = min(plan.engines for plan in plans if plan.engines is not None)
    assert all(plan.trial(fewest) is not None for plan in plans)
    assert [plan.predictor for plan in plans] == [None, "history"]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 9))
@settings(max_examples=25)
def test_the_result_for_several_seeds_is_the_largest_of_them(counts: list[int], most: int) -> None:
    alone = [search(burst(count), 15.0, attainment=1.0, most=most).run(["fcfs"])[0].engines for count in counts]
    searches = [search(burst(count), 15.0, attainment=1.0, most=most) for count in counts]
    (found,) = plan_seeds(searches, ["fcfs"])
    assert [each.engines for each in found.seeds] == alone  # starting from the first result changes no other
    assert found.engines == (None if None in alone else max(each or 0 for each in alone))
    share = found.attained(found.engines or most)
    assert share is not None
    assert share[1] - 1e-12 <= share[0] <= share[2] + 1e-12  # the mean of equal shares may be rounded
    assert (share[1] >= 1.0) == (found.engines is not None)


def test_an_unreachable_attainment_is_found_without_queueing() -> None:
    found = search(requests([(1, 10), (1, 90)]), e2e_s=20.0, attainment=0.9, most=4)
    assert found.run(["fcfs"])[0].engines is None
    assert found.without_queue() == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [({"attainment": 0.0}, "attainment"), ({"fewest": 3, "most": 2}, "1..16"), ({"fewest": 0}, "1..16")],
)
def test_bad_options_are_input_errors(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        search(burst(2), e2e_s=1.0, **options)


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (LatencyLimits(2.0, NO_LIMIT), ["slo", "ontime:ttft=2"]),
        (LatencyLimits(NO_LIMIT, NO_LIMIT, per_token_s=0.05), ["slo", "ontime:per_token=0.05"]),
        (LatencyLimits(0.5, NO_LIMIT, 30.0, 0.05), ["slo:seconds=30", "ontime:ttft=0.5,per_token=0.05"]),
        (LatencyLimits(NO_LIMIT, 0.05), ["slo"]),
    ],
)
def test_the_candidates_for_a_limit_are_told_it(limits: LatencyLimits, kept: list[str]) -> None:
    found = candidates(limits)
    assert found == [*COMPARED_POLICIES, "sjf", *kept]
    assert [make_policy(spec).name for spec in found] == found


def test_limits_of_single_requests_suit_every_policy_that_keeps_limits() -> None:
    none = LatencyLimits.given(None, None, None, None)
    assert candidates(none, own=True) == [*COMPARED_POLICIES, "sjf", "slo", "ontime"]


def test_a_search_counts_the_requests_own_limits() -> None:
    workload = burst(4).replace(e2e_limit_s=[1e-3, None, None, None])
    (trial,) = search(workload, 1e6, fewest=1, most=1).run(["fcfs"])[0].trials
    assert trial.attained == 0.75


def test_the_figures_of_a_fixed_fleet_are_over_all_draws() -> None:
    searches = [search(burst(count), 15.0, attainment=1.0, fewest=2, most=2) for count in (3, 4, 8)]
    fcfs, sjf = plan_seeds(searches, ["fcfs", "sjf"])
    assert searches[0].fixed
    assert len(fcfs.trials(2)) == 3
    assert fcfs.goodput_per_s(2) == pytest.approx(sum(each.goodput_per_s for each in fcfs.trials(2)) / 3)
    assert sjf.over(fcfs, 2, "e2e_s", "mean").ratio == pytest.approx(1.0), "equal lengths run in order of arrival"
    (trial,) = fcfs.seeds[0].trials
    served = trial.outcome.within(searches[0].slo).sum() / trial.outcome.summary.makespan_s
    assert trial.goodput_per_s == pytest.approx(served)
