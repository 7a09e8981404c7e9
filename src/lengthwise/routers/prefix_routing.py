"""What routers that look at prefixes have in common: the index, fed with what is sent, finished and evicted."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from lengthwise.policies import Job
from lengthwise.routers.base import Routing, Slots
from lengthwise.routers.contract import Costs, Decision, EngineId, EngineInfo, Evicted, Finished
from lengthwise.routers.kernel.loads import Load
from lengthwise.routers.prefixes import PrefixIndex, as_blocks

_PRIVATE, _UNCACHED, _BLOCK_TOKENS = int(Load.PRIVATE), int(Load.UNCACHED), int(Load.BLOCK_TOKENS)  # looked up quickly


class PrefixRouting(Routing):
    """A router that knows, while it picks, how much of the prompt each engine holds."""

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self.index = PrefixIndex()
        self.blocks = as_blocks(())
        self.depths: NDArray[np.int64] = np.zeros(0, np.int64)

    def engine_up(self, engine: EngineInfo) -> None:
        """Learn of an engine, whose memory is taken to be empty if it is new."""
        super().engine_up(engine)
        self.index.add(self.slots[engine.id], engine.kv_tokens // engine.block_tokens if engine.caches else 0)

    def engine_down(self, engine: EngineId) -> None:
        """Forget an engine and what it held."""
        if engine in self.slots:
            self.index.remove(self.slots[engine])
        super().engine_down(engine)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Look the prompt up, then pick."""
        self._look_up(job)
        return super().choose(job, now, among)

    def weigh(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Costs:
        """Look the prompt up, then weigh."""
        self._look_up(job)
        return super().weigh(job, now, among)

    def _look_up(self, job: Job) -> None:
        self.blocks = as_blocks(job.blocks)
        self.depths = self.index.leading(self.blocks)

    def cached_tokens(self, job: Job, slots: Slots) -> NDArray[np.float64]:
        """How much of the prompt each of these engines holds; the last token is always computed."""
        held = self.depths[slots] * self.column(Load.BLOCK_TOKENS, slots)
        return np.asarray(np.maximum(0.0, np.minimum(held, job.prompt_tokens - 1.0)))

    def send(self, job: Job, slot: int, now: float) -> None:
        """Count a job as sent, and its prompt as held there."""
        held = self.depths.item(slot) * self.ledger.loads.item(slot, _BLOCK_TOKENS)
        self.ledger.sent(job, slot, now, max(0.0, min(held, job.prompt_tokens - 1.0)), self.blocks)
        self._touch(slot, self.blocks)

    def finish(self, event: Finished, slot: int) -> None:
        """A job is over: until now its prompt could not be evicted, so it is the most recent."""
        blocks = self.ledger.finished(event.job, slot, event.now)
        if blocks is not None:
            self._touch(slot, blocks)

    def evict(self, event: Evicted, slot: int) -> None:
        """The engine says what it no longer holds."""
        self.index.lose(slot, as_blocks(event.blocks))

    def _touch(self, slot: int, blocks: NDArray[np.uint64]) -> None:
        number = self.ledger.loads.item
        answers = 0.5 * (number(slot, _PRIVATE) - number(slot, _UNCACHED))  # half way through, on the average
        self.index.touch(slot, blocks, int(answers / number(slot, _BLOCK_TOKENS)))
