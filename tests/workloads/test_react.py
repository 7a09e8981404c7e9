from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.workloads import DiscreteLengths, Workload, react_workload
from lengthwise.workloads.blocks import BLOCK_TOKENS
from lengthwise.workloads.generators import TAIL_TOKENS, examples_text

LENGTHS = DiscreteLengths.parse("1:0.5,300:0.5")


def react(**options: Any) -> Workload:
    return react_workload(**{"requests": 40, "rate": 64.0, "lengths": LENGTHS, "seed": 0, **options})


def test_four_examples_make_the_published_token_counts() -> None:
    workload = react(workloads=10, examples=4)
    assert set(workload.input_tokens.tolist()) == {1981}
    assert set((workload.input_tokens - TAIL_TOKENS).tolist()) == {1897}


def test_the_groups_hold_one_two_two_and_one_of_the_six_examples() -> None:
    held = [examples_text(k).count("Question: ") for k in range(1, 7)]
    assert held == [1, 3, 5, 6, 7, 9]


def test_a_prompt_is_workload_number_instruction_examples_and_random_tail() -> None:
    first, second = react(workloads=2).table["prompt"].to_pylist()[:2]
    assert first.startswith("Workload 0 Solve a question answering task")
    assert second.startswith("Workload 1 Solve")
    assert examples_text(4) in first
    assert first[-100:].isalnum()
    assert first[-100:] != second[-100:]


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(1, 9))
def test_blocks_are_shared_inside_a_workload_up_to_the_tail_and_never_across(workloads: int, examples: int) -> None:
    workload = react(workloads=workloads, examples=examples)
    shared = (workload.input_tokens - TAIL_TOKENS) // BLOCK_TOKENS
    for a in range(4):
        for b in range(a):
            same = workload.blocks(a)[:99] == workload.blocks(b)[: len(workload.blocks(a))]
            assert same.sum() == (shared[a] if (a - b) % workloads == 0 else 0)
    assert np.diff(workload.block_offsets).tolist() == (workload.input_tokens // BLOCK_TOKENS).tolist()


def test_clients_limit_answers_to_the_largest_length() -> None:
    workload = react(lengths=DiscreteLengths.parse("1:0.5,50:0.25,300:0.25"))
    assert set(workload.output_tokens.tolist()) <= {1, 50, 300}
    assert set(workload.table["max_tokens"].to_pylist()) == {300}


def test_requests_go_round_the_workloads() -> None:
    assert react(workloads=3).table["tenant"].to_pylist()[:4] == [f"workload-{i}" for i in (0, 1, 2, 0)]


@pytest.mark.parametrize("field", ["workloads", "examples", "requests"])
def test_none_of_something_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"field '{field}'"):
        react(**{field: 0})
