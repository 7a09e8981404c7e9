"""The engines that have the beginning of a prompt cached: chained block hashes to engines.

An engine is a small number, given by the caller. A prompt sent to an engine is assumed to be cached there, as
its most recently used; beyond the engine's KV memory the least recently used block is evicted, as in the engine. KV
events, where an engine sends them, correct that. A lookup costs O(blocks of the prompt), independent of history.

Memory is bounded by the engines' KV memory: about 70 bytes for each block that all of them together can hold, and a bit
per engine (in words of 64) for each such block. The system commits it as it is used.

All data is in flat arrays. A *row* is a block that at least one engine has: its hash, and a bit for each such engine. A
*node* is one block on one engine, a link in that engine's list from the most to the least recently used. Two hash
tables with open addressing find them: rows by hash, nodes by row and engine. Cache misses dominate the cost, so the
blocks of a prompt, which are inserted together, are adjacent in memory and lead to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import Form, as_compiled, compiled, inlined
from lengthwise.prefixes import splitmix64

Int = Any
"""A NumPy integer of any width."""
Blocks = Sequence[int] | NDArray[np.uint64]


class Tables(NamedTuple):
    """The memory of an index. A table has two columns: KEY, and VALUE plus one, 0 for an empty position."""

    hashes: NDArray[np.uint64]  # table of rows by hash
    pairs: NDArray[np.uint64]  # table of nodes by row and engine
    names: NDArray[np.uint64]  # of each row, its hash
    bits: NDArray[np.uint64]  # of each row, words with a bit for each engine
    rows: NDArray[np.int32]
    nodes: NDArray[np.int32]
    engines: NDArray[np.int64]
    free: NDArray[np.int64]  # the first free row and the first free node


KEY, VALUE = 0, 1
HOLDERS, NEXT_ROW = 0, 1  # columns of `rows`
ROW, ENGINE, OLDER, NEWER, HITS = 0, 1, 2, 3, 4  # of `nodes`; free ones are chained by NEWER
OLDEST, NEWEST, HELD, LOST, MISSED = 0, 1, 2, 3, 4  # of `engines`
FREE_ROW, FREE_NODE = 0, 1  # positions in `free`
NONE: Final = -1
_INITIAL_BLOCKS: Final = 1024
_WORD: Final = 64
NO_BLOCKS: Final = np.zeros(0, np.uint64)
_EVICTION_WINDOW: Final = 2048  # evictions, after which older ones count half


mix = inlined(splitmix64)


@inlined
def place(table: NDArray[np.uint64], key: Int) -> Int:
    """Return the position of a key in a table, or where it would be."""
    mask = np.uint64(len(table) - 1)
    at = mix(key) & mask
    while table[at, VALUE] and table[at, KEY] != key:
        at = (at + np.uint64(1)) & mask
    return at


@inlined
def value_of(table: NDArray[np.uint64], key: Int) -> Int:
    """Return the value of a key, or NONE."""
    return np.int64(table[place(table, key), VALUE]) - 1


@inlined
def put(table: NDArray[np.uint64], key: Int, value: Int) -> None:
    """Insert a new key."""
    at = place(table, key)
    table[at, KEY], table[at, VALUE] = key, np.uint64(value + 1)


@inlined
def delete(table: NDArray[np.uint64], key: Int) -> None:
    """Remove a key and close the gap, so that every other key is still found."""
    mask = np.uint64(len(table) - 1)
    gap = place(table, key)
    at = (gap + np.uint64(1)) & mask
    while table[at, VALUE]:
        home = mix(table[at, KEY]) & mask
        if ((at - home) & mask) >= ((at - gap) & mask):
            table[gap, KEY], table[gap, VALUE] = table[at, KEY], table[at, VALUE]
            gap = at
        at = (at + np.uint64(1)) & mask
    table[gap, VALUE] = np.uint64(0)


@inlined
def pair(row: Int, engine: Int) -> Int:
    """Return a row and an engine as one key."""
    return (np.uint64(row) << np.uint64(20)) | np.uint64(engine)


@inlined
def node_of(
    pairs: NDArray[np.uint64], bits: NDArray[np.uint64], nodes: NDArray[np.int32], row: Int, engine: Int, near: Int
) -> Int:
    """Return the node of a row on an engine, or NONE; `near` is the most likely one."""
    if row == NONE or not bits[row, engine >> 6] >> np.uint64(engine & 63) & np.uint64(1):
        return NONE
    if near != NONE and nodes[near, ROW] == row:
        return near
    return value_of(pairs, pair(row, engine))


@inlined
def unlink(nodes: NDArray[np.int32], engines: NDArray[np.int64], node: Int) -> None:
    """Remove a node from its engine's list."""
    engine, older, newer = nodes[node, ENGINE], nodes[node, OLDER], nodes[node, NEWER]
    if older == NONE:
        engines[engine, OLDEST] = newer
    else:
        nodes[older, NEWER] = newer
    if newer == NONE:
        engines[engine, NEWEST] = older
    else:
        nodes[newer, OLDER] = older


