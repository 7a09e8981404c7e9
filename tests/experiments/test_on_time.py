"""The share of answers in time, by policy and limit."""

from __future__ import annotations

from experiments.frontier import Setting
from experiments.on_time import LIMITS, STUDY, UNPREDICTED, Attained, on_time_seed, tables
from lengthwise.intervals import Ratio


def test_a_seed_has_the_share_within_each_limit_for_every_policy() -> None:
    policies = {"ontime": "ontime:ttft=2", UNPREDICTED: "ontime:ttft=2"}
    found = on_time_seed(Setting(8, 1.1, 400), "noisy:0.55", 1, policies)
    assert {label: len(figures) for label, figures in found.items()} == dict.fromkeys(("fcfs", *policies), 7)
    assert found["ontime"][5] > found["fcfs"][5] + 0.2


def test_there_is_a_table_for_each_limit_and_an_answer_for_each_setting() -> None:
    ratio = Ratio(1.2, 1.1, 1.3)
    found = [
        Attained("8 slots", limit, policy, share, ratio, ratio, ratio)
        for limit in LIMITS
        for policy, share in (("fcfs", 0.1), ("ontime", 0.85))
    ]
    assert [len(table.rows) for table in tables(found)] == [2, 2]
    assert "first token within 2 s, 8 slots: 10% with fcfs, 85% with ontime" in STUDY.output(found).verdict
