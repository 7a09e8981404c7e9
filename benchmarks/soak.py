"""A long run with random faults: every request ends once, nothing is left behind, and memory stays flat.

    python -m benchmarks.soak [--requests 200000] [--clients 64] [--seed 1] [--predictor fast]

Three engine processes answer most requests and, at random, refuse, fail, break off, hang or send garbage; one after
the other is killed and started again. Some clients leave early or send invalid bodies. At the end the property of
tests/gateway/accounting.py is checked, and the growth of the gateway's resident memory is printed. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from benchmarks import options
from benchmarks.gateway import Gateway, free_port, gateway, machine, memory_growth, ours, process, wait_until_up
from tests.gateway.accounting import Ledger, ledger, read_metrics
from tests.gateway.helpers import PLAIN

ENGINES: Final = 3
RESTARTS: Final = 20
FAULTS: Final = {
    "none": 940,
    "500": 10,
    "503": 10,
    "429": 10,
    "lost before the answer": 10,
    "lost within the answer": 10,
    "garbage": 8,
    "hang": 2,
}
LIMITS: Final = (
    "--router=round_robin",
    "--in-flight=8",
    "--first-byte-timeout-s=3",
    "--silence-timeout-s=4",
    "--write-timeout-s=2",
    "--breaker-s=0.5",
    "--health-interval-s=0.2",
)

_EVENT: Final = b'data: {"choices":[{"index":0,"text":"x","finish_reason":%s}]}\n\n'
_USAGE: Final = b'"usage":{"prompt_tokens":1,"completion_tokens":5}'
_STREAM: Final = _EVENT % b"null" * 4 + _EVENT % b'"stop"' + b'data: {"choices":[],' + _USAGE + b"}\n\ndata: [DONE]\n\n"
_WHOLE: Final = b'{"choices":[{"index":0,"text":"x","finish_reason":"stop"}],' + _USAGE + b"}"
_MODELS: Final = b'{"data":[{"id":"stand-in"}]}'


def _answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} ?\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class FaultyEngine:
    """An engine on one port that fails at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    async def serve(self, port: int) -> None:
        """Serve until the process is killed."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1000)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, EOFError):
            while await self._exchange(reader, writer):
                await writer.drain()
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if head.startswith(b"GET"):
            writer.write(_answer(200, _MODELS) if b"/v1/models" in head else _answer(200, b""))
            return True
        fault = self._random.choices(list(FAULTS), list(FAULTS.values()))[0]
        stream = re.search(rb'"stream":\s*true', body) is not None
        whole = _answer(200, _STREAM, "text/event-stream") if stream else _answer(200, _WHOLE)
        await asyncio.sleep(self._random.expovariate(1 / 0.01))
        match fault:
            case "none":
                writer.write(whole)
                return True
            case "hang":
                await reader.read()  # until the gateway gives up
            case "lost within the answer":
                writer.write(whole[: len(whole) // 2])
            case "garbage":
                writer.write(self._random.randbytes(50))
            case "500" | "503" | "429":
                writer.write(_answer(int(fault), b'{"error":{"message":"at random"}}'))
                return True
        return False


class Engines:
    """Processes of engines that are killed and started again."""

    def __init__(self, seed: int) -> None:
        self.ports = [free_port() for _ in range(ENGINES)]
        self._seed = seed
        self._starts = itertools.count()
        self._running = [ExitStack() for _ in self.ports]

    def start(self, number: int) -> None:
        """Start an engine, killing it first."""
        self._running[number].close()
        seed = self._seed + next(self._starts)
        command = [sys.executable, "-m", "benchmarks.soak", "--engine", str(self.ports[number]), "--seed", str(seed)]
        self._running[number].enter_context(process(command))

    @contextmanager
    def running(self) -> Iterator[list[str]]:
        """Run all engines."""
        try:
            urls = [f"http://127.0.0.1:{port}" for port in self.ports]
            for number in range(ENGINES):
                self.start(number)
            for url in urls:
                wait_until_up(url)
            yield urls
        finally:
            for running in self._running:
                running.close()


async def _request(book: Ledger, chance: random.Random) -> None:
    """Send one request, of which a few are invalid or are left by their clients."""
    kind, stream = chance.random(), chance.random() < 0.5
    if kind < 0.01:
        async with book.http.post(book.url + PLAIN, data=b'{"prompt": "x", "max_tokens": -1') as response:
            await response.read()
    elif kind < 0.03:
        with suppress(TimeoutError):
            await asyncio.wait_for(book.ask(stream=stream), chance.uniform(0.0, 0.03))
    elif kind < 0.04:
        await book.ask(stream=stream, nvext={"agent_hints": {"osl": 1e308}})
    else:
        await book.ask(stream=stream)


async def _load(one: Gateway, engines: Engines, arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Send all requests; return samples of requests and resident bytes."""
    samples: list[tuple[int, int]] = []
    chance = random.Random(arguments.seed)  # noqa: S311
    left = iter(range(1, arguments.requests + 1))
    restart_every, sample_every = max(1, arguments.requests // RESTARTS), max(1, arguments.requests // 100)

    async with ledger(one.url) as book:

        async def client() -> None:
            for number in left:
                if number % restart_every == 0:
                    await asyncio.to_thread(engines.start, number // restart_every % ENGINES)
                await _request(book, chance)
                if number % sample_every == 0:
                    samples.append((number, one.rss_bytes()))

        await asyncio.gather(*(client() for _ in range(arguments.clients)))
        await book.settle()
        metrics = await read_metrics(book.http, one.url)
    print(f"ends {dict(Counter(book.ends.values()))}, statuses {dict(sorted(book.statuses.items()))}")
    retries = {
        name[len("lengthwise_retries_total") :]: int(n) for name, n in metrics.items() if "retries_total" in name
    }
    print(f"retries {retries}; accepted = answered + failed, and nothing is left behind")
    return samples


def main() -> None:
    """Run the soak, or one of its engines."""
    arguments = options(__doc__, requests=200_000, clients=64, seed=1, predictor="fast", engine=0)
    if arguments.engine:
        asyncio.run(FaultyEngine(arguments.seed).serve(arguments.engine))
        return
    print(f"{machine()}; {arguments.requests:,} requests of {arguments.clients} clients, seed {arguments.seed}")
    engines = Engines(arguments.seed)
    began = time.monotonic()
    with engines.running() as urls, gateway("ours", ours(urls, arguments.predictor, *LIMITS)) as one:
        before = one.cpu_s()
        samples = asyncio.run(_load(one, engines, arguments))
        used = one.cpu_s() - before
    print(f"{1000 * used / arguments.requests:.2f} CPU-ms per request, {time.monotonic() - began:.0f} s")
    print(memory_growth(samples))


if __name__ == "__main__":
    main()
