"""What every command says first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lengthwise.client.load import LoadPlan, LoadReport, Sample
from lengthwise.intervals import Ratio, ShareChange
from lengthwise.reports.runs import ReportedRun
from lengthwise.reports.verdict import (
    Verdict,
    on_change,
    on_engines,
    on_evaluation,
    on_fleet,
    on_load,
    on_measured,
    on_policies,
    on_probe,
    on_replay,
    on_traffic,
    replay_match,
)
from lengthwise.simulator import simulate
from lengthwise.simulator.gains import Gain
from lengthwise.simulator.metrics import LatencyLimits
from lengthwise.simulator.planning import CapacityPlan, CapacitySearch, SeededPlan, Trial
from lengthwise.traffic.scores import PredictionScores
from tests.reports.builders import FCFS, GOOD, run
from tests.simulator.builders import UNEVEN, fleet, requests


def test_the_verdict_says_what_got_better_what_it_cost_and_whether_it_matters() -> None:
    assert str(on_policies([FCFS, GOOD])) == (
        "lengthwise with the predictor fast lowers mean E2E by 40 % against fcfs at load 0.90, at no cost: worth it. "
        "Mean E2E -40 % [-45, -34], p99 E2E +5 %. "
        "The shortest tenth of answers takes 0.25 times as long as under fcfs, the longest 1.00 times."
    )


@pytest.mark.parametrize(
    ("runs", "begins"),
    [
        ([FCFS, run("sjf", Ratio(0.99, 0.95, 1.02))], "No difference beyond noise at load 0.90"),
        ([FCFS, run("sjf", Ratio(1.2, 1.1, 1.3))], "Nothing is better than fcfs at load 0.90"),
        ([FCFS, run("sjf", Ratio(0.5, 0.4, 0.6), predictor="oracle")], "With TRUE LENGTHS, which no server has: sjf"),
        (
            [FCFS, GOOD, run("sjf", Ratio(0.5, 0.4, 0.6), predictor="oracle")],
            "lengthwise with the predictor fast lowers",
        ),
        ([FCFS, run("sjf", Ratio(0.5, 0.4, 0.6), 3.0), GOOD], "lengthwise with the predictor fast lowers"),
        ([FCFS], "Mean E2E of fcfs is 10.00 s at load 0.90; nothing is compared"),
        ([ReportedRun("sjf", latency={"e2e_s": {"mean": 2.0}})], "Mean E2E of sjf is 2.00 s."),
    ],
)
def test_the_verdict_without_a_clear_gain_states_that(runs: Sequence[ReportedRun], begins: str) -> None:
    assert on_policies(runs).headline.startswith(begins)


def test_a_high_tail_is_named_as_the_price() -> None:
    verdict = on_policies([FCFS, run("sjf", Ratio(0.5, 0.4, 0.6), 3.0)])
    assert verdict.headline.endswith("; it raises p99 E2E by 200 %: worth it if the tail may grow.")


def test_the_policy_with_the_most_requests_within_the_limits_is_named_and_its_price() -> None:
    within = ShareChange(0.365, 0.084, 0.2, 0.3)
    base = replace(FCFS, within=ShareChange(0.084, 0.084, 0.0, 0.0))
    best = replace(GOOD, within=within, slo="TTFT at most 2 s")
    most = replace(run("sjf", Ratio(0.7, 0.6, 0.8), 3.0), within=replace(within, share=0.73), slo="TTFT at most 2 s")
    verdict = on_policies([base, most, best])
    assert "and has 36.5 % instead of 8.4 % of requests within the limits" in verdict.headline
    assert (
        "Most requests within TTFT at most 2 s: 73.0 % under sjf (36.5 % under lengthwise, 8.4 % under fcfs), "
        "2.0 times as many; it raises p99 E2E by 200 %."
    ) in verdict.lead


def test_a_text_has_its_first_sentence_as_headline() -> None:
    assert Verdict.of("It helps. By 20.5 %. Really.") == Verdict("It helps.", ("By 20.5 %. Really.",))
    assert Verdict.of("How much?") == Verdict("How much?")
    assert str(Verdict.of("It helps. By 20 %.")) == "It helps. By 20 %."


def test_several_places_are_named_in_the_headline() -> None:
    placed = [replace(each, place="w on f") for each in (FCFS, GOOD)]
    assert "against fcfs at load 0.90 (w on f)" in on_policies(placed).headline


def test_the_baseline_is_named_with_its_router() -> None:
    base, better = (replace(each, router="least_load") for each in (FCFS, GOOD))
    assert "against fcfs behind least_load" in on_policies([base, better]).headline


def test_without_fcfs_the_fastest_is_named_and_nothing_is_compared() -> None:
    other = run("sjf", Ratio(0.8, 0.7, 0.9))
    assert str(on_policies([GOOD, other])) == (
        "Mean E2E of lengthwise with the predictor fast is 6.00 s at load 0.90; "
        "fcfs is not among the policies, so nothing is compared with it."
    )


@pytest.mark.parametrize(
    ("replayed_s", "clause"),
    [
        (10.5, "the replayed mean E2E is +5 % off: the ratios below can be read as they are"),
        (8.0, "the replayed mean E2E is -20 % off: read the ratios below as a direction, not as figures"),
        (20.0, "the replayed mean E2E is +100 % off: the ratios below say little"),
        (math.nan, "the replayed mean E2E is – off: the ratios below say little"),
    ],
)
def test_a_replay_is_trusted_as_far_as_it_matches_the_measurement(replayed_s: float, clause: str) -> None:
    assert replay_match(10.0, replayed_s).startswith(clause)
    verdict = on_replay([FCFS, GOOD], measured_s=10.0, replayed_s=replayed_s)
    assert verdict.headline.startswith("In a replay: lengthwise with the predictor fast lowers mean E2E by 40 %")
    assert verdict.details[-1].startswith(f"T{clause[1:]}")


def gain(label: str, mean: Ratio, p99: float = 1.0) -> Gain:
    return Gain(label, {"e2e_mean": mean, "per_token_mean": mean, "e2e_p99": Ratio(p99, p99, p99)})


def test_a_measured_policy_is_advised_by_its_gain_and_its_tail() -> None:
    good, slow = gain("sjf, fast", Ratio(0.8, 0.7, 0.9)), gain("hrrn, fast", Ratio(1.2, 1.1, 1.3))
    assert str(on_measured([slow, good], "burst", 4)) == (
        "Turn it on: sjf, fast lowers mean E2E by 20 % and mean per-token latency by 20 % against fcfs "
        "(burst, 4 blocks), at no cost: worth it. Mean E2E -20 % [-30, -10], p99 E2E 0 %, mean per-token latency "
        "-20 % [-30, -10]."
    )
    assert str(on_measured([gain("sjf", Ratio(0.5, 0.4, 0.6), 2.0)], "burst", 4)).startswith(
        "Turn it on only if the tail may grow: sjf"
    )
    assert str(on_measured([slow], "burst", 4)).startswith("Not worth it here: Nothing is better than fcfs")
    assert str(on_measured([], "burst", 0)) == "Nothing to judge: only true lengths were measured."


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([("mean E2E of sjf", Ratio(1.5, math.nan, math.nan))], "Mean E2E of sjf is 50.0 % HIGHER in b than in a."),
        (
            [("mean E2E of sjf", Ratio(0.9, 0.8, 0.95)), ("mean E2E of tie", Ratio(1.01, 0.9, 1.1))],
            "Mean E2E of sjf is 10.0 % lower in b than in a (change -10 % [-20, -5]).",
        ),
        ([("sjf", Ratio(0.9, 0.8, 1.1))], "No difference beyond noise between a and b."),
        ([("sjf", Ratio(1.0, math.nan, math.nan))], "a and b have the same latencies."),
    ],
)
def test_of_two_files_the_largest_change_beyond_noise_is_named(changes: list[tuple[str, Ratio]], text: str) -> None:
    assert str(on_change(changes, "a", "b")).startswith(text)


def plan(policy: str, *engines: int | None, predictor: str | None = None, attained: float = 0.995) -> SeededPlan:
    """Return a plan that needs so many engines in each seed."""
    outcome = simulate(requests([(4, 2)]), fleet(UNEVEN))
    return SeededPlan(
        tuple(
            CapacityPlan(policy, predictor, each, (Trial(each or 8, attained, (attained, attained), outcome),))
            for each in engines
        )
    )


def search() -> CapacitySearch:
    return CapacitySearch(requests([(4, 2)]), fleet(UNEVEN).engines[0], LatencyLimits(2.0, 0.1), most=8)


WITHIN = "requests within TTFT at most 2 s, TPOT at most 0.1 s"
SERVE = f"99.5 % of {WITHIN} (target 99 %)"


@pytest.mark.parametrize(
    ("plans", "text"),
    [
        ([plan("fcfs", 5), plan("tie", 4)], f"4 engines under tie serve {SERVE}; fcfs needs 5 (20 % fewer engines)."),
        ([plan("fcfs", 1), plan("tie", 1)], f"1 engine under fcfs serves {SERVE}; tie needs as many."),
        ([plan("fcfs", None), plan("tie", 4)], f"4 engines under tie serve {SERVE}; under fcfs 8 are not enough."),
        ([plan("tie", 3, 4)], f"4 engines under tie serve 99.5 % of {WITHIN}, the lowest of 2 seeds (target 99 %)."),
        (
            [plan("tie", None, attained=0.5)],
            f"8 engines are not enough for 99 % of {WITHIN}: tie reaches 50.0 %. Without any queue it would be 90.0 %.",
        ),
        ([plan("tie", 2, predictor="oracle")], "With TRUE LENGTHS, which no server has: 2 engines under tie"),
    ],
)
def test_the_fewest_engines_are_named_beside_those_of_fcfs(plans: list[SeededPlan], text: str) -> None:
    assert str(on_engines(search(), plans, 0.9)).startswith(text)


USE_ONTIME = (
    "Use ontime: 90.0 % of requests are within TTFT at most 2 s, TPOT at most 0.1 s on 8 engines, 50.0 % under fcfs. "
    "The price: it raises "
)
NO_POLICY = "No policy attains 99 %: --engines 8..16 looks for the engines that do."


def tried(policy: str, attained: float, slower: float = 1.0, predictor: str | None = None) -> SeededPlan:
    """Return a policy on eight engines with this share in time, and E2E so many times that of fcfs."""
    outcome = simulate(requests([(4, 2)] * 60, np.arange(60.0).tolist()), fleet(UNEVEN))
    later = (outcome.finished_s - outcome.arrival_s) * slower
    outcome = replace(outcome, finished_s=outcome.arrival_s + later)
    trial = Trial(8, attained, (attained, attained), outcome)
    return SeededPlan((CapacityPlan(policy, predictor, 8 if attained >= 0.99 else None, (trial,)),))


@pytest.mark.parametrize(
    ("plans", "text"),
    [
        (
            [tried("fcfs", 0.5), tried("ontime", 0.9, 1.5), tried("sjf", 0.8, 0.5)],
            USE_ONTIME,
        ),
        ([tried("fcfs", 0.5), tried("ontime", 0.9, 1.5), tried("sjf", 0.895, 0.5)], "Use sjf: 89.5 %"),
        ([tried("fcfs", 0.99), tried("ontime", 1.0, 1.5), tried("sjf", 0.995, 0.5)], "Use sjf: 99.5 %"),
        ([tried("fcfs", 0.99), tried("ontime", 1.0, 1.5), tried("sjf", 0.8, 0.5)], "Keep fcfs: 99.0 %"),
        ([tried("fcfs", 0.99), tried("lengthwise", 1.0, 0.98)], "Keep fcfs: 99.0 %"),
        ([tried("fcfs", 0.5), tried("sjf", 0.9, predictor="oracle"), tried("tie", 0.7)], "Use tie: 70.0 %"),
        ([tried("sjf", 0.995, predictor="oracle")], "With TRUE LENGTHS, which no server has: Use sjf: 99.5 %"),
        ([tried("sjf", 0.995), tried("tie", 0.993, 0.9)], "Use tie: 99.3 %"),
    ],
)
def test_on_a_fixed_fleet_the_policy_with_the_most_in_time_is_named_and_its_price(
    plans: list[SeededPlan], text: str
) -> None:
    verdict = str(on_fleet(search(), plans))
    assert verdict.startswith(text)
    assert verdict.endswith(NO_POLICY) == all(plan.engines is None for plan in plans)


def load(rate: float | None, met: int, failed: int = 0, *, stopped: bool = False) -> LoadReport:
    """Return ten requests, `met` of them within limits of a second and `failed` without an answer."""
    found = LoadReport(10, LoadPlan("http://e"), rate=rate, stopped=stopped)
    for row in range(10):
        sample = Sample(row, 0.0, 2, arrival_s=0.0, output_tokens=2, error="http_500" if row < failed else None)
        if row >= failed:
            sample.first_token_s, sample.finished_s = 0.1, 0.2 if 10 - row <= met else 5.0
        found.samples.append(sample)
    return found


SECOND = LatencyLimits(1.0, 1.0)


@pytest.mark.parametrize(
    ("loads", "text"),
    [
        ([load(None, 9)], f"90.0 % of requests are within {SECOND}: 1.8 per second."),
        (
            [load(None, 9, failed=1)],
            f"10.0 % of requests FAILED. 90.0 % of requests are within {SECOND}: 45 per second.",
        ),
        ([load(1.0, 10), load(2.0, 10), load(4.0, 5)], f"Up to 2 requests/s, 99 % of requests are within {SECOND}."),
        ([load(1.0, 5), load(2.0, 5)], f"At no rate are 99 % of requests within {SECOND}."),
        ([load(1.0, 0, 10, stopped=True)], "Stopped: the endpoint is dead (http_500); 10 of 10 requests sent."),
    ],
)
def test_a_load_is_judged_by_failures_then_by_its_limits(loads: list[LoadReport], text: str) -> None:
    assert str(on_load(loads, SECOND)) == text


def test_a_predictor_is_judged_beside_a_constant_and_the_noise_of_sampling() -> None:
    ours = PredictionScores(mae_mean=90.0, tau=0.5, coverage_90=0.88)
    constant, ceiling = PredictionScores(mae_mean=100.0), PredictionScores(tau=0.8)
    assert str(on_evaluation("mine", ours=ours, constant=constant, ceiling=ceiling)) == (
        "The error of mine is 90 tokens, 10 % smaller than that of a constant per LLM. It ranks prompts with tau 0.50 "
        "(the noise of sampling allows 0.80). Its 90 % interval holds 88 % of answers."
    )
    worse = on_evaluation("mine", ours=PredictionScores(mae_mean=150.0), constant=constant, ceiling=ceiling)
    assert worse.headline.endswith("150 tokens, 50 % LARGER than that of a constant per LLM.")
    assert worse.details[0] == "It does not rank prompts (tau is not defined)."


def test_served_predictions_are_judged_beside_the_history() -> None:
    ours = PredictionScores(log_error=math.log(1.5), tau=0.61, coverage_90=0.9)
    assert str(on_traffic(1200, ours, PredictionScores(log_error=math.log(2.0)))) == (
        "Half of the 1,200 predictions were off by less than a factor of 1.50; the history of each model alone, 2.00. "
        "They rank requests with tau 0.61. The 90 % interval held 90.0 % of the lengths."
    )


def test_hidden_states_are_judged_beside_the_paper() -> None:
    assert str(on_probe(Ratio(2.0, 1.5, 2.5), 2.66)) == (
        "The error of the prompt alone is 2.00 times that of the probe with it (95 % interval 1.50 to 2.50); "
        "the paper has 2.66."
    )
