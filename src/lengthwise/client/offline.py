"""Requests whose answers are wanted together: in which order, on which engine, and how they are sent.

`Backlog` decides; it knows neither clock nor HTTP, and the simulator drives it too (`experiments.backlog`). `Sender`
sends what it decides, with retries. `collect`, `batch` and `rollouts` are made of the two.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from lengthwise.client.client import EngineClient, EngineError, EngineUnreachableError
from lengthwise.policies import Job, Policy, PolicyQueue

DEFAULT_AT_ONCE: Final = 64
"""Requests in flight on each engine, as in the gateway (`in_flight`)."""
RETRIED_STATUSES: Final = frozenset({408, 500, 502, 504})
REFUSED_STATUSES: Final = frozenset({429, 503})
"""The engine has not taken the request: it is sent again, and no retry is counted."""
_GIVE_UP_AFTER: Final = 50  # failed requests in a row: nothing is wrong with the requests
_MAX_DOUBLINGS: Final = 4  # of the wait after an engine's failure
_MAX_PAUSE_S: Final = 60.0
_MAX_SAMPLED: Final = 256  # requests in flight, of which the time left is estimated


@dataclass(slots=True)
class _Sent:
    job: Job
    engine: int
    tokens: float
    at_s: float


class Backlog:
    """Requests that wait for a slot of some engines, in a policy's order, balanced by predicted work.

    next: the first waiting request; its engine = argmin over engines with a free slot of E[tokens] in flight there
    Ties: the first engine. Each engine has `slots`. Where there are no more requests than slots, this gives each engine
    a list of its own with about equal predicted work; the others go where slots become free, so that a wrong prediction
    or a slow engine is made up for. `more` are further jobs in order, taken when none waits.
    """

    def __init__(self, policy: Policy, *, engines: int, slots: int, more: Iterable[Job] = ()) -> None:
        self._queue = PolicyQueue(policy, engines * slots)
        self._more = iter(more)
        self._free = [slots] * engines
        self._closed = [False] * engines
        self._work = [0.0] * engines
        self._tokens: dict[str, float] = {}  # of waiting requests, E[tokens]
        self._waiting_tokens = 0.0
        self._sent: dict[str, _Sent] = {}
        self._e2e_s = self._generated = 0.0
        self._refill(0.0)

    def __len__(self) -> int:
        """Return the number of requests that wait; of those of `more`, one counts."""
        return len(self._queue)

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the waiting requests in order."""
        return iter(self._queue)

    @property
    def in_flight(self) -> int:
        """Requests that have been sent and have not ended."""
        return len(self._sent)

    def push(self, job: Job, now: float) -> None:
        """Add a request, or return one that has been sent in vain."""
        self._queue.push(job, now)
        self._count(job)

    def update(self, job: Job, now: float) -> None:
        """Order a request anew after a change of its prediction; one that does not wait is ignored."""
        if job.id in self._queue:
            self._queue.update(job, now)
            self._waiting_tokens -= self._tokens[job.id]
            self._count(job)

    def next(self, now: float) -> tuple[Job, int] | None:
        """Return the next request and its engine; None where no request or no slot is left."""
        engines = [e for e, free in enumerate(self._free) if free and not self._closed[e]]
        if not engines:
            return None
        job = self._queue.pop(now)
        if job is None:
            return None
        self._refill(now)
        tokens = self._tokens.pop(job.id)
        self._waiting_tokens -= tokens
        engine = min(engines, key=lambda e: self._work[e])
        self._free[engine] -= 1
        self._work[engine] += tokens
        self._sent[job.id] = _Sent(job, engine, tokens, now)
        return job, engine

    def ended(self, job_id: str, now: float, tokens: int | None = None) -> None:
        """Free the slot of a request, which has an answer of so many tokens, or has none."""
        sent = self._sent.pop(job_id)
        self._free[sent.engine] += 1
        self._work[sent.engine] -= sent.tokens
        if tokens:
            kept = 1.0 - 1.0 / max(32, len(self._sent) + 1)
            self._e2e_s = kept * self._e2e_s + now - sent.at_s
            self._generated = kept * self._generated + tokens

    def close(self, engine: int) -> None:
        """Send no requests to an engine."""
        self._closed[engine] = True

    def reopen(self, engine: int) -> None:
        """Send requests to an engine again."""
        self._closed[engine] = False

    def left_s(self, now: float) -> float | None:
        """Return the predicted time until the last answer; None before the first one.

        max(E[tokens left] * s / slots, max over requests in flight of E[tokens left] * s)      (seconds)
        s: E2E per token of the last answers, as many as are in flight. A request in flight has generated about its
        time over s. Engines that are closed count, as if they came back at once.
        """
        if not self._generated:
            return None
        token_s = self._e2e_s / self._generated
        slots = sum(self._free) + len(self._sent)
        sent = list(self._sent.values())
        step = max(1, math.ceil(len(sent) / _MAX_SAMPLED))
        rest = [_left(each, (now - each.at_s) / token_s) for each in sent[::step]]
        tokens = self._waiting_tokens + float(np.mean(rest)) * len(sent) if rest else self._waiting_tokens
        return max(tokens / slots, max(rest, default=0.0)) * token_s

    def _refill(self, now: float) -> None:
        if not len(self._queue) and (later := next(self._more, None)) is not None:
            self.push(later, now)

    def _count(self, job: Job) -> None:
        self._tokens[job.id] = job.expected
        self._waiting_tokens += job.expected


