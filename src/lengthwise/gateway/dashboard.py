"""The dashboard at /: static files, a stream of snapshots for its viewers, and "what if" in a process of its own.

A snapshot is made once a second while a page is open, and its bytes are shared by all viewers. It holds numbers and
names of policies, tenants and engines: no prompt, no address, no key.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from heapq import nsmallest
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lengthwise.defaults import DEFAULT_POLICY, DEFAULT_ROUTER
from lengthwise.errors import InputError
from lengthwise.gateway.bodies import read_model
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.dispatch import Dispatcher
from lengthwise.gateway.engine_state import GatewayEngine
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.recent_requests import SOURCES, RecentRequests, Rows, latency_series
from lengthwise.gateway.types import PAGE_PATHS, PREFIX, Call
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.policies import Job, make_policy
from lengthwise.policies.registry import POLICIES
from lengthwise.predictors.service import LearningProgress, PredictionService

MAX_VIEWERS: Final = 32
_EVERY_S: Final = 1.0
_MAX_SNAPSHOTS: Final = 600  # then a viewer connects again, so that its access is checked again
_MAX_ROWS: Final = 24  # of each state, which is what fits on a screen; of one second for those that ended
_HISTORY: Final = 800
_BUCKET_S: Final = 15.0
_QUANTILES: Final = (0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95)
_MIN_REPLAYED: Final = 50
_BASELINE: Final = "fcfs"
_MIN_BESIDE: Final = 200
_MAX_BESIDE: Final = 5_000
_REPLAY_SHARE: Final = 0.02  # of a core, for the replay that is kept up to date
_MIN_PAUSE_S: Final = 60.0
_MAX_ANSWER_S: Final = 120.0
_MAX_QUESTION_BYTES: Final = 4096
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def _known_policy(name: str) -> str:
    return make_policy(name, imports=False).name


class WhatIf(BaseModel):
    """What to simulate beside what runs now."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    policies: Annotated[tuple[Annotated[str, AfterValidator(_known_policy)], ...], Field(min_length=1, max_length=6)]
    """Policies to try."""
    engines: Annotated[tuple[Annotated[int, Field(ge=1, le=64)], ...], Field(min_length=1, max_length=6)]
    """Numbers of engines to try."""
    engine: Annotated[str, Field(pattern=r"^[\w.-]+@[\w.-]+$", max_length=80)] = "llama-3-8b@a100"
    """MODEL@GPU: the shape of the step times; their scale is fitted to the measured times."""


@dataclass(frozen=True)
class LiveFleet:
    """What runs now, for a simulation of it."""

    policy: str
    engines: int
    slots: int
    """Of one engine."""
    kv_tokens: int | None
    router: str


