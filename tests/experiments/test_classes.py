"""Interactive requests beside a batch."""

from __future__ import annotations

from experiments.classes import NO_CLASSES, POLICIES, STUDY, Served, classes_seed, tables
from lengthwise.intervals import Ratio


def test_first_tokens_of_interactive_requests_are_in_time_with_classes_and_not_without() -> None:
    found = classes_seed(60, "noisy:0.55", 1)
    assert set(found) == set(POLICIES)
    assert found["classes(lengthwise)"][0] > 0.95
    assert found[NO_CLASSES][0] < 0.5


def test_the_table_has_a_row_for_each_policy() -> None:
    ratio = Ratio(1.0, 0.9, 1.1)
    found = [Served(policy, 0.9, 1.0, ratio, ratio, 0.01) for policy in POLICIES]
    (table,) = tables(found)
    assert len(table.rows) == len(POLICIES)
    assert "90% with classes(lengthwise)" in STUDY.output(found).verdict
