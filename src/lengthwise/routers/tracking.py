"""Base classes of routers that follow what engines do: outstanding work in a ledger, cached prefixes in an index."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.compiled import Form, as_compiled, interpreted
from lengthwise.policies import Job
from lengthwise.routers.base import (
    Admitted,
    BaseRouter,
    Costs,
    Decision,
    EngineId,
    EngineInfo,
    Event,
    Finished,
    Scraped,
)
from lengthwise.routers.ledger import BLOCK_TOKENS, PRIVATE, UNCACHED, Ledger
from lengthwise.routers.prefix_index import NO_BLOCKS, PrefixIndex, as_blocks

_SILENCE_CHECK_INTERVAL: Final = 64  # choices


class LedgerRouter(BaseRouter):
    """A router that knows the expected work of each engine."""

    compares_costs: ClassVar[bool] = False
    """Whether the choice is the minimum of one cost per engine, and `pick` has no side effects."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.form: Form = as_compiled
        """What a compiled function is run as."""
        self.ledger = Ledger()
        self._choices = 0

    def interpret(self) -> None:
        """Run in Python what is compiled otherwise."""
        self.form = interpreted
        self.ledger = Ledger(self.form)

    def engine_up(self, engine: EngineInfo) -> None:
        """Add an engine or update its description."""
        super().engine_up(engine)
        self.ledger.add(self.numbers[engine.id], engine)

    def engine_down(self, engine: EngineId) -> None:
        """Remove an engine and the jobs sent there."""
        number = self.numbers.get(engine)
        super().engine_down(engine)
        if number is not None:
            self.ledger.remove(number)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Pick an engine and enter the job in the ledger."""
        self._choices += 1
        if self._choices % _SILENCE_CHECK_INTERVAL == 0:
            self.ledger.drop_silent(now)
        return super().choose(job, now, among)

    def weigh(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Costs:
        """Return the terms of every engine's cost; empty if this router does not compare costs."""
        numbers = self.allowed(among) if self.compares_costs else ()
        return {self.engine_id(number): self.pick(job, now, np.array([number], np.int64))[1] for number in numbers}

    def send(self, job: Job, number: int, now: float) -> None:
        """Enter the job in the ledger."""
        self.ledger.sent(job, number, now, 0.0, NO_BLOCKS)

    def observe(self, event: Event) -> None:
        """Update the ledger; events about engines that are not up are ignored."""
        number = self.numbers.get(event.engine)
        if number is None:
            return
        if isinstance(event, Admitted):
            self.ledger.admitted(event.job, number, event.now)
        elif isinstance(event, Finished):
            self.finish(event, number)
        elif isinstance(event, Scraped):
            self.ledger.scraped(number, event)

    def finish(self, event: Finished, number: int) -> None:
        """Remove a finished job."""
        self.ledger.finished(event.job, number, event.now)


class PrefixRouter(LedgerRouter):
    """A router that also knows, when it picks, how much of the prompt each engine has cached."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.index = PrefixIndex()
        self.blocks = as_blocks(())
        self.depths: NDArray[np.int64] = np.zeros(0, np.int64)

    def interpret(self) -> None:
        """Run in Python what is compiled otherwise."""
        super().interpret()
        self.index = PrefixIndex(self.form)

    def engine_up(self, engine: EngineInfo) -> None:
        """Add an engine, with an empty cache if it is new, or update its description."""
        super().engine_up(engine)
        self.index.add(self.numbers[engine.id], engine.kv_tokens // engine.block_tokens if engine.caches else 0)

    def engine_down(self, engine: EngineId) -> None:
        """Remove an engine, the jobs sent there and its cached blocks."""
        if engine in self.numbers:
            self.index.remove(self.numbers[engine])
        super().engine_down(engine)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Look the prompt up, then pick."""
        self._look_up(job)
        return super().choose(job, now, among)

    def weigh(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Costs:
        """Look the prompt up, then compare costs."""
        self._look_up(job)
        return super().weigh(job, now, among)

    def _look_up(self, job: Job) -> None:
        self.blocks = as_blocks(job.blocks)
        self.depths = self.index.leading(self.blocks)

    def send(self, job: Job, number: int, now: float) -> None:
        """Enter the job in the ledger and its prompt in the index."""
        cached = self.depths.item(number) * self.ledger.loads.item(number, BLOCK_TOKENS)
        self.ledger.sent(job, number, now, max(0.0, min(cached, job.prompt_tokens - 1.0)), self.blocks)
        self._touch(number, self.blocks)

    def finish(self, event: Finished, number: int) -> None:
        """Remove a finished job. Its prompt could not be evicted until now, so it is the most recently used."""
        blocks = self.ledger.finished(event.job, number, event.now)
        if blocks is not None:
            self._touch(number, blocks)

    def _touch(self, number: int, blocks: NDArray[np.uint64]) -> None:
        if not len(blocks) and not self.index.used:
            return
        load = self.ledger.loads[number].item
        answers = 0.5 * (load(PRIVATE) - load(UNCACHED))  # half of each answer, on average
        self.index.touch(number, blocks, int(answers / load(BLOCK_TOKENS)))