class Dashboard:
    """The page, its events and its simulations."""

    def __init__(
        self,
        config: GatewayConfig,
        dispatcher: Dispatcher,
        predictions: PredictionService,
        calls: Mapping[str, Call],
        recent: RecentRequests,
    ) -> None:
        self._config = config
        self._dispatcher = dispatcher
        self._predictions = predictions
        self._calls = calls
        self._recent = recent
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._simulating = asyncio.Lock()
        self._beside: dict[str, Any] | None = None
        self._replayed_s = -math.inf  # when the last replay ended, by the dispatcher's clock
        self._pause_s = 0.0
        self._replaying: asyncio.Task[None] | None = None
        self._cpu_s = 0.0
        folder = Path(__file__).parent / "static"
        self._files = {path: (folder / name).read_bytes() for path, name in PAGE_PATHS.items()}

    def use(self, config: GatewayConfig) -> None:
        """Use these settings from now on."""
        self._config = config

    def routes(self) -> list[Route]:
        """Return the routes; those under `PREFIX` are for administrators."""
        return [
            *(Route(path, self.page) for path in PAGE_PATHS),
            Route(f"{PREFIX}/events", self.events),
            Route(f"{PREFIX}/what-if", self.what_if, methods=["POST"]),
        ]

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the dashboard."""
        yield GaugeMetricFamily("lengthwise_dashboard_viewers", "Viewers of the dashboard.", len(self._viewers))
        text = "CPU time of the dashboard's snapshots."
        yield CounterMetricFamily("lengthwise_dashboard_cpu_seconds", text, self._cpu_s)

    async def page(self, request: Request) -> Response:
        """Return a static file."""
        path = request.url.path
        return Response(self._files[path], media_type=_TYPES[PAGE_PATHS[path].rpartition(".")[2]], headers=PAGE_HEADERS)

    async def events(self, request: Request) -> Response:
        """Return the stream of snapshots, the history first; 503 if too many watch."""
        if len(self._viewers) >= MAX_VIEWERS:
            message = f"{MAX_VIEWERS} viewers watch, the most allowed"
            raise ApiError(503, message, code="too_many_viewers", headers={"retry-after": "10"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._watch(request), media_type="text/event-stream", headers=headers)

    async def _watch(self, request: Request) -> AsyncIterator[bytes]:
        snapshots: asyncio.Queue[bytes | None] = asyncio.Queue(4)
        self._viewers.add(snapshots)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick(request))
        try:
            yield _event("history", await self._history())
            for _ in range(_MAX_SNAPSHOTS):
                snapshot = await snapshots.get()
                if snapshot is None:
                    return
                yield snapshot
        finally:
            self._viewers.discard(snapshots)

    async def _tick(self, request: Request) -> None:
        """Send a snapshot a second to all viewers until none is left or the gateway stops."""
        try:
            recent = self._recent
            seen, bucket = recent.added, self._dispatcher.clock() // _BUCKET_S
            pending = recent.last(seen)
            pending = pending[pending["finished_s"] >= bucket * _BUCKET_S]
            while self._viewers and not request.app.state.draining:
                await asyncio.sleep(_EVERY_S)
                if self._replaying is None or self._replaying.done():
                    self._replaying = asyncio.create_task(self._replay_beside())
                learned = await asyncio.to_thread(self._predictions.progress)
                began, now = time.thread_time(), self._dispatcher.clock()
                rows, seen = recent.last(recent.added - seen), recent.added
                snapshot = {**self._snapshot(now, rows), "learned": self._learned(learned)}
                pending = np.concatenate([pending, rows])
                if (current := now // _BUCKET_S) != bucket:
                    ended = pending["finished_s"] < current * _BUCKET_S
                    snapshot["series"] = list(latency_series(pending[ended], _BUCKET_S))
                    bucket, pending = current, pending[~ended]
                data = _event("snapshot", snapshot)
                for viewer in self._viewers:
                    if not viewer.full():  # a slow viewer misses snapshots
                        viewer.put_nowait(data)
                self._cpu_s += time.thread_time() - began
        finally:
            if self._replaying is not None:
                self._replaying.cancel()
            self._ticking = None
            for viewer in self._viewers:
                while viewer.full():
                    viewer.get_nowait()
                viewer.put_nowait(None)

    async def _replay_beside(self) -> None:
        """Keep the last hour under another policy up to date, at no more than `_REPLAY_SHARE` of a core.

        Under fcfs, or under the default policy while fcfs is in force; only while a page is open.
        """
        running = self._now()
        if self._simulating.locked() or self._dispatcher.clock() < self._replayed_s + self._pause_s:
            return
        rows = self._recent.last(min(self._recent.added, _MAX_BESIDE))
        if len(rows) < _MIN_BESIDE:
            return
        other = _BASELINE if running.policy != _BASELINE else DEFAULT_POLICY
        question = WhatIf(policies=(other,), engines=(running.engines,))
        before_s = _children_s()
        async with self._simulating:
            try:
                lines, _ = await _simulated(_encoded(question, running, rows))
            except OSError:  # no process could be started
                lines = []
        found = [json.loads(line) for line in lines]
        self._replayed_s = self._dispatcher.clock()
        self._pause_s = max(_MIN_PAUSE_S, (_children_s() - before_s) / _REPLAY_SHARE)
        complete = len(found) == 2 and "over" in found[1]  # else it took too long, or cannot be simulated
        self._beside = {"now": found[0], **found[1]} if complete else None

    def _learned(self, progress: LearningProgress) -> dict[str, Any] | None:
        """Return what learning has brought, as the page shows it; None where it is off."""
        if not self._predictions.learning:
            return None
        alone, learned = (None if math.isnan(tau) else round(tau, 3) for tau in progress[2:])
        return {"answers": progress.answers, "recent": progress.recent, "alone": alone, "learned": learned}

    def _snapshot(self, now: float, rows: Rows) -> dict[str, Any]:
        """Return the gateway now: counts, the first requests of its queue and slots, and `rows`, which have ended."""
        dispatcher, recent = self._dispatcher, self._recent
        engines = dispatcher.engines
        waiting = chain.from_iterable(queue.first(_MAX_ROWS) for _, queue in dispatcher.queues)
        running = ((job.started or now, engine, job) for engine in engines for job in engine.jobs.values())
        longest = nsmallest(_MAX_ROWS, running, key=itemgetter(0))
        return {
            "now": round(now, 1),
            "policy": recent.policy_number,
            "policies": recent.policies.names,
            "tenants": recent.tenants.names,
            "router": dispatcher.routes.name,
            "waiting": dispatcher.waiting,
            "running": sum(engine.in_flight for engine in engines),
            "failed": recent.failed,
            "engines": [_engine(engine) for engine in engines],
            "engine_names": recent.engines.names,
            "beside": self._beside,
            "viewers": len(self._viewers),
            "finished_per_s": len(rows) / _EVERY_S,
            "tokens_per_s": int(rows["output_tokens"].sum()) / _EVERY_S,
            "queue": [[*self._job(job), round(now - job.arrival, 2)] for job in islice(waiting, _MAX_ROWS)],
            "slots": [
                [*self._job(job), engine.name, self._progress(engine, job, now), round(now - started, 2)]
                for started, engine, job in longest
            ],
            "finished": [_finished(row) for row in rows[-_MAX_ROWS:].tolist()],
        }

    async def _history(self) -> dict[str, Any]:
        """Return what a viewer needs once: constants, and the last hour."""
        config, recent, now = self._config, self._recent, self._dispatcher.clock()
        rows = recent.last(recent.added).copy()  # the ring is written to while the series is made
        current = rows["finished_s"] < now // _BUCKET_S * _BUCKET_S
        series = await asyncio.to_thread(lambda: list(latency_series(rows[current], _BUCKET_S)))
        return {
            "now": round(now, 1),
            "predictor": config.predictor,
            "keys": config.keys is not None,
            "engine_names": recent.engines.names,
            "known_policies": sorted(POLICIES),
            "policies": recent.policies.names,
            "tenants": recent.tenants.names,
            "sources": SOURCES,
            "bucket_s": _BUCKET_S,
            "quantiles": {str(q): round(log_t.isf(1.0 - q, TIE_NU), 4) for q in _QUANTILES},
            "finished": [_finished(row) for row in rows[-_HISTORY:].tolist()],
            "series": series,
        }

    def _job(self, job: Job) -> list[Any]:
        call = self._calls.get(job.id)
        tenant = 0 if call is None else self._recent.tenants.number(call.tenant)
        source = 0 if call is None else SOURCES.index(call.source)
        return [int(job.id), round(job.mu, 3), round(job.sigma, 3), int(job.cap), tenant, source, job.prompt_tokens]

    def _progress(self, engine: GatewayEngine, job: Job, now: float) -> int:
        """Return the tokens of an answer so far: the events of its stream, or more by its time at the usual speed."""
        call = self._calls.get(job.id)
        if call is None or job.started is None or not engine.speed.tokens_per_s:
            return 0
        usual = (now - job.started) * engine.speed.tokens_per_s
        if call.body.stream and call.first_byte_s is None:
            usual = 0.0
        return int(min(max(usual, call.meter.counted or 0), job.cap))

    async def what_if(self, request: Request) -> Response:
        """Return what the last hour would have been under other policies and numbers of engines; one at a time."""
        question = await read_model(request, WhatIf, _MAX_QUESTION_BYTES)
        rows = self._recent.last(self._recent.added)
        if len(rows) < _MIN_REPLAYED:
            message = f"{len(rows)} requests ended in the last hour; {_MIN_REPLAYED} are needed"
            raise ApiError(409, message, code="too_few_requests")
        if self._replaying is not None and not self._replaying.done():
            self._replaying.cancel()  # a question comes first
            await asyncio.wait({self._replaying})
        if self._simulating.locked():
            raise ApiError(429, "another simulation runs; try again later", code="busy", headers={"retry-after": "10"})
        async with self._simulating:
            lines, ended = await _simulated(_encoded(question, self._now(), rows))
        found = [json.loads(line) for line in lines]
        if found and "error" in found[-1]:
            raise ApiError(400, found[-1]["error"], code="invalid_value")
        if not found:
            message = "the simulation failed" if ended else f"the simulation took more than {_MAX_ANSWER_S:.0f} s"
            raise ApiError(503, message, code="no_simulation")
        return JSONResponse({"now": found[0], "answers": found[1:], "complete": ended})

    def _now(self) -> LiveFleet:
        engines = [e for e in self._dispatcher.engines if e.up and not e.leaving] or self._dispatcher.engines
        memory = [engine.memory.kv_tokens for engine in engines if engine.memory is not None]
        policy = self._dispatcher.policy.name
        try:
            make_policy(policy, imports=False)
        except InputError:  # of another package, or with settings that a name does not hold
            policy = "fcfs"
        return LiveFleet(
            policy,
            max(1, len(engines)),
            max((engine.slots for engine in engines), default=self._config.in_flight),
            min(memory, default=None),
            self._dispatcher.routes.name or DEFAULT_ROUTER,
        )


def _children_s() -> float:
    """Return the CPU time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _engine(engine: GatewayEngine) -> dict[str, Any]:
    gauges = engine.gauges
    return {
        "name": engine.name,
        "kind": engine.identity.kind,
        "state": "down" if not engine.up else "leaving" if engine.leaving else engine.breaker.state,
        "running": engine.in_flight,
        "slots": engine.slots,
        "kv": None if gauges is None or gauges.kv_use is None else round(gauges.kv_use, 4),
        "kv_tokens": None if engine.memory is None else engine.memory.kv_tokens,
        "prefix": None if gauges is None else gauges.prefix_tokens,
    }


