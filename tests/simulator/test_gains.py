"""What a policy brings: judged by every figure that people pay for, with signs that agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.intervals import Ratio, ShareChange, share_change
from lengthwise.simulator import simulate
from lengthwise.simulator.gains import Gain, change
from lengthwise.simulator.metrics import LatencyLimits
from tests.simulator.builders import UNEVEN, fleet, requests


def ratio(value: float, spread: float = 0.05) -> Ratio:
    return Ratio(value, value * (1 - spread), value * (1 + spread))


SAME = ratio(1.0)


@pytest.mark.parametrize(
    ("over", "found"),
    [
        ({"e2e_mean": ratio(0.9, 0.2)}, "noise"),
        ({"e2e_mean": ratio(1.2)}, "worse"),
        ({"e2e_mean": ratio(0.98, 0.01)}, "too small"),
        ({"e2e_mean": ratio(0.8), "e2e_p99": ratio(1.05, 0.01)}, "gain"),
        ({"e2e_mean": ratio(0.8), "e2e_p99": ratio(1.2)}, "gain, worse tail"),
        ({"e2e_mean": Ratio(0.8, math.nan, math.nan)}, "gain"),
        ({"e2e_mean": SAME, "ttft_p99": ratio(0.09)}, "gain"),
        ({"e2e_mean": ratio(1.2), "per_token_mean": ratio(0.5)}, "trade"),
    ],
)
def test_a_policy_is_judged_by_all_figures_then_by_their_price(over: dict[str, Ratio], found: str) -> None:
    assert Gain("sjf", over).judgement == found


def test_a_p99_of_ttft_that_falls_from_783_to_68_ms_matters_and_one_of_8_to_5_ms_does_not() -> None:
    over = {"e2e_mean": ratio(0.99, 0.02), "ttft_p99": ratio(0.087)}
    felt, unfelt = (Gain("lengthwise", over, {"ttft_p99": before}) for before in (0.783, 0.008))
    assert felt.sentence("fcfs") == "lengthwise lowers p99 TTFT by 91 % against fcfs, at no cost: worth it."
    assert unfelt.judgement == "too small"


def test_a_larger_share_within_the_limits_is_a_gain_and_a_smaller_one_a_price() -> None:
    more, fewer = ShareChange(0.7, 0.3, 0.3, 0.5), ShareChange(0.3, 0.7, -0.5, -0.3)
    assert Gain("slo", {"e2e_mean": SAME}, within=more).sentence("fcfs", " at load 0.9") == (
        "slo has 70.0 % instead of 30.0 % of requests within the limits against fcfs at load 0.9, at no cost: worth it."
    )
    assert Gain("slo", {"e2e_mean": ratio(0.5)}, within=fewer).judgement == "trade"
    assert Gain("slo", {"e2e_mean": SAME}, within=fewer).judgement == "worse"


@given(st.floats(0.05, 5.0), st.floats(0.0, 0.5))
def test_a_change_and_its_interval_have_signs_that_agree_with_their_ratios(value: float, spread: float) -> None:
    text = change(ratio(value, spread)).replace("%", "").replace("[", "").replace("]", "").replace(",", "").split()
    assert len(text) in (1, 3)
    for found, true in zip(text, (value, value * (1 - spread), value * (1 + spread)), strict=False):
        assert float(found) == pytest.approx(100 * (true - 1), abs=0.51)


def test_a_policy_compared_with_itself_is_no_difference() -> None:
    outcome = simulate(requests([(4, 2)] * 60, np.arange(60.0).tolist()), fleet(UNEVEN))
    gain = Gain.of("fcfs", [outcome], [outcome], LatencyLimits())
    assert gain.judgement == "noise"
    assert gain.within == ShareChange(1.0, 1.0, 0.0, 0.0)
    assert all(each.ratio == 1 for each in gain.over.values())


def test_shares_of_one_seed_have_an_interval_of_blocks_and_of_several_one_of_seeds() -> None:
    rng = np.random.default_rng(0)
    ours, base = rng.random(500) < 0.7, rng.random(500) < 0.4
    one = share_change([ours], [base])
    assert 0 < one.low < one.change < one.high
    several = share_change([ours, ours, base], [base, base, base])
    assert several.low < several.change < several.high
    assert several.change == pytest.approx(2 / 3 * (ours.mean() - base.mean()))
