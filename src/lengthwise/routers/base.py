"""The Router protocol, its events, the base class of routers, and `make_router`, which makes one from a spec.

least_outstanding    power_of_two:seed=1    dynamo:prefill=2,active=1    my_package.module:MyRouter

`random` and `round_robin`, which need no signal, are here too: they do without Numba.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import ClassVar, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.policies import Job, parameter
from lengthwise.policies.base import Named, construct, parameter_suffix
from lengthwise.specs import find, parse_spec

EngineId = int | str
"""The host's name for an engine: a number in the simulator and the gateway."""

Costs = Mapping[EngineId, Mapping[str, float]]
"""The named terms of each engine's cost, in the router's unit."""

EngineNumbers = NDArray[np.int64]
Choice = tuple[int, Mapping[str, float]]


class NoEngineError(RuntimeError):
    """No live engine can be chosen."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of an engine, in seconds; the defaults are those of an 8B LLM on an A100.

    A prompt of n tokens, c of them cached, takes `prefill_token_s` * (n - c) + `prefill_pair_s` * (n^2 - c^2). A decode
    step, which generates a token for every running sequence, takes `step_s` + `sequence_s` * sequences + `kv_token_s` *
    tokens of their contexts.
    """

    prefill_token_s: float = 5e-5
    step_s: float = 0.011
    sequence_s: float = 2.7e-5
    kv_token_s: float = 8e-8
    prefill_pair_s: float = 2e-9

    def prefill_s(self, tokens: float, cached: float = 0.0) -> float:
        """Return the seconds of prefill for a prompt with `cached` tokens in the prefix cache."""
        return (tokens - cached) * (self.prefill_token_s + self.prefill_pair_s * (tokens + cached))


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is known about an engine when it comes up.

    `block_tokens`: prompt tokens per hash of `Job.blocks`. `caches`: whether the engine has prefix caching.
    """

    id: EngineId
    speed: Speed = field(default_factory=Speed)
    kv_tokens: int = 400_000
    block_tokens: int = 64
    max_num_seqs: int = 256
    caches: bool = True


class Decision(NamedTuple):
    """The chosen engine and the named terms of its cost, in the router's unit; empty if the router has no cost."""

    engine: EngineId
    terms: Mapping[str, float] = {}  # never written to


class Admitted(NamedTuple):
    """The engine starts to compute the job."""

    job: str
    engine: EngineId
    now: float


class Finished(NamedTuple):
    """The job ended on this engine, for any reason. `ttft_s`: seconds from the dispatch to the first token."""

    job: str
    engine: EngineId
    now: float
    generated: int = 0
    ttft_s: float | None = None


class Scraped(NamedTuple):
    """The engine's metrics. `kv_use`: share of KV memory in use, if the engine reports it."""

    engine: EngineId
    now: float
    running: int
    waiting: int
    kv_use: float | None = None


Event = Admitted | Finished | Scraped


