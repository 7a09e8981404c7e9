"""The compiled prefix index against a plain implementation on dictionaries."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lengthwise.routers.prefix_index import FREE_NODE, FREE_ROW, NEWER, NEXT_ROW, PrefixIndex, as_blocks

Chain = list[int]


def chain(path: list[int]) -> Chain:
    """Return the chained hashes of a prompt with these blocks."""
    return [hash((17, *path[: end + 1])) % 2**64 for end in range(len(path))]


class Plain:
    """The blocks of each engine, least recently used first."""

    def __init__(self) -> None:
        self.capacity: dict[int, int] = {}
        self.held: dict[int, OrderedDict[int, None]] = {}

    def touch(self, number: int, blocks: Chain, reserved: int = 0) -> None:
        capacity, held = max(0, self.capacity[number] - reserved), self.held[number]
        blocks = blocks[:capacity]
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
        missing = sum(block not in held for block in blocks)
        while held and len(held) + missing > capacity:
            held.popitem(last=False)
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)

    def leading(self, number: int, blocks: Chain) -> int:
        held = self.held.get(number, OrderedDict())
        return next((n for n, block in enumerate(blocks) if block not in held), len(blocks))


chains = st.lists(st.integers(0, 2), max_size=7).map(chain)
steps = st.lists(
    st.tuples(st.sampled_from(["up", "down", "touch"]), st.integers(0, 3), chains, st.integers(0, 12)),
    max_size=60,
)


@settings(max_examples=100)
@given(steps, st.sampled_from([1, 40]))
def test_the_index_equals_the_plain_implementation(steps: list[tuple[str, int, Chain, int]], stride: int) -> None:
    index, plain = PrefixIndex(), Plain()
    for what, which, blocks, size in steps:
        number = which * stride  # in one word of bits, or in several
        if what == "up":
            index.add(number, size)
            plain.capacity[number] = size
            plain.held.setdefault(number, OrderedDict())
            plain.touch(number, [])
        elif number in plain.capacity and what == "down":
            index.remove(number)
            del plain.capacity[number], plain.held[number]
        elif number in plain.capacity:
            index.touch(number, as_blocks(blocks), size // 4)
            plain.touch(number, blocks, size // 4)
        depths = index.leading(as_blocks(blocks)).tolist()
        for at, depth in enumerate(depths):
            assert depth == plain.leading(at, blocks)
        for at, held in plain.held.items():
            assert index.held[at] == len(held)
    assert len(index) == len({block for held in plain.held.values() for block in held})


def test_growing_keeps_every_block_and_removal_frees_all_rows() -> None:
    index = PrefixIndex()
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 2**64, 20, dtype=np.uint64) for _ in range(150)]
    for number in range(150):  # several times the first size, in blocks and in engines
        index.add(number, 40)
        index.touch(number, prompts[number])
    for number in range(150):
        depths = index.leading(prompts[number])
        assert depths[number] == 20
        assert depths.sum() == 20
    for number in range(150):
        index.remove(number)
    tables = index._tables
    assert len(index) == 0
    for links, column, first in ((tables.rows, NEXT_ROW, FREE_ROW), (tables.nodes, NEWER, FREE_NODE)):
        free, at = 0, int(tables.free[first])
        while at < len(links):
            free, at = free + 1, int(links[at, column])
        assert free == len(links)


def test_a_smaller_capacity_evicts_at_once() -> None:
    index = PrefixIndex()
    index.add(0, 10)
    index.touch(0, as_blocks(chain([1] * 10)))
    index.add(0, 3)
    assert index.held[0] == 3
    assert index.leading(as_blocks(chain([1] * 10)))[0] == 3  # the first blocks stay


def test_hashes_may_be_a_list_or_any_array() -> None:
    numbers = [1, 2**64 - 1, 5]
    read_only = np.array(numbers, np.uint64)
    read_only.flags.writeable = False
    for given_as in (numbers, tuple(numbers), read_only, np.array(numbers * 2, np.uint64)[::2][:0]):
        made = as_blocks(given_as)
        assert made.dtype == np.uint64
        assert made.flags.carray
        assert made.tolist() == list(given_as)
