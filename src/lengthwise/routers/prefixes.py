"""Which engines hold the beginning of a prompt: chained block hashes to engines, with each engine's memory mirrored.

An engine is a slot here, a small number that its owner gives. What is sent to an engine is taken to be held there, as
its most recent; when more is held than its KV memory has room for, the least recent goes, as in the engine. KV events,
where an engine gives them, set that right. A lookup costs by the blocks of the prompt, not by history.

Memory is bounded by the engines': about 70 bytes for each block that all of them together have room for, and for each
such block a bit per engine (in steps of 64). It is taken from the system as it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from lengthwise.routers.kernel import prefixes as kernel
from lengthwise.routers.kernel.prefixes import HELD, NEWER, NEXT_ROW, NONE, VALUE, Tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Blocks = Sequence[int] | NDArray[np.uint64]

_FEWEST: Final = 1024  # blocks, to begin with
_WORD: Final = 64
_NO_BLOCKS: Final = np.zeros(0, np.uint64)


class PrefixIndex:
    """Chained block hashes and the engines that hold them."""

    def __init__(self) -> None:
        self._capacity: list[int] = []
        self._live = np.zeros(0, np.uint64)
        self._depths = np.zeros(0, np.int64)
        self._tables = _fresh(_FEWEST, 0)

    def add(self, slot: int, blocks: int) -> None:
        """Let an engine in that has room for so many blocks; one that is there keeps what it holds."""
        if slot >= len(self._capacity):
            self._capacity += [0] * (slot + 1 - len(self._capacity))
        self._capacity[slot] = blocks
        self._make_room()
        self._live[slot // _WORD] |= np.uint64(1 << slot % _WORD)
        self.touch(slot, _NO_BLOCKS)  # with less room than before, some must go at once

    def remove(self, slot: int) -> None:
        """Forget all that an engine holds."""
        kernel.clear(*self._tables, slot)
        self._capacity[slot] = 0
        self._live[slot // _WORD] &= ~np.uint64(1 << slot % _WORD)

    def leading(self, blocks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many leading blocks of a prompt each engine holds, by slot. Valid until it is asked again."""
        tables = self._tables
        kernel.leading(tables.hashes, tables.bits, blocks, self._live, self._depths)
        return self._depths

    def touch(self, slot: int, blocks: NDArray[np.uint64], taken: int = 0) -> None:
        """A prompt is used on an engine, where so many blocks of memory are taken by what has no hash."""
        kernel.touch(*self._tables, slot, blocks, max(0, self._capacity[slot] - taken))

    def lose(self, slot: int, blocks: NDArray[np.uint64]) -> None:
        """An engine has told that it no longer holds these."""
        kernel.lose(*self._tables, slot, blocks)

    @property
    def held(self) -> NDArray[np.int64]:
        """Blocks that each engine holds, by slot."""
        return self._tables.engines[:, HELD]

    @property
    def engines(self) -> NDArray[np.int64]:
        """What is held, lost and missed, by slot, in the columns of the compiled index."""
        return self._tables.engines

    def __len__(self) -> int:
        """Blocks that anybody holds, each counted once."""
        return int(np.count_nonzero(self._tables.hashes[:, VALUE]))

    def _make_room(self) -> None:
        """Have memory for all engines; twice as much each time, so that a growing fleet does not copy all each time."""
        old, slots, wanted = self._tables, len(self._capacity), sum(self._capacity)
        words = -(-slots // _WORD)
        if wanted > len(old.nodes) or words > old.bits.shape[1]:
            size = len(old.nodes) if wanted <= len(old.nodes) else max(wanted, 2 * len(old.nodes))
            wide = old.bits.shape[1] if words <= old.bits.shape[1] else max(words, 2 * old.bits.shape[1])
            self._tables = _moved(old, _fresh(size, wide))
            self._live = np.concatenate([self._live, np.zeros(wide - len(self._live), np.uint64)])
        if slots > len(self._depths):
            self._depths = np.zeros(self._tables.bits.shape[1] * _WORD, np.int64)


def as_blocks(blocks: Blocks) -> NDArray[np.uint64]:
    """A job's hashes as an array of one kind always, for compiled code: contiguous and not only for reading."""
    if not isinstance(blocks, np.ndarray):
        return np.array(blocks, np.uint64) if blocks else _NO_BLOCKS
    return blocks if blocks.flags.carray and blocks.dtype == np.uint64 else np.array(blocks, np.uint64)


def _fresh(size: int, words: int) -> Tables:
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


def _moved(old: Tables, new: Tables) -> Tables:
    """Everything from one memory in another that is larger; free rows and nodes go on into the new ones."""
    kernel.file_again(new.hashes, old.hashes)
    kernel.file_again(new.pairs, old.pairs)
    for name in ("names", "rows", "nodes"):
        getattr(new, name)[: len(old.names)] = getattr(old, name)
    new.bits[: len(old.bits), : old.bits.shape[1]] = old.bits
    new.engines[: len(old.engines)] = old.engines
    new.free[:] = old.free
    return new
