"""The prefix index, compiled: which engines hold which blocks, and who goes when one of them is full.

Everything lies in flat arrays. A *row* is a block that somebody holds: its hash, and a bit for each engine that does.
A *node* is one block on one engine, a link in that engine's list from the most to the least recently used. Two hash
tables with open addressing find them: rows by hash, nodes by row and engine. What it costs is mostly memory that is far
away, so the blocks of a prompt, which are put in together, lie side by side, and are found from each other.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lengthwise.routers.kernel.compiling import compiled, inlined

Int = Any
"""A whole number of NumPy's, of whatever width."""


class Tables(NamedTuple):
    """The memory of an index. A table has two columns: KEY, and VALUE plus one, 0 where a place is empty."""

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
FREE_ROW, FREE_NODE = 0, 1  # places in `free`
NONE: Final = -1
_REMEMBERED: Final = 2048  # evictions, after which older ones count half


@inlined
def mix(number: Int) -> Int:
    """64 well-mixed bits, so that the last ones can be a place."""
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


@inlined
def place(table: NDArray[np.uint64], key: Int) -> Int:
    """Where a key stands in a table, or would."""
    mask = np.uint64(len(table) - 1)
    at = mix(key) & mask
    while table[at, VALUE] and table[at, KEY] != key:
        at = (at + np.uint64(1)) & mask
    return at


@inlined
def value_of(table: NDArray[np.uint64], key: Int) -> Int:
    """What a table has under a key, or NONE."""
    return np.int64(table[place(table, key), VALUE]) - 1


@inlined
def put(table: NDArray[np.uint64], key: Int, value: Int) -> None:
    """Enter a key that is not there."""
    at = place(table, key)
    table[at, KEY], table[at, VALUE] = key, np.uint64(value + 1)


@inlined
def take_out(table: NDArray[np.uint64], key: Int) -> None:
    """Remove a key, and close the gap so that no other is cut off from its place."""
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
    """A row and an engine as one key."""
    return (np.uint64(row) << np.uint64(20)) | np.uint64(engine)


@inlined
def node_of(
    pairs: NDArray[np.uint64], bits: NDArray[np.uint64], nodes: NDArray[np.int32], row: Int, engine: Int, near: Int
) -> Int:
    """The node of a row on an engine, or NONE; `near` is where it is likely to be, if anywhere."""
    if not bits[row, engine >> 6] >> np.uint64(engine & 63) & np.uint64(1):
        return NONE
    if near != NONE and nodes[near, ROW] == row:
        return near
    return value_of(pairs, pair(row, engine))


@inlined
def unlink(nodes: NDArray[np.int32], engines: NDArray[np.int64], node: Int) -> None:
    """Take a node out of its engine's list."""
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
    """Put a node at the recent end of its engine's list."""
    engine = nodes[node, ENGINE]
    newest = engines[engine, NEWEST]
    nodes[node, OLDER], nodes[node, NEWER] = newest, NONE
    if newest == NONE:
        engines[engine, OLDEST] = node
    else:
        nodes[newest, NEWER] = node
    engines[engine, NEWEST] = node


@inlined
def forget(index: Tables, node: Int) -> None:
    """Take a block from an engine, and from the index if nobody else holds it."""
    row, engine = index.nodes[node, ROW], index.nodes[node, ENGINE]
    unlink(index.nodes, index.engines, node)
    take_out(index.pairs, pair(row, engine))
    index.nodes[node, ROW], index.nodes[node, NEWER] = NONE, index.free[FREE_NODE]
    index.free[FREE_NODE] = node
    index.engines[engine, HELD] -= 1
    index.bits[row, engine >> 6] &= ~(np.uint64(1) << np.uint64(engine & 63))
    index.rows[row, HOLDERS] -= 1
    if index.rows[row, HOLDERS] == 0:
        take_out(index.hashes, index.names[row])
        index.rows[row, NEXT_ROW] = index.free[FREE_ROW]
        index.free[FREE_ROW] = row