@inlined
def link(nodes: NDArray[np.int32], engines: NDArray[np.int64], node: Int) -> None:
    """Append a node at the recent end of its engine's list."""
    engine = nodes[node, ENGINE]
    newest = engines[engine, NEWEST]
    nodes[node, OLDER], nodes[node, NEWER] = newest, NONE
    if newest == NONE:
        engines[engine, OLDEST] = node
    else:
        nodes[newest, NEWER] = node
    engines[engine, NEWEST] = node


@inlined
def remove(index: Tables, node: Int) -> None:
    """Remove a block from an engine, and from the index if no other engine has it."""
    row, engine = index.nodes[node, ROW], index.nodes[node, ENGINE]
    unlink(index.nodes, index.engines, node)
    delete(index.pairs, pair(row, engine))
    index.nodes[node, ROW], index.nodes[node, NEWER] = NONE, index.free[FREE_NODE]
    index.free[FREE_NODE] = node
    index.engines[engine, HELD] -= 1
    index.bits[row, engine >> 6] &= ~(np.uint64(1) << np.uint64(engine & 63))
    index.rows[row, HOLDERS] -= 1
    if index.rows[row, HOLDERS] == 0:
        delete(index.hashes, index.names[row])
        index.rows[row, NEXT_ROW] = index.free[FREE_ROW]
        index.free[FREE_ROW] = row


@inlined
def insert(index: Tables, engine: Int, block: Int) -> None:
    """Add a new block to an engine, as its most recently used."""
    row = value_of(index.hashes, block)
    if row == NONE:
        row = index.free[FREE_ROW]
        index.free[FREE_ROW] = index.rows[row, NEXT_ROW]
        put(index.hashes, block, row)
        index.names[row] = block
        index.bits[row, :] = np.uint64(0)
        index.rows[row, HOLDERS] = 0
    index.rows[row, HOLDERS] += 1
    index.bits[row, engine >> 6] |= np.uint64(1) << np.uint64(engine & 63)
    node = index.free[FREE_NODE]
    index.free[FREE_NODE] = index.nodes[node, NEWER]
    index.nodes[node, ROW], index.nodes[node, ENGINE], index.nodes[node, HITS] = row, engine, 0
    put(index.pairs, pair(row, engine), node)
    link(index.nodes, index.engines, node)
    index.engines[engine, HELD] += 1


