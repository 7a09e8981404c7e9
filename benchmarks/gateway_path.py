"""What a small request costs on its path through the gateway: CPU time, and calls, which do not vary between runs.

    python -m benchmarks.gateway_path [--requests 20000] [--clients 32] [--predictor none] [--slots 4]

One process without sockets: clients and engines are transports in memory, and everything between them is the gateway
as it is served (protocol, tenants, queue, router, engine client, learning). With fewer --slots per engine than
clients, requests wait. The CPU time is of plain runs; the calls
and the shares of the modules come from a run under cProfile, which weighs Python's calls more than compiled code.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import re
import statistics
import time
from collections import Counter
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import uvicorn
import uvloop
from uvicorn.server import ServerState

from benchmarks import options
from benchmarks.gateway import CONCURRENCY, ENGINES, PATH, machine, request_body
from benchmarks.stand_in import MODEL
from lengthwise.engines.http1 import HttpConnection, HttpPool
from lengthwise.gateway.app import create_app
from lengthwise.gateway.config import EngineConfig, GatewayConfig
from lengthwise.gateway.protocol import ConnectionLimits, LimitedProtocol

_CHOICE: Final = {"index": 0, "message": {"role": "assistant", "content": "token " * 3}, "finish_reason": "stop"}
_USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}
_MODULE: Final = re.compile(r"(?:site-packages|src)/(.*)\.(?:py|pyx)$")


def _answer(answer: dict[str, Any]) -> bytes:
    body = json.dumps(answer).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


_COMPLETION: Final = _answer({"id": "chatcmpl-0123456789abcdef", "model": MODEL, "choices": [_CHOICE], "usage": _USAGE})
_MODELS: Final = _answer({"object": "list", "data": [{"id": MODEL}]})


class _Transport(asyncio.Transport):
    """The part of a transport that both sides use, without a socket."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    close = abort


class _Engine(_Transport):
    """The engine's end of a connection: answers each request at once."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: Any) -> None:  # noqa: ANN401
        answer = _COMPLETION if bytes(data[:4]) == b"POST" else _MODELS
        self._connection.loop.call_soon(self._connection.data_received, answer)


async def _connect(pool: HttpPool) -> HttpConnection:
    connection = HttpConnection(pool)
    connection.connection_made(_Engine(connection))
    pool._connections.add(connection)  # noqa: SLF001
    return connection


class _Client(_Transport):
    """A client that sends the next request when the answer to the last one has arrived."""

    def __init__(self, requests: list[bytes], protocol: LimitedProtocol, done: asyncio.Event) -> None:
        super().__init__()
        self._requests, self._protocol, self._done = requests, protocol, done
        protocol.connection_made(self)

    def send(self) -> None:
        if self._requests:
            self._protocol.loop.call_soon(self._protocol.data_received, self._requests.pop())
        else:
            self._done.set()

    def write(self, data: Any) -> None:  # noqa: ANN401
        if not bytes(data).startswith(b"HTTP/1.1 200"):
            raise RuntimeError(bytes(data[:500]))
        self.send()


def _requests(count: int, first: int) -> list[bytes]:
    """Return requests as aiohttp sends those of `benchmarks.gateway costs`."""
    body = request_body()
    (message,) = body["messages"]
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nauthorization: Bearer sk-0123456789abcdef\r\n" % PATH.encode()
    head += b"content-type: application/json\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\nUser-Agent: client\r\n"
    sent = []
    for number in range(first, first + count):
        messages = [{**message, "content": f"{message['content']}{number}"}]
        data = json.dumps({**body, "messages": messages}).encode()
        sent.append(head + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
    return sent


async def _measure(arguments: argparse.Namespace) -> tuple[list[float], pstats.Stats]:
    config = GatewayConfig(
        engines=tuple(EngineConfig(url=f"http://127.0.0.1:{9000 + number}") for number in range(ENGINES)),
        predictor=arguments.predictor,
        in_flight=arguments.slots,
    )
    app = create_app(config)
    served = uvicorn.Config(app, access_log=False, log_level="error", ws="none", proxy_headers=False)
    served.load()
    make = partial(LimitedProtocol, limits=ConnectionLimits(), config=served, server_state=ServerState(), app_state={})
    loop = asyncio.get_running_loop()
    numbers = iter(range(0, 1 << 40, arguments.requests))

    async def run() -> float:
        requests, done = _requests(arguments.requests, next(numbers)), asyncio.Event()
        clients = [_Client(requests, make(_loop=loop), done) for _ in range(arguments.clients)]
        gc.collect()
        gc.freeze()
        before = time.process_time()
        for client in clients:
            client.send()
        await done.wait()
        return 1000 * (time.process_time() - before) / float(arguments.requests)

    with patch.object(HttpPool, "_connect", _connect):
        async with app.router.lifespan_context(app):
            gc.set_threshold(20_000, *gc.get_threshold()[1:])
            await run()
            plain = [await run() for _ in range(arguments.rounds)]
            profile = cProfile.Profile()
            profile.enable()
            await run()
            profile.disable()
    return plain, pstats.Stats(profile)


def main() -> None:
    """Print the CPU time and the calls of a request, by module."""
    arguments = options(__doc__, requests=20_000, rounds=3, clients=CONCURRENCY, predictor="none", slots=64)
    plain, profile = uvloop.run(_measure(arguments))
    known: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = profile.stats  # type: ignore[attr-defined]
    calls, own_s = Counter[str](), Counter[str]()
    for (file, _, _), (_, count, own, _, _) in known.items():
        found = _MODULE.search(file)
        module = found[1].removeprefix("lengthwise/") if found else "built-in and standard library"
        calls[module] += count
        own_s[module] += own  # type: ignore[assignment]
    total = arguments.requests
    load = f"{arguments.clients} clients, {arguments.slots} slots per engine, {total} requests"
    print(f"{machine()}; predictor {arguments.predictor}, {load}")
    print(f"{statistics.median(plain):.4f} CPU-ms/request, least {min(plain):.4f}")
    print(f"{calls.total() / total:.1f} calls/request")
    for module, seconds in own_s.most_common(40):
        print(f"{module:<50}{calls[module] / total:>8.1f} calls{seconds / own_s.total():>8.1%} of the profiled time")


if __name__ == "__main__":
    main()
