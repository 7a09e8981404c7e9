"""The base class of routers, and the two routers that need no signal: `random` and `round_robin`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import Job
from lengthwise.routers.contract import Decision, EngineId, EngineInfo, Event, NoEngineError

Slots = NDArray[np.int64]
Choice = tuple[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number that a router's spec may set, and its range."""

    default: float
    minimum: float = 0.0
    maximum: float = 1e9


class BaseRouter(ABC):
    """A router made from one method, `pick`.

    Engines are numbered by slots; the slot of an engine that went down is used again for the next one that comes up.
    `kind` is the router's name without parameters. Built-ins set it. A class outside this package leaves it out, and
    its kind is its dotted path, which `make_router` reads.
    """

    kind: ClassVar[str]
    uses_predictions: ClassVar[bool] = False
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"

    def __init__(self, **given: float) -> None:
        self.values = {name: given.get(name, known.default) for name, known in self.parameters.items()}
        for name, value in self.values.items():
            known = self.parameters[name]
            if not known.minimum <= value <= known.maximum:
                raise InputError(
                    f"{name} of router {self.kind} is {value:g}",
                    hint=f"give a number from {known.minimum:g} to {known.maximum:g}",
                )
        self.slots: dict[EngineId, int] = {}
        self.engines: list[EngineInfo | None] = []
        self.live = _sorted_slots(())

    @property
    def name(self) -> str:
        """The kind with every parameter that is not the default."""
        changed = [f"{name}={value:.12g}" for name, value in self.values.items() if value != self._default(name)]
        return f"{self.kind}:{','.join(changed)}" if changed else self.kind

    def _default(self, name: str) -> float:
        return self.parameters[name].default

    @abstractmethod
    def pick(self, job: Job, now: float, slots: Slots) -> Choice:
        """Return one of `slots` (ascending, never empty) and the terms of its cost."""

    def engine_up(self, engine: EngineInfo) -> None:
        """Add an engine or update its description."""
        slot = self.slots.get(engine.id)
        if slot is None:
            slot = next((number for number, other in enumerate(self.engines) if other is None), len(self.engines))
            if slot == len(self.engines):
                self.engines.append(None)
            self.slots[engine.id] = slot
        self.engines[slot] = engine
        self.live = _sorted_slots(self.slots.values())

    def engine_down(self, engine: EngineId) -> None:
        """Remove an engine."""
        slot = self.slots.pop(engine, None)
        if slot is not None:
            self.engines[slot] = None
            self.live = _sorted_slots(self.slots.values())

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Pick an engine and count the job as sent there."""
        slots = self.allowed(among)
        if not len(slots):
            raise NoEngineError("no engine is up" if among is None else "no engine that may be chosen is up")
        slot, terms = self.pick(job, now, slots)
        self.send(job, slot, now)
        return Decision(self.engine_id(slot), terms)

    def send(self, job: Job, slot: int, now: float) -> None:  # noqa: B027
        """Record that a job is sent to an engine; nothing by default."""

    def observe(self, event: Event) -> None:  # noqa: B027
        """Update the state by an event; nothing by default."""

    def allowed(self, among: Collection[EngineId] | None) -> Slots:
        """Return the slots of live engines, of those in `among` if given, in ascending order."""
        if among is None:
            return self.live
        return _sorted_slots(self.slots[engine] for engine in set(among) if engine in self.slots)

    def engine_id(self, slot: int) -> EngineId:
        """Return the id of the live engine in a slot."""
        engine = self.engines[slot]
        assert engine is not None  # noqa: S101  # the caller has a live slot
        return engine.id


def _sorted_slots(slots: Iterable[int]) -> Slots:
    return np.array(sorted(slots), np.int64)


class Random(BaseRouter):
    """A uniformly random engine.

    engine ~ uniform(live), from a generator with `seed` (0)
    Needs no signal.
    """

    kind = "random"
    parameters: ClassVar = {"seed": Parameter(0, 0, 2**32 - 1)}

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._rng = np.random.default_rng(int(self.values["seed"]))

    def pick(self, job: Job, now: float, slots: Slots) -> Choice:
        """Draw a slot."""
        return int(slots[self._rng.integers(len(slots))]), {}


class RoundRobin(BaseRouter):
    """Engines in turn, whatever their load.

    engine = the next live one after the last chosen, in the order in which they came up
    Needs no signal.
    """

    kind = "round_robin"

    def __init__(self, **given: float) -> None:
        super().__init__(**given)
        self._last = -1

    def pick(self, job: Job, now: float, slots: Slots) -> Choice:
        """Return the next slot in turn."""
        self._last = int(slots[np.searchsorted(slots, self._last, side="right") % len(slots)])
        return self._last, {}

    def assign(self, jobs: int) -> list[EngineId]:
        """Return the engines of the next `jobs` choices among all live engines."""
        if not len(self.live):
            raise NoEngineError("no engine is up")
        first = int(np.searchsorted(self.live, self._last, side="right"))
        turns = self.live[(first + np.arange(jobs)) % len(self.live)].tolist()
        self._last = turns[-1] if turns else self._last
        ids = {slot: self.engine_id(slot) for slot in self.live.tolist()}
        return [ids[slot] for slot in turns]
