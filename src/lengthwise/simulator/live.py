"""Simulated engines behind HTTP in real time: load tests and first looks without a GPU.

Each is the simulator's readable engine (`simulator.engine`: steps, KV blocks, prefix cache, preemption, step times of a
cost model), paced by the clock and served as vLLM serves: /v1/chat/completions, /v1/completions, /v1/models, /health,
/version and /metrics under vLLM's names. One process serves a whole fleet, one port for each engine.

    4*llama-3-8b@a100                                   a fleet as `lengthwise simulate` writes it
    1*llama-3-8b@a100?speed=10&max_num_seqs=32          with options, see `SimulatedOptions`

The length of an answer is, in this order: `vllm_xargs.simulated_tokens`; `max_tokens` with `ignore_eos`; a number drawn
from a log-normal by the prompt, the same for the same prompt. Its words are made up, the same for the same prompt.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any, Final, Self
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field

from lengthwise.errors import InputError
from lengthwise.policies import Job, Policy, make_policy
from lengthwise.policies.admission import predicted_lengths
from lengthwise.prefixes import BLOCK_TOKENS
from lengthwise.settings import validated
from lengthwise.simulator.engine import Engine, Request
from lengthwise.simulator.fleet import EngineSpec, Fleet
from lengthwise.simulator.predictions import predict_workload
from lengthwise.simulator.traffic import Traffic
from lengthwise.workloads.workload import SCHEMA, Workload

SCHEME: Final = "simulated:"
_MAX_CATCH_UP_S: Final = 0.25  # of steps in one go, so that a machine that is too slow still answers


class SimulatedOptions(BaseModel):
    """Options of simulated engines, written as `?name=value&name=value` behind the fleet."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    speed: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Seconds of the engine per second."""
    policy: str = "fcfs"
    """Order of waiting requests in the engine, after their `priority`."""
    model: str | None = None
    """Name under which the LLM is served; that of the fleet by default."""
    chunk_s: Annotated[float, Field(ge=0)] = 0.1
    """Seconds between two chunks of a stream, after the first; tokens of one chunk arrive together."""
    median_tokens: Annotated[float, Field(ge=1)] = 200.0
    """Median of the lengths that are drawn."""
    sigma: Annotated[float, Field(ge=0, le=5)] = 1.0
    """Standard deviation of their logarithm."""
    seed: int = 0
    """Of the lengths."""
    max_num_seqs: Annotated[int | None, Field(ge=1)] = None
    """Slots of each engine, instead of the fleet's."""
    kv_tokens: Annotated[int | None, Field(ge=16)] = None
    """KV memory of each engine, instead of the fleet's."""


@dataclass(frozen=True)
class SimulatedFleet:
    """Engines to simulate, and how."""

    engines: tuple[EngineSpec, ...]
    options: SimulatedOptions

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse FLEET or FLEET?name=value&name=value, with or without `simulated:` in front."""
        fleet, _, query = text.removeprefix(SCHEME).partition("?")
        try:
            given = dict(parse_qsl(query, strict_parsing=bool(query)))
        except ValueError as error:
            raise InputError(f"'{query}'", source=text, hint="write options as name=value&name=value") from error
        options = validated(SimulatedOptions, given, source=text)
        make_policy(options.policy)
        limits = {name: getattr(options, name) for name in ("max_num_seqs", "kv_tokens")}
        return cls(Fleet.parse(fleet).limited_to(**limits).engines, options)

    def __str__(self) -> str:
        return str(Fleet(self.engines))


@dataclass(eq=False, slots=True)
class Generation:
    """An answer in progress: the tokens that are visible, and an event that is set when there are more."""

    request: Request
    stop: bool
    """Whether it ends by itself, not by `max_tokens`."""
    streams: bool
    news: asyncio.Event = field(default_factory=asyncio.Event)
    visible: int = 0
    ended: bool = False
    aborted: bool = False
    next_chunk_s: float = 0.0


class ClientEngine(Engine):
    """The simulator's engine for requests that are not known in advance: `traffic` is empty."""

    def __init__(self, spec: EngineSpec, policy: Policy) -> None:
        workload = Workload(SCHEMA.empty_table(), "clients", BLOCK_TOKENS if spec.prefix_caching else None)
        super().__init__(spec, policy, Traffic.of(workload, predict_workload(workload, "none")))
        self.finished: list[Request] = []
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """Requests that wait, those that have just arrived included."""
        return len(self._waiting) + len(self._arriving)

    @property
    def busy(self) -> bool:
        """Whether a request is in the engine."""
        return bool(self.running or self._waiting or self._arriving)

    def add(self, job: Job, tokens: int) -> Request:
        """Send a request that will have `tokens` tokens; its job gets an id."""
        row = next(self._numbers)
        job.id = str(row)
        request = Request(job, row, job.arrival, tokens)
        if self.spec.admission in ("peak", "reserve"):
            lengths = predicted_lengths(job.mu, job.sigma, job.cap, self.spec.chosen_quantile)
            request.predicted_lengths = lengths[0].tolist()
        self.enqueue(request)
        return request

    def catch_up(self, until: float) -> None:
        """Run the steps that begin before a time, but not too many at once."""
        if not self.running and not self._waiting and self._arriving:
            self.now = max(self.now, self._arriving[0].arrival)
        self.advance(min(until, self.now + _MAX_CATCH_UP_S))
        self._events.clear()
        self._rows.clear()

    def _write(self, request: Request) -> None:
        """Do nothing: requests keep their own moments and counts."""

    def _generate(self, request: Request) -> None:
        super()._generate(request)
        if request.job.generated == request.output_tokens:
            self.finished.append(request)


