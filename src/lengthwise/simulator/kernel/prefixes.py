"""The prefix cache, block by block, with vLLM's order of eviction.

A block has an identity once it is full: that of the workload's hash it lies in, or the request's own. Free blocks stay
in the cache until they are taken: from the front of the free queue, where those without identity are put back first and
the others last, a request's tail before its head.
"""

from __future__ import annotations

import numpy as np

from lengthwise.compiled import inlined as compiled
from lengthwise.prefixes import GOLDEN_GAMMA, splitmix64
from lengthwise.simulator.kernel.access import (
    block_at,
    copy,
    hash_at,
    hash_offset_at,
    index_at,
    request_at,
    running_at,
    table_at,
)
from lengthwise.simulator.kernel.records import Record

_mix = compiled(splitmix64)


@compiled
def _identity(engine: Record, row: int, position: int) -> np.int64:
    """Identity of the full block at a position of a request; equal content has equal identity."""
    first, last = hash_offset_at(engine, row).value, hash_offset_at(engine, row + 1).value
    if engine.blocks_per_hash:
        which, part = first + position // engine.blocks_per_hash, position % engine.blocks_per_hash
    else:
        which, part = first + (position + 1) * engine.hashes_per_block - 1, 0
    # The last hash of a trace may stand for a block that is not full.
    if which < last and (position + 1) * engine.block_size <= request_at(engine, row).prompt:
        return np.int64(_mix(hash_at(engine, which).value + np.uint64(part) * GOLDEN_GAMMA))
    return np.int64(_mix(~((np.uint64(row) << np.uint64(32)) | np.uint64(position))))


@compiled
def _place(engine: Record, identity: np.int64) -> np.int64:
    """Place of an identity in the index, or the empty one where it would be inserted."""
    mask = engine.index_size - 1
    place = identity & mask
    while index_at(engine, place).oldest and index_at(engine, place).identity != identity:
        place = (place + 1) & mask
    return place


@compiled
def _find(engine: Record, identity: np.int64) -> int:
    """The oldest block of an identity, below 0 if there is none."""
    return int(index_at(engine, _place(engine, identity)).oldest - 1)


@compiled
def _insert(engine: Record, number: int, identity: np.int64) -> None:
    """Add a full block to the cache, after older ones of the same content."""
    block, entry = block_at(engine, number), index_at(engine, _place(engine, identity))
    block.identity, block.named = identity, 1
    if entry.oldest == 0:
        entry.identity, entry.oldest = identity, number + 1
        block.twin_before = block.twin_after = number
        return
    oldest = block_at(engine, entry.oldest - 1)
    newest = block_at(engine, oldest.twin_before)
    block.twin_before, block.twin_after = oldest.twin_before, entry.oldest - 1
    newest.twin_after = oldest.twin_before = number


@compiled
def _evict(engine: Record, number: int) -> None:
    """Remove a block from the cache."""
    block = block_at(engine, number)
    if not block.named:
        return
    block.named = 0
    place = _place(engine, block.identity)
    after = block.twin_after
    if after != number:
        block_at(engine, block.twin_before).twin_after = after
        block_at(engine, after).twin_before = block.twin_before
        if index_at(engine, place).oldest == number + 1:
            index_at(engine, place).oldest = after + 1
        return
    # Close the gap in the hash table, so that linear probing finds every entry.
    mask = engine.index_size - 1
    gap, place = place, (place + 1) & mask
    while index_at(engine, place).oldest:
        if (place - index_at(engine, place).identity) & mask >= (place - gap) & mask:
            copy(index_at(engine, gap), index_at(engine, place))
            gap = place
        place = (place + 1) & mask
    index_at(engine, gap).oldest = 0


@compiled
def _unlink(engine: Record, number: int) -> None:
    block = block_at(engine, number)
    block_at(engine, block.before).after = block.after
    block_at(engine, block.after).before = block.before
    engine.free -= 1


@compiled
def _link(engine: Record, number: int, before: int) -> None:
    """Insert a block into the free queue after `before`."""
    after = block_at(engine, before).after
    block_at(engine, number).before, block_at(engine, number).after = before, after
    block_at(engine, before).after = block_at(engine, after).before = number
    engine.free += 1


@compiled
def leading(engine: Record, row: int, most: int) -> tuple[int, int]:
    """Leading blocks of a request that are in the cache, and how many of them are free."""
    found = idle = 0
    while found < most:
        number = _find(engine, _identity(engine, row, found))
        if number < 0:
            break
        idle += block_at(engine, number).users == 0
        found += 1
    return found, idle


@compiled
def adopt(engine: Record, position: int, blocks: int) -> None:
    """Let a request that starts use the leading blocks that are in the cache."""
    running = running_at(engine, position)
    for at in range(blocks):
        number = _find(engine, _identity(engine, running.row, at))
        block = block_at(engine, number)
        if block.users == 0:
            _unlink(engine, number)
        else:
            engine.shared_tokens += engine.block_size
        block.users += 1
        table_at(engine, running.table * engine.positions + at).value = number


@compiled
def take(engine: Record, position: int, more: int) -> None:
    """Take free blocks and evict their content."""
    running = running_at(engine, position)
    for at in range(running.blocks, running.blocks + more):
        number = block_at(engine, engine.n_blocks).after
        _unlink(engine, number)
        _evict(engine, number)
        block_at(engine, number).users = 1
        table_at(engine, running.table * engine.positions + at).value = number


@compiled
def name(engine: Record, position: int, blocks: int) -> None:
    """Add the first `blocks` full blocks of a request to the cache."""
    running = running_at(engine, position)
    for at in range(running.hashed, blocks):
        _insert(
            engine, table_at(engine, running.table * engine.positions + at).value, _identity(engine, running.row, at)
        )


@compiled
def give_back(engine: Record, position: int, computed: int) -> None:
    """Free the blocks of a running request; blocks that are not computed leave the cache."""
    running = running_at(engine, position)
    for at in range(computed, running.hashed):
        _evict(engine, table_at(engine, running.table * engine.positions + at).value)
    front = engine.n_blocks
    for at in range(running.blocks - 1, -1, -1):
        number = table_at(engine, running.table * engine.positions + at).value
        block = block_at(engine, number)
        block.users -= 1
        if block.users:
            engine.shared_tokens -= engine.block_size
        elif block.named:
            _link(engine, number, block_at(engine, engine.n_blocks).before)
        else:
            _link(engine, number, front)
            front = number
