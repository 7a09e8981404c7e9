"""What a router is asked, what it is told, and what it knows of an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from lengthwise.policies import Job

EngineId = int | str
"""Whatever the host calls an engine."""


Costs = Mapping[EngineId, Mapping[str, float]]
"""The named terms of each engine's cost, in the router's unit."""


class NoEngineError(RuntimeError):
    """There is no live engine to choose."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast an engine is, in seconds; by default about what an 8B LLM does on an A100.

    A prompt of n tokens, c of them cached, takes `prefill_token_s` * (n - c) + `prefill_pair_s` * (n^2 - c^2). A decode
    step, which gives every running sequence a token, takes `step_s` + `sequence_s` * sequences + `kv_token_s` * tokens
    of their contexts.
    """

    prefill_token_s: float = 5e-5
    step_s: float = 0.011
    sequence_s: float = 2.7e-5
    kv_token_s: float = 8e-8
    prefill_pair_s: float = 2e-9

    def prefill_s(self, tokens: float, cached: float = 0.0) -> float:
        """Seconds to compute a prompt of which so much is cached."""
        return (tokens - cached) * (self.prefill_token_s + self.prefill_pair_s * (tokens + cached))


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is known of an engine before it serves anybody.

    `block_tokens`: how many tokens one hash of `Job.blocks` stands for. `caches`: whether prefixes are kept for who
    begins alike.
    """

    id: EngineId
    speed: Speed = field(default_factory=Speed)
    kv_tokens: int = 400_000
    block_tokens: int = 64
    max_num_seqs: int = 256
    caches: bool = True


class Decision(NamedTuple):
    """The engine, and the named terms of its cost, so that the choice can be explained; units are the router's."""

    engine: EngineId
    terms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The engine has begun to compute the job."""

    job: str
    engine: EngineId
    now: float


@dataclass(frozen=True, slots=True)
class Progress:
    """The job has so many tokens of answer by now. Told now and then, never for each token."""

    job: str
    engine: EngineId
    now: float
    generated: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is over on this engine, however it ended. `ttft_s`: from being sent there to the first token."""

    job: str
    engine: EngineId
    now: float
    generated: int = 0
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evicted:
    """The engine no longer holds these blocks (a KV event)."""

    engine: EngineId
    now: float
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Scraped:
    """What the engine says of itself. `kv_use`: share of its KV memory that is held, if it tells."""

    engine: EngineId
    now: float
    running: int
    waiting: int
    kv_use: float | None = None


Event = Admitted | Progress | Finished | Evicted | Scraped


@runtime_checkable
class Router(Protocol):
    """Chooses an engine for each job. Knows no clock: time comes in as an argument, in seconds.

    A job that was chosen for counts as sent there until `Finished`; choosing for it anew (a retry) takes it from where
    it was. Events may come late, twice, in any order or never: what is about a job that is not there is nothing.
    """

    @property
    def name(self) -> str:
        """Return what `make_router` makes it from: with every parameter that is not the default."""

    @property
    def uses_predictions(self) -> bool:
        """Return whether it looks at predictions at all; for one that does not, a host need not predict."""

    def engine_up(self, engine: EngineInfo) -> None:
        """Learn of an engine; one that is there already is described anew and keeps what it has."""

    def engine_down(self, engine: EngineId) -> None:
        """Forget an engine, all that was sent there and all that it held; one that is not there is nothing."""

    def choose(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Decision:
        """Return a live engine for this job, one of `among` where that is given; NoEngineError where there is none."""

    def weigh(self, job: Job, now: float, among: Collection[EngineId] | None = None) -> Costs:
        """Return the terms of the cost of every engine that `choose` could return now, and change nothing.

        Empty from a router that does not go by a cost of each engine.
        """

    def observe(self, event: Event) -> None:
        """Learn what has happened."""
