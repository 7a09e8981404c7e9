"""Synthetic workloads."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.errors import InputError
from lengthwise.prefixes import BLOCK_BYTES, BLOCK_TOKENS, hash_text
from lengthwise.workloads import (
    DiscreteLengths,
    LengthSamples,
    Workload,
    behind_prefixes,
    castillo_workload,
    into_sessions,
    load_trace,
    react_sessions,
    react_workload,
)
from lengthwise.workloads.arrivals import poisson
from lengthwise.workloads.generators import TAIL_TOKENS, examples_text, system_prefix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:0.5,300:0.4", "sum to 0.9; they must sum to 1"),
        ("1:-0.5,300:1.5", "probability -0.5 in '1:-0.5'"),
        ("1:nan,300:1", "probability nan"),
        ("1.5:0.5,300:0.5", "'1.5:0.5' is not a pair"),
        ("0:0.5,300:0.5", "length 0 in '0:0.5' is below 1"),
        ("1:0.5,300", "'300' is not a pair"),
        ("1:half,300:0.5", "'1:half' is not a pair"),
        ("7:0.5,7:0.5", "7 is given twice"),
        ("", "'' is not a pair"),
    ],
)
def test_an_invalid_distribution_is_an_error_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        DiscreteLengths.parse(text)
    assert message in str(caught.value)
    assert caught.value.field
    assert caught.value.hint


def test_probabilities_may_sum_to_one_up_to_rounding() -> None:
    DiscreteLengths.parse("1:0.3333333333,2:0.3333333333,3:0.3333333334")


@given(st.dictionaries(st.integers(1, 500), st.integers(1, 10), min_size=1, max_size=6), st.integers(0, 99))
def test_samples_have_the_mean_and_only_the_given_lengths(weights: dict[int, int], seed: int) -> None:
    total = sum(weights.values())
    text = ",".join(f"{length}:{weight / total!r}" for length, weight in weights.items())
    lengths = DiscreteLengths.parse(text)
    drawn = lengths.sample(2000, np.random.default_rng(seed))
    assert set(drawn.tolist()) <= set(weights)
    mean = np.average(lengths.lengths, weights=lengths.probabilities)
    std = math.sqrt(np.average((np.array(lengths.lengths) - mean) ** 2, weights=lengths.probabilities))
    assert lengths.max == max(weights)
    assert abs(drawn.mean() - mean) <= 6 * std / math.sqrt(2000) + 1e-9


@pytest.fixture(scope="module")
def prompts(packaged: LengthSamples) -> Workload:
    return castillo_workload(packaged, "llama-3.1-8b", requests=300, rate=8, seed=0)


def first_blocks(workload: Workload) -> list[int]:
    return [int(workload.blocks(row)[0]) for row in range(len(workload))]


@pytest.mark.parametrize("tokens", [16, 100, 512])
def test_system_prompts_have_the_given_length_and_are_distinct(tokens: int) -> None:
    texts = [system_prefix(index, tokens) for index in range(20)]
    assert {len(text) + len("\n\n") for text in texts} == {4 * tokens}
    assert len(set(texts)) == 20
    assert texts == [system_prefix(index, tokens) for index in range(20)]


def test_prompts_get_a_prefix_and_its_tokens(prompts: Workload) -> None:
    workload = behind_prefixes(prompts, prefixes=10, seed=0)
    assert (workload.input_tokens - prompts.input_tokens == 512).all()
    before, after = (w.table["prompt"].to_pylist() for w in (prompts, workload))
    prefixes = {long[: -len(short)] for short, long in zip(before, after, strict=True)}
    assert len(prefixes) == 10
    assert all(prefix.endswith(".\n\n") for prefix in prefixes)


def test_blocks_are_those_of_the_text_and_shared_within_a_prefix(prompts: Workload) -> None:
    workload = behind_prefixes(prompts, prefixes=3, seed=0)
    for row, text in enumerate(workload.table["prompt"].to_pylist()[:50]):
        full = hash_text(text)
        assert workload.blocks(row).tolist() == full[: workload.input_tokens[row] // BLOCK_TOKENS].tolist()
        assert full[7] == hash_text(text[: 8 * BLOCK_BYTES])[7]
    assert len(set(first_blocks(workload))) == 3


def test_prefixes_have_zipf_or_uniform_popularity(packaged: LengthSamples) -> None:
    many = castillo_workload(packaged, "llama-3.1-8b", requests=4000, rate=8, seed=0)
    zipf = np.unique(first_blocks(behind_prefixes(many, prefixes=4, seed=0)), return_counts=True)[1]
    uniform = np.unique(
        first_blocks(behind_prefixes(many, prefixes=4, popularity="uniform", seed=0)), return_counts=True
    )[1]
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert sorted(zipf / 4000) == pytest.approx([share / harmonic for share in (1 / 4, 1 / 3, 1 / 2, 1)], abs=0.03)
    assert uniform / 4000 == pytest.approx([0.25] * 4, abs=0.03)


def test_a_session_keeps_its_prefix_and_grows(prompts: Workload) -> None:
    workload = behind_prefixes(into_sessions(prompts, turns=4, think_s=5, seed=0), prefixes=5, seed=0)
    last: dict[str, list[int]] = {}
    for row, session in enumerate(workload.table["session"].to_pylist()):
        blocks = workload.blocks(row).tolist()
        assert len(blocks) == workload.input_tokens[row] // BLOCK_TOKENS
        before = last.get(session, [])
        assert blocks[: len(before)] == before
        last[session] = blocks
    assert len(set(first_blocks(workload))) == 5


def test_a_trace_without_texts_gets_only_the_blocks_of_the_prefix() -> None:
    workload = behind_prefixes(load_trace("azure_sample").head(50), prefixes=2, tokens=128, seed=0)
    assert {len(workload.blocks(row)) for row in range(50)} == {2}
    assert workload.table["prompt"].null_count == 50
    with pytest.raises(InputError, match="multiple of 64"):
        behind_prefixes(load_trace("azure_sample"), prefixes=2, tokens=100, seed=0)


@pytest.mark.parametrize(("prefixes", "tokens"), [(0, 512), (3, 8)])
def test_invalid_prefixes_are_refused(prompts: Workload, prefixes: int, tokens: int) -> None:
    with pytest.raises(InputError):
        behind_prefixes(prompts, prefixes=prefixes, tokens=tokens, seed=0)


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
def test_each_turn_contains_the_turns_before_it(turns: float, think_s: float, seed: int) -> None:
    workload = into_sessions(base(60), turns=turns, think_s=think_s, seed=seed)
    assert len(workload) == 60
    for rows in turns_by_session(workload).values():
        for before, after in pairwise(rows):
            before_tokens = workload.input_tokens[before] + workload.output_tokens[before]
            assert workload.input_tokens[after] > before_tokens
            blocks = workload.blocks(before)
            assert workload.blocks(after)[: len(blocks)].tolist() == blocks.tolist()
            assert len(blocks) == workload.input_tokens[before] // BLOCK_TOKENS


def test_sessions_share_no_blocks() -> None:
    workload = into_sessions(base(), turns=3, think_s=10, seed=0)
    owner: dict[int, str] = {}
    for row, session in enumerate(workload.table["session"].to_pylist()):
        for block in workload.blocks(row).tolist():
            assert owner.setdefault(block, session) == session


def test_turns_and_think_times_have_the_given_means() -> None:
    n = 40_000
    workload = into_sessions(base(n), turns=4, think_s=10, seed=0)
    sessions = turns_by_session(workload)
    started_inside = [rows for session, rows in sessions.items() if "before" not in session]
    assert n / len(started_inside) == pytest.approx(4, rel=0.03)
    gaps = np.concatenate([np.diff(workload.arrival_s[rows]) for rows in sessions.values()])
    assert gaps.mean() == pytest.approx(10, rel=0.03)


def test_sessions_keep_the_rate_of_the_requests() -> None:
    before = base(2000)
    after = into_sessions(before, turns=5, think_s=60, seed=0)
    assert after.rate == pytest.approx(before.rate, rel=0.02)
    assert sorted(after.output_tokens.tolist()) == sorted(before.output_tokens.tolist())


def test_one_turn_per_session_leaves_the_requests_unchanged() -> None:
    before = base(40)
    after = into_sessions(before, turns=1, think_s=5, seed=0)
    assert after.arrival_s.tolist() == before.arrival_s.tolist()
    assert after.input_tokens.tolist() == before.input_tokens.tolist()


@pytest.mark.parametrize(("turns", "think_s"), [(0.5, 1.0), (float("nan"), 1.0), (2.0, 0.0), (2.0, float("inf"))])
def test_invalid_sessions_are_refused(turns: float, think_s: float) -> None:
    with pytest.raises(InputError):
        into_sessions(base(5), turns=turns, think_s=think_s, seed=0)


def test_in_a_closed_loop_every_turn_but_the_first_waits_for_the_answer_before() -> None:
    before = base(400)
    workload = into_sessions(before, turns=4, think_s=10, seed=0, closed_loop=True)
    assert workload.rate == pytest.approx(before.rate, rel=0.1)
    for rows in turns_by_session(workload).values():
        assert np.isnan(workload.think_s[rows[0]])
        assert (workload.think_s[rows[1:]] >= 0).all()
        assert (workload.arrival_s[rows] == workload.arrival_s[rows[0]]).all()
        assert workload.next_turn[rows].tolist() == [*rows[1:], -1]


def test_agents_take_the_steps_of_recorded_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "traces" / "react"
    folder.mkdir(parents=True)
    question = "Question: who?\nThought 1: look\nAction 1: Search[x]\nObservation 1: found\n"
    thoughts = f"{question}Thought 2: done\nAction 2: Finish[y]\n"
    game = "You are in a room.\n> think: go\nOK.\n> go to desk 1\nA desk.\n> take pen 1\n"
    for name, content in (
        ("prompts_naive.json", {"webthink_simple6": thoughts, "cotqa_simple": "not read"}),
        ("fever.json", {"webthink_simple3": thoughts.replace("Question", "Claim")}),
        ("alfworld.json", {"react_put_0": game, "act_put_0": game * 3}),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path))
    workload = react_sessions(sessions=60, rate=2.0, seed=1)
    templates = workload.table["template"].to_pylist()
    for rows in turns_by_session(workload).values():
        assert len(rows) == {"hotpotqa": 2, "fever": 2, "alfworld": 3}[templates[rows[0]]]
        assert (np.diff(workload.input_tokens[rows]) >= workload.output_tokens[rows[:-1]]).all()
        assert workload.blocks(rows[0])[:16].tolist() == workload.blocks(rows[-1])[:16].tolist()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("LENGTHWISE_DATA", str(tmp_path / "empty"))
    with pytest.raises(InputError, match="trajectories are not on this machine"):
        react_sessions(sessions=1, rate=1.0, seed=0)


LENGTHS = DiscreteLengths.parse("1:0.5,300:0.5")


def react(**options: Any) -> Workload:
    return react_workload(**{"requests": 40, "rate": 64.0, "lengths": LENGTHS, "seed": 0, **options})


def test_four_examples_have_the_published_token_counts() -> None:
    workload = react(workloads=10, examples=4)
    assert set(workload.input_tokens.tolist()) == {1981}
    assert set((workload.input_tokens - TAIL_TOKENS).tolist()) == {1897}


def test_example_groups_hold_the_published_numbers_of_questions() -> None:
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


def test_requests_alternate_between_workloads() -> None:
    assert react(workloads=3).table["tenant"].to_pylist()[:4] == [f"workload-{i}" for i in (0, 1, 2, 0)]


@pytest.mark.parametrize("field", ["workloads", "examples", "requests"])
def test_a_count_of_zero_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"field '{field}'"):
        react(**{field: 0})