def _left(sent: _Sent, generated: float) -> float:
    prediction = sent.job.prediction
    if prediction is None:
        return max(1.0, sent.tokens - generated)
    return max(1.0, prediction.remaining(min(int(generated), prediction.cap)).mean())


@dataclass(frozen=True)
class SendLimits:
    """How long and how often something is tried."""

    retries: int = 3
    """Of each request, after a failure that another attempt may mend."""
    retry_s: float = 1.0
    """Before the first one; the double before each further one."""
    give_up_s: float = 300.0
    """While no engine takes a request."""


class _EndedError(Exception):
    """Ends a run before all requests have been answered."""


class Sender(ABC):
    """Sends the requests of a backlog to engines until each has an answer or has failed.

    An engine that cannot be reached, or refuses (429, 503), gets no requests for a while, and the request goes back to
    the others. An attempt that fails otherwise is repeated within `limits`. 50 failed requests in a row end the run, as
    engines do that take nothing for `give_up_s` (`gave_up`).
    """

    def __init__(self, clients: Sequence[EngineClient], backlog: Backlog, limits: SendLimits) -> None:
        self.gave_up = False
        """Whether the run ended because engines do not answer."""
        self._clients, self._backlog, self._limits = clients, backlog, limits
        self._attempts: dict[str, int] = {}
        self._failed_in_a_row = 0
        self._troubles = [0] * len(clients)  # failures of an engine since its last answer
        self._paused: dict[int, asyncio.Task[None]] = {}
        self._to_repeat = 0
        self._loop: asyncio.AbstractEventLoop
        self._group: asyncio.TaskGroup
        self._taken_s = 0.0  # when an engine had last taken a request

    @abstractmethod
    def request(self, job: Job) -> tuple[str, bytes]:
        """Return path and body of a request."""

    @abstractmethod
    def answered(self, job: Job, engine: int, data: bytes) -> int | str:
        """Take an answer with status 200; return its tokens, or the kind of error if it is none."""

    @abstractmethod
    def failed(self, job: Job, kind: str, data: bytes) -> None:
        """Take the last failure of a request; `data` is the body of the error, if any."""

    async def run(self) -> None:
        """Send all requests; InputError where `answered` raises it."""
        self._loop = asyncio.get_running_loop()
        self._taken_s = self._loop.time()
        try:
            async with asyncio.TaskGroup() as self._group:
                self._send()
        except ExceptionGroup as group:
            other = [error for error in group.exceptions if not isinstance(error, _EndedError)]
            if other:
                raise other[0] from None

    def stop(self) -> None:
        """End the run, from inside `answered`; requests in flight are aborted."""
        raise _EndedError

    def _send(self) -> None:
        while (found := self._backlog.next(self._loop.time())) is not None:
            self._group.create_task(self._attempt(*found))
        if not len(self._backlog) and not self._backlog.in_flight and not self._to_repeat:
            for task in self._paused.values():
                task.cancel()

    async def _attempt(self, job: Job, engine: int) -> None:
        kind, data, wait_s = await self._ask(job, engine)
        now = self._loop.time()
        if kind is None:
            result = self.answered(job, engine, data)
            self._backlog.ended(job.id, now, result if isinstance(result, int) else None)
            self._taken_s, self._troubles[engine] = now, 0
            self._attempts.pop(job.id, None)
            if isinstance(result, str):
                self._fail(job, result, data)
            else:
                self._failed_in_a_row = 0
            self._send()
            return
        self._backlog.ended(job.id, now)
        if wait_s is not None:
            self._backlog.push(job, now)
            self._pause(engine, wait_s, at_once=True, unreachable=kind == EngineUnreachableError.kind)
        else:
            self._taken_s = now
            if _status(kind) in RETRIED_STATUSES or not _status(kind):
                self._pause(engine)
                await self._retry(job, kind, data)
            else:
                self._fail(job, kind, data)
        self._send()

    async def _ask(self, job: Job, engine: int) -> tuple[str | None, bytes, float | None]:
        """Return the kind of error, if any, the body, and for how long a refusing engine asks to be left alone."""
        path, body = self.request(job)
        try:
            async with await self._clients[engine].post(path, body) as response:
                data = await response.read()
        except EngineUnreachableError as error:
            return error.kind, b"", 0.0
        except EngineError as error:
            return error.kind, b"", None
        if response.status == 200:
            return None, data, None
        refused = response.status in REFUSED_STATUSES
        return f"http_{response.status}", data, _seconds(response.header("retry-after")) if refused else None

    async def _retry(self, job: Job, kind: str, data: bytes) -> None:
        attempts = self._attempts.get(job.id, 0)
        if attempts >= self._limits.retries:
            self._attempts.pop(job.id, None)
            self._fail(job, kind, data)
            return
        self._attempts[job.id] = attempts + 1
        self._to_repeat += 1
        self._send()
        await asyncio.sleep(self._limits.retry_s * 2.0**attempts)
        self._to_repeat -= 1
        self._backlog.push(job, self._loop.time())

    def _fail(self, job: Job, kind: str, data: bytes) -> None:
        self.failed(job, kind, data)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _GIVE_UP_AFTER:
            self._give_up()

    def _give_up(self) -> None:
        self.gave_up = True
        self.stop()

    def _pause(self, engine: int, wait_s: float = 0.0, *, at_once: bool = False, unreachable: bool = False) -> None:
        """Leave an engine alone for a while: the longer, the more failures there were since its last answer.

        Without `at_once` not after the first: one failure says something about the request, not about the engine.
        """
        if engine in self._paused:
            return
        self._troubles[engine] += 1
        if self._troubles[engine] < 2 and not at_once:
            return
        self._backlog.close(engine)
        own_s = self._limits.retry_s * 2.0 ** min(self._troubles[engine] - 1, _MAX_DOUBLINGS)
        reopen = self._reopen(engine, max(own_s, min(wait_s, _MAX_PAUSE_S)), unreachable=unreachable)
        self._paused[engine] = self._group.create_task(reopen)

    async def _reopen(self, engine: int, wait_s: float, *, unreachable: bool) -> None:
        while True:
            await asyncio.sleep(wait_s)
            silent_s = self._loop.time() - self._taken_s
            if not self._backlog.in_flight and silent_s > self._limits.give_up_s:
                self._give_up()
            if not unreachable or await self._is_up(engine):
                break
        del self._paused[engine]
        self._backlog.reopen(engine)
        self._send()

    async def _is_up(self, engine: int) -> bool:
        try:
            await self._clients[engine].check()
        except EngineError:
            return False
        return True


def _status(kind: str) -> int:
    """Return the HTTP status of a kind of error; 0 where there is none."""
    return int(kind.removeprefix("http_")) if kind.startswith("http_") else 0


def _seconds(header: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 without one, or for a date."""
    try:
        return max(0.0, float(header or 0.0))
    except ValueError:
        return 0.0
