"""The predicted longest behind all others."""

from __future__ import annotations

from experiments.background import POLICIES, STUDY, background_seed, tables
from experiments.frontier import Gains, Setting
from lengthwise.intervals import Ratio


def test_the_others_are_faster_and_the_longest_wait() -> None:
    found = background_seed(Setting(8, 1.1, 800), "noisy:0.55", 1)
    assert set(found) == {"fcfs", *POLICIES}
    mean, _, _, longest, _ = found["background(fcfs)"]
    assert mean < found["fcfs"][0]
    assert longest > 1.5 * found["fcfs"][3]


def test_the_table_has_a_row_for_each_policy_and_the_answer_names_the_maximum() -> None:
    ratio = Ratio(1.2, 1.1, 1.3)
    found = [("8 slots", policy, Gains(ratio, ratio, ratio, ratio, in_time=1.0)) for policy in POLICIES]
    (table,) = tables(found)
    assert len(table.rows) == len(POLICIES)
    assert "a maximum of 1.2 times" in STUDY.output(found).verdict