def _finished(row: tuple[Any, ...]) -> list[Any]:
    number, arrival, started, first, ended, prompt, tokens, cap, mu, sigma, policy, tenant, source, cut, engine = row[
        :15
    ]
    first = ended if math.isnan(first) else first
    times = [round(value - arrival, 3) for value in (started, first, ended)]
    law = [round(mu, 3), round(sigma, 3), int(cap)]
    return [
        int(number),
        *law,
        tenant,
        source,
        int(prompt),
        int(tokens),
        int(cut),
        *times,
        policy,
        round(ended, 1),
        engine,
    ]


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def _encoded(question: WhatIf, running: LiveFleet, rows: Rows) -> bytes:
    stream = io.BytesIO()
    stream.write(json.dumps({"question": question.model_dump(), "running": asdict(running)}).encode() + b"\n")
    np.save(stream, rows, allow_pickle=False)
    return stream.getvalue()


async def _simulated(question: bytes) -> tuple[list[bytes], bool]:
    """Return the lines that the process answers, and whether it ended in time."""
    command = (sys.executable, "-m", "lengthwise.gateway.what_if")
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=null)
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
    lines: list[bytes] = []
    try:
        async with asyncio.timeout(_MAX_ANSWER_S):
            with suppress(ConnectionError):
                process.stdin.write(question)
                await process.stdin.drain()
                process.stdin.close()
            async for line in process.stdout:
                lines.append(line)  # noqa: PERF401  (those before a timeout count)
            await process.wait()
    except TimeoutError:
        return lines, False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return lines, True
