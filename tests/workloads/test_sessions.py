from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.workloads import Workload, into_sessions
from lengthwise.workloads.arrivals import poisson
from lengthwise.workloads.blocks import BLOCK_TOKENS


def base(n: int = 300, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    return Workload.from_table(
        {
            "arrival_s": poisson(n, 5.0, rng),
            "input_tokens": rng.integers(1, 300, n),
            "output_tokens": rng.integers(1, 300, n),
        },
        name="base",
    )


def turns_by_session(workload: Workload) -> dict[str, list[int]]:
    rows = defaultdict(list)
    for row, session in enumerate(workload.table["session"].to_pylist()):
        rows[session].append(row)
    return rows


@given(st.floats(1, 8), st.floats(0.1, 100), st.integers(0, 99))
def test_each_turn_holds_all_that_was_said_before_it(turns: float, think_s: float, seed: int) -> None:
    workload = into_sessions(base(60), turns=turns, think_s=think_s, seed=seed)
    assert len(workload) == 60
    for rows in turns_by_session(workload).values():
        for before, after in pairwise(rows):
            said = workload.input_tokens[before] + workload.output_tokens[before]
            assert workload.input_tokens[after] > said
            blocks = workload.blocks(before)
            assert workload.blocks(after)[: len(blocks)].tolist() == blocks.tolist()
            assert len(blocks) == workload.input_tokens[before] // BLOCK_TOKENS


def test_sessions_share_no_blocks() -> None:
    workload = into_sessions(base(), turns=3, think_s=10, seed=0)
    owner: dict[int, str] = {}
    for row, session in enumerate(workload.table["session"].to_pylist()):
        for block in workload.blocks(row).tolist():
            assert owner.setdefault(block, session) == session


def test_turns_and_think_times_have_the_means_asked_for() -> None:
    n = 40_000
    workload = into_sessions(base(n), turns=4, think_s=10, seed=0)
    sessions = turns_by_session(workload)
    begun_inside = [rows for session, rows in sessions.items() if "before" not in session]
    assert n / len(begun_inside) == pytest.approx(4, rel=0.03)
    gaps = np.concatenate([np.diff(workload.arrival_s[rows]) for rows in sessions.values()])
    assert gaps.mean() == pytest.approx(10, rel=0.03)


def test_the_rate_stays_that_of_the_requests_it_was_made_from() -> None:
    before = base(2000)
    after = into_sessions(before, turns=5, think_s=60, seed=0)
    assert after.rate == pytest.approx(before.rate, rel=0.02)
    assert sorted(after.output_tokens.tolist()) == sorted(before.output_tokens.tolist())


def test_one_turn_per_session_leaves_the_requests_alone() -> None:
    before = base(40)
    after = into_sessions(before, turns=1, think_s=5, seed=0)
    assert after.arrival_s.tolist() == before.arrival_s.tolist()
    assert after.input_tokens.tolist() == before.input_tokens.tolist()


@pytest.mark.parametrize(("turns", "think_s"), [(0.5, 1.0), (float("nan"), 1.0), (2.0, 0.0), (2.0, float("inf"))])
def test_impossible_sessions_are_refused(turns: float, think_s: float) -> None:
    with pytest.raises(InputError):
        into_sessions(base(5), turns=turns, think_s=think_s, seed=0)
