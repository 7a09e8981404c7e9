"""CPU time of the gateway for a small request, in ms of its process at concurrency 32, by predictor.

    python -m benchmarks.gateway [--requests 3000] [--predictors none,fast]

Engine (the stand-in of the tests, which answers at once), gateway and client run in separate processes. Requests per
second depend on all three and on the machine, so CPU-ms is the figure to compare. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from lengthwise.gateway import check_engines
from tests.gateway.engine import free_port

CONCURRENCY = 32
GATEWAY = (
    "from lengthwise.cli.serve import serve; import sys; "
    "serve(engine=[sys.argv[1]], port=int(sys.argv[2]), predictor=sys.argv[3])"
)
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
    parser.add_argument("--predictors", default="none,fast")
    arguments = parser.parse_args()
    predictors = arguments.predictors.split(",")
    with ExitStack() as stack:
        port = free_port()
        engine = f"http://127.0.0.1:{port}"
        stack.enter_context(process("-m", "tests.gateway.engine", str(port)))
        check_engines([engine], wait_s=30)
        gateways = {}
        for predictor in predictors:
            port = free_port()
            pid = stack.enter_context(process("-c", GATEWAY, engine, str(port), predictor))
            gateways[predictor] = pid, f"http://127.0.0.1:{port}"
            check_engines([gateways[predictor][1]], wait_s=30)
        machine = f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores"
        print(f"{machine}; concurrency {CONCURRENCY}, {arguments.requests:,} requests each; CPU-ms, requests/s")
        print(f"{'predictor':<22}" + "".join(f"{predictor:>16}" for predictor in predictors))
        for kind, fields in KINDS.items():
            found = [measure(pid, url, fields, arguments.requests) for pid, url in gateways.values()]
            print(f"{kind:<22}" + "".join(f"{cpu_ms:>8.2f}{rate:>8.0f}" for cpu_ms, rate in found))


if __name__ == "__main__":
    main()
