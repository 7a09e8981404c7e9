"""What routers have in common: who is up, what was sent where, and how parameters are spelt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import Job
from lengthwise.routers.contract import (
    Admitted,
    Costs,
    Decision,
    EngineId,
    EngineInfo,
    Event,
    Evicted,
    Finished,
    NoEngineError,
    Progress,
    Scraped,
)
from lengthwise.routers.kernel.loads import Load
from lengthwise.routers.ledger import Ledger

Slots = NDArray[np.int64]
Picked = tuple[int, Mapping[str, float]]

_LOOK_EVERY: Final = 64  # choices: how often silent jobs are looked for
_NO_BLOCKS: Final = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that `make_router` takes, and its range."""

    default: float
    least: float = 0.0
    most: float = 1e9


class Routing(ABC):
    """A router from one method, `pick`. Counts what it sent; subclasses that look at prefixes say so.

    Engines are kept in slots, small numbers that are used again when an engine has gone.
    """

    called: ClassVar[str]
    uses_predictions: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    """Whether it takes the least sum of terms, `pick` from one engine tells that engine's, and changes nothing."""
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def __init__(self, **given: float) -> None:
        self.given = {name: given.get(name, known.default) for name, known in self.parameters.items()}
        for name, value in self.given.items():
            known = self.parameters[name]
            if not known.least <= value <= known.most:
                raise InputError(
                    f"{name} of router {self.called} is {value:g}",
                    hint=f"give a number from {known.least:g} to {known.most:g}",
                )
        self.ledger = Ledger()
        self.slots: dict[EngineId, int] = {}
        self.engines: list[EngineInfo | None] = []
        self.live = _slots(())
        self._chosen = 0

    @property
    def name(self) -> str:
        """The name with every parameter that is not the default."""
        changed = {name: value for name, value in self.given.items() if value != self.parameters[name].default}
        return self.called + (":" + ",".join(f"{name}={value:.12g}" for name, value in changed.items())) * bool(changed)

    @abstractmethod
    def pick(self, job: Job, now: float, slots: Slots) -> Picked:
        """Return one of the slots (there is at least one, in rising order), and the terms of its cost."""

    def engine_up(self, engine: EngineInfo) -> None:
        """Learn of an engine."""
        slot = self.slots.get(engine.id)
        if slot is None:
            slot = next((number for number, other in enumerate(self.engines) if other is None), len(self.engines))
            if slot == len(self.engines):
                self.engines.append(None)
            self.slots[engine.id] = slot
        self.engines[slot] = engine
        self.live = _slots(self.slots.values())
        self.ledger.add(slot, engine)

    def engine_down(self, engine: EngineId) -> None:
        """Forget an engine and all that was sent there."""
        slot = self.slots.pop(engine, None)
        if slot is not None:
            self.engines[slot] = None
            self.live = _slots(self.slots.values())
            self.ledger.remove(slot)

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Pick an engine and count the job as sent there."""
        self._chosen += 1
        if self._chosen % _LOOK_EVERY == 0:
            self.ledger.forget_silent(now)
        slots = self._allowed(among)
        if not len(slots):
            raise NoEngineError("no engine is up" if among is None else "no engine that may be chosen is up")
        slot, terms = self.pick(job, now, slots)
        self.send(job, slot, now)
        engine = self.engines[slot]
        assert engine is not None  # noqa: S101  # a slot of a live engine
        return Decision(engine.id, terms)

    def weigh(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Costs:
        """The terms of every engine, where they are what it goes by."""
        slots = self._allowed(among) if self.weighs else _slots(())
        named = [self.engines[slot] for slot in slots]
        terms = [self.pick(job, now, slots[place : place + 1])[1] for place in range(len(slots))]
        return {engine.id: each for engine, each in zip(named, terms, strict=True) if engine is not None}

    def _allowed(self, among: Collection[EngineId] | None) -> Slots:
        if among is None:
            return self.live
        return _slots(self.slots[engine] for engine in set(among) if engine in self.slots)

    def send(self, job: Job, slot: int, now: float) -> None:
        """Count a job as sent."""
        self.ledger.sent(job, slot, now, 0.0, _NO_BLOCKS)

    def observe(self, event: Event) -> None:
        """Take an event into account; what is about an engine that is not up is nothing."""
        slot = self.slots.get(event.engine)
        if slot is None:
            return
        if isinstance(event, Admitted):
            self.ledger.heard(event.job, slot, event.now)
        elif isinstance(event, Progress):
            self.ledger.heard(event.job, slot, event.now, event.generated)
        elif isinstance(event, Finished):
            self.finish(event, slot)
        elif isinstance(event, Scraped):
            self.ledger.scraped(slot, event)
        elif isinstance(event, Evicted):
            self.evict(event, slot)

    def finish(self, event: Finished, slot: int) -> None:
        """A job is over."""
        self.ledger.finished(event.job, slot, event.now)

    def evict(self, event: Evicted, slot: int) -> None:  # noqa: B027
        """Blocks are gone: nothing to a router that does not look at prefixes."""

    def column(self, load: Load, slots: Slots) -> NDArray[np.float64]:
        """One number of each of these engines."""
        return np.asarray(self.ledger.loads[slots, load])


def _slots(slots: Iterable[int]) -> Slots:
    return np.array(sorted(slots), np.int64)