@runtime_checkable
class Router(Protocol):
    """Chooses an engine for each job: in the simulator, the gateway and Ray alike.

    A router has no clock: time is an argument, in seconds. A job counts as sent to the chosen engine until `Finished`;
    a second choice for the same job (a retry) replaces the first. Events may be late, duplicated, out of order or
    missing: those about unknown jobs or engines are ignored.
    """

    @property
    def name(self) -> str:
        """Return the spec that `make_router` makes it from, with every parameter that differs from its default."""

    @property
    def uses_predictions(self) -> bool:
        """Return whether choices depend on predicted lengths; if not, a host need not predict."""

    def engine_up(self, engine: EngineInfo) -> None:
        """Add an engine. For a known engine, update its description and keep its state."""

    def engine_down(self, engine: EngineId) -> None:
        """Remove an engine with its jobs and cached prefixes. An unknown engine is ignored."""

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Return a live engine for this job, one of `among` if given; raise NoEngineError if there is none."""

    def observe(self, event: Event) -> None:
        """Update the state by an event."""


@runtime_checkable
class ExplainingRouter(Router, Protocol):
    """A router that can list the costs it compares. Optional; `simulate --explain` uses it."""

    def weigh(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Costs:
        """Return the terms of the cost of every engine that `choose` could return now, without side effects.

        Empty if the choice is not the minimum of one cost per engine.
        """


@dataclass(eq=False)
class BaseRouter(Named, ABC):
    """A router made from one method, `pick`. Parameters are dataclass fields made with `policies.parameter`.

    Engines are numbered from 0; the number of an engine that went down is used again for the next one that comes up.
    """

    what = "router"
    uses_predictions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.numbers: dict[EngineId, int] = {}
        self.engines: list[EngineInfo | None] = []
        self.live = _sorted_numbers(())

    @property
    def name(self) -> str:
        """The kind with every parameter that is not the default."""
        return self.kind + parameter_suffix(self)

    @abstractmethod
    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return one of the engines' `numbers` (ascending, never empty) and the terms of its cost."""

    def interpret(self) -> None:
        """Run in Python what is compiled otherwise, for the same choices; call it before the first engine is up."""

    def engine_up(self, engine: EngineInfo) -> None:
        """Add an engine or update its description."""
        number = self.numbers.get(engine.id)
        if number is None:
            number = next((number for number, other in enumerate(self.engines) if other is None), len(self.engines))
            if number == len(self.engines):
                self.engines.append(None)
            self.numbers[engine.id] = number
        self.engines[number] = engine
        self.live = _sorted_numbers(self.numbers.values())

    def engine_down(self, engine: EngineId) -> None:
        """Remove an engine."""
        number = self.numbers.pop(engine, None)
        if number is not None:
            self.engines[number] = None
            self.live = _sorted_numbers(self.numbers.values())

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Pick an engine and count the job as sent there."""
        numbers = self.allowed(among)
        if not len(numbers):
            raise NoEngineError("no engine is up" if among is None else "no engine that may be chosen is up")
        number, terms = self.pick(job, now, numbers)
        self.send(job, number, now)
        return Decision(self.engine_id(number), terms)

    def send(self, job: Job, number: int, now: float) -> None:
        """Record that a job is sent to an engine; nothing by default."""

    def observe(self, event: Event) -> None:
        """Update the state by an event; nothing by default."""

    def allowed(self, among: Collection[EngineId] | None) -> EngineNumbers:
        """Return the numbers of live engines, of those in `among` if given, in ascending order."""
        if among is None or self.numbers.keys() == set(among):
            return self.live
        return _sorted_numbers(self.numbers[engine] for engine in set(among) if engine in self.numbers)

    def engine_id(self, number: int) -> EngineId:
        """Return the id of the live engine of a number."""
        engine = self.engines[number]
        assert engine is not None  # noqa: S101  # the caller has the number of a live engine
        return engine.id


def _sorted_numbers(numbers: Iterable[int]) -> EngineNumbers:
    return np.array(sorted(numbers), np.int64)


@dataclass(eq=False)
class Random(BaseRouter):
    """A uniformly random engine.

    engine ~ uniform(live), from a generator with `seed` (0)
    Needs no signal.
    """

    kind = "random"

    seed: float = parameter(0, minimum=0, maximum=2**32 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rng = np.random.default_rng(int(self.seed))

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Draw an engine."""
        return int(numbers[self._rng.integers(len(numbers))]), {}


class RoundRobin(BaseRouter):
    """Engines in turn, whatever their load.

    engine = the next live one after the last chosen, in the order in which they came up
    Needs no signal.
    """

    kind = "round_robin"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last = -1

    def pick(self, job: Job, now: float, numbers: EngineNumbers) -> Choice:
        """Return the next engine in turn."""
        self._last = int(numbers[np.searchsorted(numbers, self._last, side="right") % len(numbers)])
        return self._last, {}

    def assign(self, jobs: int) -> list[EngineId]:
        """Return what the next `jobs` choices among all live engines would be, as if they had been made.

        Choices depend neither on jobs nor on events, so the simulator makes them all first: that is faster.
        """
        if not len(self.live):
            raise NoEngineError("no engine is up")
        first = int(np.searchsorted(self.live, self._last, side="right"))
        turns = self.live[(first + np.arange(jobs)) % len(self.live)].tolist()
        self._last = turns[-1] if turns else self._last
        ids = {number: self.engine_id(number) for number in self.live.tolist()}
        return [ids[number] for number in turns]


ROUTERS: Final[Mapping[str, tuple[str, str]]] = {
    "random": ("base", "Random"),
    "round_robin": ("base", "RoundRobin"),
    "least_outstanding": ("load_aware", "LeastOutstanding"),
    "power_of_two": ("load_aware", "PowerOfTwo"),
    "least_load": ("load_aware", "LeastLoad"),
    "cache_aware": ("load_aware", "CacheAware"),
    "dynamo": ("load_aware", "Dynamo"),
    "e2": ("e2", "E2"),
    "e2_length": ("e2", "E2Length"),
    "lengthwise": ("lengthwise", "LengthwiseRouter"),
}
"""Built-in names, with module and class. Imported when used, because all but the first two need Numba."""


def make_router(spec: str) -> Router:
    """Return a fresh router."""
    parsed = parse_spec(spec, "router")
    if parsed.inner is not None:
        raise InputError(f"router {parsed.base} wraps no other router", hint="write NAME or NAME:PARAMETER=NUMBER")
    found = find(parsed, "router", ROUTERS)
    if isinstance(found, tuple):
        module, name = found
        found = getattr(import_module(f"lengthwise.routers.{module}"), name)
    router = construct(found, parsed, "router")
    if not isinstance(router, Router):
        missing = [name for name in vars(Router) if name[0] != "_" and not hasattr(router, name)]
        raise InputError(f"{parsed.base} is not a router", hint=f"it lacks {', '.join(missing)}")
    return router
