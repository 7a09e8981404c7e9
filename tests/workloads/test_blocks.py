from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lengthwise.prefixes import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    hash_text,
    hash_tokens,
)
from lengthwise.workloads.columns import stream_block_lists, text_block_lists

tokens = st.lists(st.integers(0, 3), max_size=40)


def shared(a: list[int], b: list[int]) -> int:
    """Return the number of leading entries that two sequences share."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


@given(tokens, tokens, st.integers(1, 5))
def test_token_hashes_agree_exactly_for_shared_full_blocks(a: list[int], b: list[int], size: int) -> None:
    assert shared(hash_tokens(a, size).tolist(), hash_tokens(b, size).tolist()) == shared(a, b) // size


@given(st.text("ab", max_size=30), st.text("ab", max_size=30), st.integers(1, 5))
def test_text_hashes_agree_exactly_for_shared_full_blocks(a: str, b: str, size: int) -> None:
    agree = shared(list(a.encode()), list(b.encode())) // size
    assert shared(hash_text(a, size).tolist(), hash_text(b, size).tolist()) == agree


@given(st.integers(0, 300))
def test_only_full_blocks_have_a_hash(n: int) -> None:
    assert len(hash_tokens([7] * n)) == n // BLOCK_TOKENS
    assert len(hash_text("x" * n)) == n // BLOCK_BYTES


def test_the_hash_of_a_block_depends_on_its_prefix() -> None:
    same = [1] * BLOCK_TOKENS
    assert hash_tokens([2] * BLOCK_TOKENS + same)[1] not in hash_tokens([3] * BLOCK_TOKENS + same)


def test_token_hashes_do_not_depend_on_the_type_of_the_ids() -> None:
    ids = list(range(200))
    assert hash_tokens(ids).tolist() == hash_tokens(np.array(ids, np.uint16)).tolist()


def test_hashes_are_the_same_in_every_process_and_version() -> None:
    assert hash_tokens(range(64)).tolist() == [5679228946120354192]
    assert hash_text("x" * 256).tolist() == [15118679849337335497]


@given(st.integers(0, 2**63), st.integers(0, 20), st.integers(0, 20))
def test_block_lists_of_one_stream_are_prefixes_of_each_other(stream: int, m: int, n: int) -> None:
    few, many = sorted((m, n))
    short, long = stream_block_lists(np.array([stream, stream]), np.array([few, many])).to_pylist()
    assert long[:few] == short


def test_blocks_of_streams_are_unique() -> None:
    blocks = stream_block_lists(np.arange(1000), np.full(1000, 100)).flatten().to_numpy()
    assert len(np.unique(blocks)) == len(blocks)


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 6)), max_size=6))
def test_block_lists_of_many_streams_equal_those_of_single_streams(rows: list[tuple[int, int]]) -> None:
    ids = np.array([stream for stream, _ in rows], np.int64)
    counts = np.array([n for _, n in rows], np.int64)
    one_by_one = [stream_block_lists(ids[[i]], counts[[i]]).to_pylist()[0] for i in range(len(rows))]
    assert stream_block_lists(ids, counts).to_pylist() == one_by_one


def test_a_prompt_has_no_more_blocks_than_its_tokens_fill() -> None:
    wordy = "x" * (10 * BLOCK_BYTES)
    lists = text_block_lists([wordy, wordy], np.array([10 * BLOCK_TOKENS, 3 * BLOCK_TOKENS + 5]))
    assert [len(row) for row in lists.to_pylist()] == [10, 3]
    assert lists[1].as_py() == lists[0].as_py()[:3]