@inlined
def enter(index: Tables, engine: Int, block: Int) -> None:
    """Let an engine hold a block that it did not, as its most recent."""
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
    """Write for each engine how many leading blocks of a prompt it holds.

    Goes through the prompt's blocks until nobody holds the next. Engines only count in words of 64.
    """
    depths[:] = 0
    alive = live.copy()
    for number in range(len(blocks)):
        row = value_of(hashes, blocks[number])
        anybody = np.uint64(0)
        for word in range(len(alive)):
            before = alive[word]
            alive[word] = before & bits[row, word] if row != NONE else np.uint64(0)
            anybody |= alive[word]
            gone = before & ~alive[word]
            if number and gone:
                for bit in range(64):
                    if gone >> np.uint64(bit) & np.uint64(1):
                        depths[64 * word + bit] = number
        if not anybody:
            return
    for engine in range(len(depths)):
        if alive[engine >> 6] >> np.uint64(engine & 63) & np.uint64(1):
            depths[engine] = len(blocks)


@compiled
def touch(
    hashes: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
    names: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    rows: NDArray[np.int32],
    nodes: NDArray[np.int32],
    engines: NDArray[np.int64],
    free: NDArray[np.int64],
    engine: int,
    blocks: NDArray[np.uint64],
    room: int,
) -> None:
    """Let an engine hold a prompt's blocks as its most recent; `room` is how many blocks it may hold at all.

    The last block is put in first, so that it is the first to go, as engines do: what one holds is always a beginning.
    """
    index = Tables(hashes, pairs, names, bits, rows, nodes, engines, free)
    wanted = min(len(blocks), room)
    missing, near = 0, NONE
    for number in range(wanted - 1, -1, -1):
        row = value_of(hashes, blocks[number])
        node = NONE if row == NONE else node_of(pairs, bits, nodes, row, engine, near)
        if node == NONE:
            missing += 1
        else:
            near = nodes[node, NEWER]  # a prompt's block before this one was put in after it
            nodes[node, HITS] += 1
            unlink(nodes, engines, node)
            link(nodes, engines, node)
    while engines[engine, HELD] + missing > room and engines[engine, HELD]:
        engines[engine, LOST] += 1
        engines[engine, MISSED] += nodes[engines[engine, OLDEST], HITS] > 0
        forget(index, engines[engine, OLDEST])
    if engines[engine, LOST] > _REMEMBERED:
        engines[engine, LOST] //= 2
        engines[engine, MISSED] //= 2
    if missing == 0:
        return
    near = NONE
    for number in range(wanted - 1, -1, -1):
        row = value_of(hashes, blocks[number])
        node = NONE if row == NONE else node_of(pairs, bits, nodes, row, engine, near)
        if node == NONE:
            enter(index, engine, blocks[number])
        else:
            near = nodes[node, NEWER]
            unlink(nodes, engines, node)
            link(nodes, engines, node)


@compiled
def lose(
    hashes: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
    names: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    rows: NDArray[np.int32],
    nodes: NDArray[np.int32],
    engines: NDArray[np.int64],
    free: NDArray[np.int64],
    engine: int,
    blocks: NDArray[np.uint64],
) -> None:
    """Let an engine hold these blocks no longer."""
    index = Tables(hashes, pairs, names, bits, rows, nodes, engines, free)
    for block in blocks:
        row = value_of(hashes, block)
        if row != NONE:
            node = node_of(pairs, bits, nodes, row, engine, NONE)
            if node != NONE:
                forget(index, node)


@compiled
def clear(
    hashes: NDArray[np.uint64],
    pairs: NDArray[np.uint64],
    names: NDArray[np.uint64],
    bits: NDArray[np.uint64],
    rows: NDArray[np.int32],
    nodes: NDArray[np.int32],
    engines: NDArray[np.int64],
    free: NDArray[np.int64],
    engine: int,
) -> None:
    """Let an engine hold nothing."""
    index = Tables(hashes, pairs, names, bits, rows, nodes, engines, free)
    while engines[engine, OLDEST] != NONE:
        forget(index, engines[engine, OLDEST])
    engines[engine, LOST] = engines[engine, MISSED] = 0


@compiled
def file_again(table: NDArray[np.uint64], old: NDArray[np.uint64]) -> None:
    """Put everything from one table into another, larger one."""
    for at in range(len(old)):
        if old[at, VALUE]:
            put(table, old[at, KEY], np.int64(old[at, VALUE]) - 1)
