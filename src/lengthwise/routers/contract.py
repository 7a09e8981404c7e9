"""The Router protocol, the events a router receives and what it knows about an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lengthwise.policies import Job

EngineId = int | str
"""The host's name for an engine: a number in the simulator and the gateway."""

Costs = Mapping[EngineId, Mapping[str, float]]
"""The named terms of each engine's cost, in the router's unit."""


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


@dataclass(frozen=True, slots=True)
class Admitted:
    """The engine starts to compute the job."""

    job: str
    engine: EngineId
    now: float


@dataclass(frozen=True, slots=True)
class Progress:
    """The job has `generated` output tokens. Hosts coalesce progress; it is not sent for each token."""

    job: str
    engine: EngineId
    now: float
    generated: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The job ended on this engine, for any reason. `ttft_s`: seconds from the dispatch to the first token."""

    job: str
    engine: EngineId
    now: float
    generated: int = 0
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evicted:
    """The engine evicted these blocks from its prefix cache (a KV event)."""

    engine: EngineId
    now: float
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Scraped:
    """The engine's metrics. `kv_use`: share of KV memory in use, if the engine reports it."""

    engine: EngineId
    now: float
    running: int
    waiting: int
    kv_use: float | None = None


Event = Admitted | Progress | Finished | Evicted | Scraped


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


@runtime_checkable
class StaticRouter(Router, Protocol):
    """A router whose choices depend neither on jobs nor on events. Optional.

    The simulator then assigns all requests first and simulates one engine after the other, which is faster.
    """

    def assign(self, jobs: int) -> Sequence[EngineId]:
        """Return what the next `jobs` calls of `choose` would return, as if they had been made."""
