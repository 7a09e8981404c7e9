"""An engine as a Ray Serve replica, and the gateway's client for a deployment of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ray import serve
from ray.exceptions import RayError

from lengthwise.client.client import (
    EngineClient,
    EngineError,
    EngineResponse,
    EngineTimeoutError,
)
from lengthwise.client.scrape import fetch_metrics, read_gauges, read_memory
from lengthwise.client.simulated_server import SimulatedEngines
from lengthwise.ray.calls import AVOID, replica_counts
from lengthwise.vllm.embedded import EmbeddedEngine, EngineOptions

REPLICA_HEADER: Final = b"x-lengthwise-replica"
"""Header of an answer: the id of the replica that gave it, as in Ray's dashboard."""

Headers = list[tuple[bytes, bytes]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The first item of an answer. The body's first bytes are in it, so that before it nothing has been sent."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The last item of an answer that broke off; a value, since Ray Serve logs exceptions as faults of the replica."""

    kind: str
    replica: str


class EngineReplica:
    """One engine: a child process on the node of the replica, reached on loopback.

    With `simulated` it is a simulated engine (`1*llama-3-8b@a100?speed=10`), else vLLM with our scheduler.
    """

    def __init__(self, simulated: str | None, options: dict[str, Any]) -> None:
        self._id = str(serve.get_replica_context().replica_id.unique_id)
        self._stack = contextlib.ExitStack()
        if simulated is not None:
            url = self._stack.enter_context(SimulatedEngines(simulated)).urls[0]
        else:
            url = self._stack.enter_context(EmbeddedEngine(EngineOptions.model_validate(options))).url
        self._client = EngineClient(url, name=f"replica {self._id}")
        self._opened = False

    async def _open(self) -> EngineClient:
        if not self._opened:
            self._opened = True
            await self._client.open()
        return self._client

    async def forward(
        self, method: str, path: str, body: bytes, headers: Headers, avoid: tuple[str, ...] = ()
    ) -> AsyncIterator[AnswerHead | bytes | Failure]:
        """Send a request to the engine; yield the head of its answer, then the rest as it arrives.

        `avoid` is for the request router.
        """
        client = await self._open()
        try:
            answer = await client.forward(method, path, body, headers, resend=False)  # the caller sends it again
            try:
                first = await (answer.chunk() if answer.is_stream else answer.read())
                yield AnswerHead(answer.status, [*answer.raw_headers, (REPLICA_HEADER, self._id.encode())], first)
                while answer.is_stream and (data := await answer.chunk()):
                    yield data
            finally:
                answer.close()
        except EngineError as error:
            yield Failure(error.kind, self._id)

    async def check_health(self) -> None:
        """Raise if the engine does not answer: Ray Serve then replaces the replica."""
        await (await self._open()).check()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Return the engine's load and KV memory for the request router."""
        at = time.time()
        metrics = await fetch_metrics(await self._open()) or ""
        gauges, memory = read_gauges(metrics), read_memory(metrics)
        stats: dict[str, Any] = {}
        if gauges is not None:
            stats |= {"at": at, "running": gauges.running, "waiting": gauges.waiting, "kv_use": gauges.kv_use}
        if memory is not None:
            stats |= {"kv_tokens": memory.kv_tokens, "block_size": memory.block_size}
        return stats

    def __del__(self) -> None:
        if hasattr(self, "_stack"):
            self._stack.close()


class ReplicaLostError(EngineError):
    """Two replicas in a row were lost with the request: it may be what breaks them, and is not sent again."""

    kind = "lost"


class _ReplicaGoneError(ConnectionError):
    """The replica died, or its engine failed. `replica` is its id, if known."""

    def __init__(self, replica: str | None = None) -> None:
        super().__init__()
        self.replica = replica


class _HandleAnswer:
    """An answer over a handle's stream (`client.client.AnswerTransport`)."""

    def __init__(self, stream: Any, silence_timeout_s: float, limit_s: float) -> None:  # Ray's class
        self.status = 0
        self.headers: Headers = []
        self._first = b""
        self._stream = stream
        self.heard_at = asyncio.get_running_loop().time()
        self._silence_timeout_s = silence_timeout_s
        self.deadline = asyncio.get_running_loop().time() + limit_s
        self._ended = False

    async def head(self) -> None:
        item = await self._next()
        assert isinstance(item, AnswerHead)  # noqa: S101  (our own replica)
        self.status, self.headers, self._first = item.status, item.headers, item.body

    async def chunk(self) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        if self._ended:
            return b""
        item = await self._next()
        return b"" if item is None else item

    async def read(self) -> bytes:
        parts: list[bytes] = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    def release(self) -> None:
        if not self._ended:
            self._ended = True
            self._stream.cancel()

    async def _next(self) -> Any:  # AnswerHead, bytes, or None at the end
        """Return the next item; ConnectionError or TimeoutError if the replica or its engine fails."""
        try:
            silent_at = asyncio.get_running_loop().time() + self._silence_timeout_s
            async with asyncio.timeout_at(min(silent_at, self.deadline)):
                item = await anext(self._stream)
            self.heard_at = asyncio.get_running_loop().time()
        except StopAsyncIteration:
            self._ended = True
            return None
        except RayError as error:
            self._ended = True
            raise _ReplicaGoneError from error
        if isinstance(item, Failure):
            self._ended = True
            raise TimeoutError if item.kind == EngineTimeoutError.kind else _ReplicaGoneError(item.replica)
        return item


class HandleClient(EngineClient):
    """Talks to the replicas of a deployment as to one engine; its request router chooses the replica.

    A request whose replica is lost before the first byte of an answer is sent once more, to another one.
    """

    def __init__(self, handle: Any, url: str, **options: Any) -> None:  # a DeploymentHandle
        super().__init__(url, **options)
        self._handle = handle.options(stream=True)
        self._silence_timeout_s: float = options["silence_timeout_s"]

    @property
    def replicas(self) -> int:
        """Replicas that run."""
        return replica_counts.get((self._handle.app_name, self._handle.deployment_name), 0)

    async def open(self) -> None:
        """Nothing to open: the handle connects with its first call."""

    async def close(self) -> None:
        """Nothing to close."""

    async def _call(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | None = None,
        limit_s: float = math.inf,
        *,
        resend: bool = True,
    ) -> EngineResponse:
        sent = list(headers)
        avoid: tuple[str, ...] = ()
        for attempt in range(2 if resend else 1):
            stream = self._handle.forward.remote(method, path, body or b"", sent, **{AVOID: avoid})
            answer = _HandleAnswer(stream, self._silence_timeout_s, limit_s)
            try:
                await answer.head()
            except _ReplicaGoneError as error:
                avoid = (error.replica,) if error.replica is not None else ()
                _log.warning("%s: a replica was lost before its answer began", self.name)
            except TimeoutError as error:
                answer.release()
                raise EngineTimeoutError(f"{self.name} sent nothing for too long") from error
            except BaseException:
                answer.release()
                raise
            else:
                return EngineResponse(self, answer, resent=attempt > 0)
        raise ReplicaLostError(f"{self.name} lost the request{' twice' if resend else ''}")