@compiled
def leading(
    hashes: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    blocks: NDArray[np.uint64],
    live: NDArray[np.uint64],
    depths: NDArray[np.int64],
) -> None:
    """Write for each engine how many leading blocks of a prompt it has.

    Scans the prompt's blocks until no engine has the next one, 64 engines per machine word.
    """
    depths[:] = 0
    alive = live.copy()
    for position in range(len(blocks)):
        row = value_of(hashes, blocks[position])
        any_engine = np.uint64(0)
        for word in range(len(alive)):
            before = alive[word]
            alive[word] = before & bits[row, word] if row != NONE else np.uint64(0)
            any_engine |= alive[word]
            gone = before & ~alive[word]
            if position and gone:
                for bit in range(64):
                    if gone >> np.uint64(bit) & np.uint64(1):
                        depths[64 * word + bit] = position
        if not any_engine:
            return
    for engine in range(len(depths)):
        if alive[engine >> 6] >> np.uint64(engine & 63) & np.uint64(1):
            depths[engine] = len(blocks)


@compiled
def touch(
    number: int,
    blocks: NDArray[np.uint64],
    capacity: int,
    hashes: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
    names: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    rows: NDArray[np.int32],
    nodes: NDArray[np.int32],
    engines: NDArray[np.int64],
    free: NDArray[np.int64],
) -> None:
    """Make a prompt's blocks the most recently used of an engine, which can hold `capacity` blocks.

    The last block is inserted first and so evicted first, as in engines: the cached part is always a prefix.
    """
    index = Tables(hashes, pairs, names, bits, rows, nodes, engines, free)
    wanted = min(len(blocks), capacity)
    missing, near = 0, NONE
    for position in range(wanted - 1, -1, -1):
        node = node_of(pairs, bits, nodes, value_of(hashes, blocks[position]), number, near)
        if node == NONE:
            missing += 1
        else:
            near = nodes[node, NEWER]  # the block before this one was inserted after it
            nodes[node, HITS] += 1
            unlink(nodes, engines, node)
            link(nodes, engines, node)
    while engines[number, HELD] + missing > capacity and engines[number, HELD]:
        engines[number, LOST] += 1
        engines[number, MISSED] += nodes[engines[number, OLDEST], HITS] > 0
        remove(index, engines[number, OLDEST])
    if engines[number, LOST] > _EVICTION_WINDOW:
        engines[number, LOST] //= 2
        engines[number, MISSED] //= 2
    if missing == 0:
        return
    near = NONE
    for position in range(wanted - 1, -1, -1):
        node = node_of(pairs, bits, nodes, value_of(hashes, blocks[position]), number, near)
        if node == NONE:
            insert(index, number, blocks[position])
        else:
            near = nodes[node, NEWER]
            unlink(nodes, engines, node)
            link(nodes, engines, node)


@compiled
def copy_entries(table: NDArray[np.uint64], old: NDArray[np.uint64]) -> None:
    """Copy all entries of a table into a larger one."""
    for at in range(len(old)):
        if old[at, VALUE]:
            put(table, old[at, KEY], np.int64(old[at, VALUE]) - 1)


