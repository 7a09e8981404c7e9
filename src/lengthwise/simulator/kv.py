"""KV memory in blocks: how many there are, how many are free.

Blocks are counted, not named: without a prefix cache any block is as good as another.
"""

from __future__ import annotations


class KvBlocks:
    """The KV memory of one engine. Nothing is reserved: a block is taken when a token first needs it."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total = blocks
        self.free = blocks
        self.block_size = block_size

    def needed(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_size)

    def take(self, blocks: int) -> bool:
        """Take blocks, all or none; False where not that many are free."""
        if blocks > self.free:
            return False
        self.free -= blocks
        return True

    def give_back(self, blocks: int) -> None:
        """Free blocks."""
        self.free += blocks
