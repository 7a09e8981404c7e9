"""What a small request costs the gateway: CPU-ms of its process, at concurrency 32.

    python -m benchmarks.gateway [--requests 3000]

The engine is the tests' stand-in, which answers at once, in a process of its own; gateway and client have theirs.
Requests per second are of all three together on this machine, so CPU-ms is the figure to compare. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from tests.gateway.engine import free_port

from lengthwise.gateway import check_engines

if TYPE_CHECKING:
    from collections.abc import Iterator

CONCURRENCY = 32
GATEWAY = "from lengthwise.cli.serve import serve; import sys; serve(engine=[sys.argv[1]], port=int(sys.argv[2]))"
KINDS: dict[str, dict[str, Any]] = {
    "plain, 3 tokens": {},
    "plain, with a hint": {"nvext": {"agent_hints": {"osl": 3}}},
    "streamed, 3 tokens": {"stream": True},
    "streamed, 64 tokens": {"stream": True, "max_tokens": 64},
}


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)  # noqa: S603
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


def cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def load(url: str, body: dict[str, Any], requests: int) -> None:
    left = iter(range(requests))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def client() -> None:
            for _ in left:
                async with http.post(url + "/v1/completions", json=body) as response:
                    assert response.status == 200
                    await response.read()

        await asyncio.gather(*(client() for _ in range(CONCURRENCY)))


def measure(gateway: int, url: str, fields: dict[str, Any], requests: int) -> tuple[float, float]:
    body = {"model": "stand-in", "prompt": "word " * 100, "max_tokens": 3, **fields}
    asyncio.run(load(url, body, requests // 10))
    cpu, wall = cpu_s(gateway), time.perf_counter()
    asyncio.run(load(url, body, requests))
    return 1000 * (cpu_s(gateway) - cpu) / requests, requests / (time.perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=3000)
    requests = parser.parse_args().requests
    ports = free_port(), free_port()
    engine, url = (f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        stack.enter_context(process("-m", "tests.gateway.engine", str(ports[0])))
        check_engines([engine], wait_s=30)
        gateway = stack.enter_context(process("-c", GATEWAY, engine, str(ports[1])))
        check_engines([url], wait_s=30)
        machine = re.sub(
            r"\s+", " ", f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
        )
        print(f"{machine}; concurrency {CONCURRENCY}, {requests:,} requests each")
        print(f"{'request':<22}{'CPU-ms':>8}{'requests/s':>12}")
        for kind, fields in KINDS.items():
            cpu_ms, rate = measure(gateway, url, fields, requests)
            print(f"{kind:<22}{cpu_ms:>8.2f}{rate:>12.0f}")


if __name__ == "__main__":
    main()