class PrefixIndex:
    """Chained block hashes and the engines that have them cached."""

    def __init__(self, form: Form = as_compiled) -> None:
        self._leading, self._touch, self._copy_entries = form(leading), form(touch), form(copy_entries)
        self._capacity: list[int] = []
        self.used = False  # whether it ever had a block; until then it needs no memory for blocks and no search
        self._live = np.zeros(0, np.uint64)
        self._depths = np.zeros(0, np.int64)
        self._tables = _empty_tables(_INITIAL_BLOCKS, 0)

    def add(self, number: int, blocks: int) -> None:
        """Add an engine with a capacity of `blocks`; a known engine keeps its blocks as far as they fit."""
        if number >= len(self._capacity):
            self._capacity += [0] * (number + 1 - len(self._capacity))
        self._capacity[number] = blocks
        self._reserve()
        self._live[number // _WORD] |= np.uint64(1 << number % _WORD)
        self.touch(number, NO_BLOCKS)  # evicts at once if the capacity is smaller than before

    def remove(self, number: int) -> None:
        """Remove an engine and its blocks."""
        self._capacity[number] = 0
        self.touch(number, NO_BLOCKS)  # evicts everything
        self.engines[number, [LOST, MISSED]] = 0
        self._live[number // _WORD] &= ~np.uint64(1 << number % _WORD)

    def leading(self, blocks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many leading blocks of a prompt each engine has, by its number. Valid until the next call."""
        if not self.used:
            return self._depths
        tables = self._tables
        self._leading(tables.hashes, tables.bits, blocks, self._live, self._depths)
        return self._depths

    def touch(self, number: int, blocks: NDArray[np.uint64], reserved: int = 0) -> None:
        """Mark a prompt as used on an engine, where `reserved` blocks of memory hold answers, which have no hash."""
        if len(blocks) and not self.used:
            self.used = True
            self._reserve()
        self._touch(number, blocks, max(0, self._capacity[number] - reserved), *self._tables)

    @property
    def held(self) -> NDArray[np.int64]:
        """Blocks that each engine has, by its number."""
        return self._tables.engines[:, HELD]

    @property
    def engines(self) -> NDArray[np.int64]:
        """One row per engine, in the columns of the compiled index."""
        return self._tables.engines

    def __len__(self) -> int:
        """Return the number of different blocks."""
        return int(np.count_nonzero(self._tables.hashes[:, VALUE]))

    def _reserve(self) -> None:
        """Allocate memory for all engines, doubling it so that a growing fleet does not copy everything each time."""
        old, engines, wanted = self._tables, len(self._capacity), sum(self._capacity) if self.used else 0
        words = -(-engines // _WORD)
        if wanted > len(old.nodes) or words > old.bits.shape[1]:
            size = len(old.nodes) if wanted <= len(old.nodes) else max(wanted, 2 * len(old.nodes))
            width = old.bits.shape[1] if words <= old.bits.shape[1] else max(words, 2 * old.bits.shape[1])
            self._tables = self._copied(old, _empty_tables(size, width))
            self._live = np.concatenate([self._live, np.zeros(width - len(self._live), np.uint64)])
        if engines > len(self._depths):
            self._depths = np.zeros(self._tables.bits.shape[1] * _WORD, np.int64)

    def _copied(self, old: Tables, new: Tables) -> Tables:
        """Copy everything into larger tables; the chains of free rows and nodes continue into the new ones."""
        self._copy_entries(new.hashes, old.hashes)
        self._copy_entries(new.pairs, old.pairs)
        for name in ("names", "rows", "nodes"):
            getattr(new, name)[: len(old.names)] = getattr(old, name)
        new.bits[: len(old.bits), : old.bits.shape[1]] = old.bits
        new.engines[: len(old.engines)] = old.engines
        new.free[:] = old.free
        return new


def as_blocks(blocks: Blocks) -> NDArray[np.uint64]:
    """Return a job's hashes as one type of array, contiguous and writable: one specialisation of compiled code."""
    if not isinstance(blocks, np.ndarray):
        return np.array(blocks, np.uint64) if blocks else NO_BLOCKS
    return blocks if blocks.flags.carray and blocks.dtype == np.uint64 else np.array(blocks, np.uint64)


def _empty_tables(size: int, words: int) -> Tables:
    slots = 1 << (2 * size - 1).bit_length()
    rows, nodes = np.zeros((size, 2), np.int32), np.zeros((size, 5), np.int32)
    rows[:, NEXT_ROW] = nodes[:, NEWER] = np.arange(1, size + 1)
    engines = np.zeros((words * _WORD, 5), np.int64)
    engines[:, :2] = NONE
    return Tables(
        hashes=np.zeros((slots, 2), np.uint64),
        pairs=np.zeros((slots, 2), np.uint64),
        names=np.zeros(size, np.uint64),
        bits=np.zeros((size, words), np.uint64),
        rows=rows,
        nodes=nodes,
        engines=engines,
        free=np.zeros(2, np.int64),
    )