class LiveEngine:
    """One simulated engine: requests come in, steps run at their time, tokens become visible at the end of a step."""

    def __init__(self, spec: EngineSpec, options: SimulatedOptions, number: int = 0) -> None:
        self.spec, self.options, self.number = spec, options, number
        self.model = options.model or spec.name.partition("@")[0]
        self.context = min(spec.max_model_len, spec.kv_blocks * spec.block_size)
        """The most tokens of prompt and answer together."""
        self._engine = ClientEngine(spec, make_policy(options.policy))
        self._policy = self._engine.policy
        self._generations: dict[int, Generation] = {}
        self._arrived = asyncio.Event()
        self._began = time.monotonic()
        self.late_s = 0.0
        """The most that the machine was behind the clock of the engine, in the engine's seconds."""
        self.totals = dict.fromkeys(
            ("stop", "length", "abort", "preemptions", "prompt", "generated", "queries", "hits"), 0
        )

    def clock(self) -> float:
        """The engine's time."""
        return (time.monotonic() - self._began) * self.options.speed

    def start(self, job: Job, tokens: int, *, stop: bool, streams: bool) -> Generation:
        """Send a request to the engine."""
        now = self.clock()
        job.deadline += now - job.arrival
        job.arrival = now
        request = self._engine.add(job, tokens)
        made = self._generations[request.row] = Generation(request, stop, streams)
        self._arrived.set()
        return made

    def abort(self, generation: Generation) -> None:
        """End a request whose client has left; nothing if it has finished."""
        if generation.request.row in self._generations:
            self._engine.abort(generation.request)
            self._settle(generation, "abort")
            generation.aborted = True
            generation.news.set()

    async def run(self) -> None:
        """Run steps as time passes."""
        engine, speed = self._engine, self.options.speed
        while True:
            if not engine.busy:
                self._arrived.clear()
                await self._arrived.wait()
            engine.catch_up(self.clock())
            early = engine.now - self.clock()
            self.late_s = max(self.late_s, -early)
            await asyncio.sleep(max(0.0, early / speed))
            self._publish()

    def _publish(self) -> None:
        for request in self._engine.finished:
            if (generation := self._generations.get(request.row)) is not None:
                generation.visible, generation.ended = request.job.generated, True
                generation.news.set()
                self._settle(generation, "stop" if generation.stop else "length")
        self._engine.finished.clear()
        now = time.monotonic()
        for request in self._engine.running:
            generation = self._generations[request.row]
            tokens = request.job.generated
            if generation.streams and tokens > generation.visible and now >= generation.next_chunk_s:
                generation.visible, generation.next_chunk_s = tokens, now + self.options.chunk_s
                generation.news.set()

    def _settle(self, generation: Generation, reason: str) -> None:
        request = generation.request
        del self._generations[request.row]
        self.totals[reason] += 1
        self.totals["preemptions"] += request.job.preemptions
        self.totals["generated"] += request.job.generated
        if not math.isnan(request.started):
            self.totals["prompt"] += request.job.prompt_tokens
            self.totals["queries"] += request.job.prompt_tokens
            self.totals["hits"] += request.initial_cached

    def metrics(self) -> str:
        """Return the load and counts under vLLM's names."""
        engine, totals = self._engine, self.totals
        labels = f'engine="0",model_name="{self.model}"'
        blocks = self.spec.kv_blocks + 1  # vLLM counts its null block
        memory = f'block_size="{self.spec.block_size}",engine="0",num_gpu_blocks="{blocks}"'
        memory += f',enable_prefix_caching="{self.spec.prefix_caching}"'
        lines = [
            f"vllm:num_requests_running{{{labels}}} {len(engine.running)}",
            f"vllm:num_requests_waiting{{{labels}}} {engine.waiting}",
            f"vllm:kv_cache_usage_perc{{{labels}}} {engine.pool.used / engine.pool.size:.6f}",
            f"vllm:num_preemptions_total{{{labels}}} {totals['preemptions']}",
            f"vllm:prefix_cache_queries_total{{{labels}}} {totals['queries']}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {totals['hits']}",
            f"vllm:prompt_tokens_total{{{labels}}} {totals['prompt']}",
            f"vllm:generation_tokens_total{{{labels}}} {totals['generated']}",
            f"vllm:cache_config_info{{{memory}}} 1.0",
            f"simulated_late_seconds {self.late_s:.6f}",
        ]
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {totals[reason]}'
            for reason in ("stop", "length", "abort")
        ]
        return "\n".join(lines) + "\n"

    def describe(self) -> dict[str, Any] | None:
        """What a server with our scheduler answers to a request that asks for it; None under fcfs."""
        return None if self.options.policy == "fcfs" else {"policy": self._policy.name, "simulated": True}
