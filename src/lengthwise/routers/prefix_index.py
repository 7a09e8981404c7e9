"""The engines that have the beginning of a prompt cached: chained block hashes to engines.

An engine is a slot, a small number given by the caller. A prompt sent to an engine is assumed to be cached there, as
its most recently used; beyond the engine's KV memory the least recently used block is evicted, as in the engine. KV
events, where an engine sends them, correct that. A lookup costs O(blocks of the prompt), independent of history.

Memory is bounded by the engines' KV memory: about 70 bytes for each block that all of them together can hold, and a bit
per engine (in words of 64) for each such block. The system commits it as it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.routers import prefix_kernel as kernel
from lengthwise.routers.prefix_kernel import HELD, LOST, MISSED, NEWER, NEXT_ROW, NONE, VALUE, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Blocks = Sequence[int] | NDArray[np.uint64]

_INITIAL_BLOCKS: Final = 1024
_WORD: Final = 64
_NO_BLOCKS: Final = np.zeros(0, np.uint64)


class PrefixIndex:
    """Chained block hashes and the engines that have them cached."""

    def __init__(self) -> None:
        self._capacity: list[int] = []
        self._live = np.zeros(0, np.uint64)
        self._depths = np.zeros(0, np.int64)
        self._tables = _empty_tables(_INITIAL_BLOCKS, 0)

    def add(self, slot: int, blocks: int) -> None:
        """Add an engine with a capacity of `blocks`; a known engine keeps its blocks as far as they fit."""
        if slot >= len(self._capacity):
            self._capacity += [0] * (slot + 1 - len(self._capacity))
        self._capacity[slot] = blocks
        self._reserve()
        self._live[slot // _WORD] |= np.uint64(1 << slot % _WORD)
        self.touch(slot, _NO_BLOCKS)  # evicts at once if the capacity is smaller than before

    def remove(self, slot: int) -> None:
        """Remove an engine and its blocks."""
        self._capacity[slot] = 0
        self.touch(slot, _NO_BLOCKS)  # evicts everything
        self.engines[slot, [LOST, MISSED]] = 0
        self._live[slot // _WORD] &= ~np.uint64(1 << slot % _WORD)

    def leading(self, blocks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return how many leading blocks of a prompt each engine has, by slot. Valid until the next call."""
        tables = self._tables
        kernel.leading(tables.hashes, tables.bits, blocks, self._live, self._depths)
        return self._depths

    def touch(self, slot: int, blocks: NDArray[np.uint64], reserved: int = 0) -> None:
        """Mark a prompt as used on an engine, where `reserved` blocks of memory hold answers, which have no hash."""
        kernel.touch(*self._tables, slot, blocks, max(0, self._capacity[slot] - reserved))

    def lose(self, slot: int, blocks: NDArray[np.uint64]) -> None:
        """Remove blocks that an engine reports as evicted."""
        kernel.lose(*self._tables, slot, blocks)

    @property
    def held(self) -> NDArray[np.int64]:
        """Blocks that each engine has, by slot."""
        return self._tables.engines[:, HELD]

    @property
    def engines(self) -> NDArray[np.int64]:
        """Numbers of each engine, by slot, in the columns of the compiled index."""
        return self._tables.engines

    def __len__(self) -> int:
        """Return the number of different blocks."""
        return int(np.count_nonzero(self._tables.hashes[:, VALUE]))

    def _reserve(self) -> None:
        """Allocate memory for all engines, doubling it so that a growing fleet does not copy everything each time."""
        old, slots, wanted = self._tables, len(self._capacity), sum(self._capacity)
        words = -(-slots // _WORD)
        if wanted > len(old.nodes) or words > old.bits.shape[1]:
            size = len(old.nodes) if wanted <= len(old.nodes) else max(wanted, 2 * len(old.nodes))
            width = old.bits.shape[1] if words <= old.bits.shape[1] else max(words, 2 * old.bits.shape[1])
            self._tables = _copied(old, _empty_tables(size, width))
            self._live = np.concatenate([self._live, np.zeros(width - len(self._live), np.uint64)])
        if slots > len(self._depths):
            self._depths = np.zeros(self._tables.bits.shape[1] * _WORD, np.int64)


def as_blocks(blocks: Blocks) -> NDArray[np.uint64]:
    """Return a job's hashes as one type of array, contiguous and writable: one specialisation of compiled code."""
    if not isinstance(blocks, np.ndarray):
        return np.array(blocks, np.uint64) if blocks else _NO_BLOCKS
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


def _copied(old: Tables, new: Tables) -> Tables:
    """Copy everything into larger tables; the chains of free rows and nodes continue into the new ones."""
    kernel.copy_entries(new.hashes, old.hashes)
    kernel.copy_entries(new.pairs, old.pairs)
    for name in ("names", "rows", "nodes"):
        getattr(new, name)[: len(old.names)] = getattr(old, name)
    new.bits[: len(old.bits), : old.bits.shape[1]] = old.bits
    new.engines[: len(old.engines)] = old.engines
    new.free[:] = old.free
    return new
