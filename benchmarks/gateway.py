"""What a gateway costs: CPU time of its processes for the same requests, beside a bare proxy and other gateways.

    python -m benchmarks.gateway costs [--rounds 5] [--sglang-router PYTHON] [--vllm-router PYTHON] [--litellm PYTHON]
    python -m benchmarks.gateway survival [--rounds 3] [--sglang-router PYTHON] [--vllm-router PYTHON]
    python -m benchmarks.gateway streams [--clients 1000]     # slow streams on one core, without an error
    python -m benchmarks.gateway memory [--requests 200000]   # growth of the resident memory
    python -m benchmarks.gateway queue [--waiting 10000]      # cost of a request, by the length of the queue
    python -m benchmarks.gateway dashboard                    # share of the dashboard's snapshots in the CPU time

Engines (three stand-ins that answer at once), gateways and client are separate processes on one machine. Requests per
second depend on all of them and on what else runs, so CPU time is compared: user and system time of a gateway's
processes, its predictor's included. All gateways run during the whole benchmark and are measured in turn, so that
other load on the machine affects all alike; figures are medians over rounds. A peer is measured if the Python of an
environment that has it is given. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import platform
import resource
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp
import numpy as np
import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks import add_options
from benchmarks.stand_in import MODEL, Behaviour, behave
from lengthwise.reports.page import processor_name

Fault = Literal["error", "hang", "killed"]

ENGINES: Final = 3
CONCURRENCY: Final = 32
SLOTS: Final = 4  # per engine, fewer than clients
FAULTS: Final[tuple[Fault, ...]] = ("error", "hang", "killed")
SURVIVORS: Final = 300
SURVIVAL_TIMEOUT_S: Final = 30.0
WAITING: Final = "lengthwise, waiting"
HUGE_PAGES: Final = "lengthwise, none, huge pages"
HUGE_PAGES_SETTINGS: Final = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
PATH: Final = "/v1/chat/completions"
CHUNKS: Final = 200
CHUNK_S: Final = 0.02
STREAMED: Final = Behaviour(CHUNKS, CHUNK_S)
KEY: Final = "sk-" + secrets.token_hex(32)  # LiteLLM does not start without one
HEADERS: Final = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
_CONNECTION: Final = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding"})


class BareProxy:
    """The least that a Python proxy does: read a body, send it to the next engine, pass the answer on."""

    def __init__(self, engines: Sequence[str]) -> None:
        self._next = itertools.cycle(engines)
        self._http: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = [(k.decode(), v.decode()) for k, v in scope["headers"] if k not in _CONNECTION]
        url = next(self._next) + scope["path"]
        async with self._http.request(scope["method"], url, data=body, headers=headers) as answer:
            kept = [(k.lower(), v) for k, v in answer.raw_headers if k.lower() not in _CONNECTION]
            await send({"type": "http.response.start", "status": answer.status, "headers": kept})
            if answer.content_type == "text/event-stream":
                while data := await answer.content.readany():
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            else:
                await send({"type": "http.response.body", "body": await answer.read()})


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs: its main process and its URL."""

    name: str
    pid: int
    url: str

    def cpu_s(self) -> float:
        """User and system time of its process and of all processes below it, also those that have ended."""
        stats = {pid: _stat(pid) for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())}
        family = {self.pid}
        while more := {pid for pid, stat in stats.items() if stat and int(stat[1]) in family} - family:
            family |= more
        return sum(sum(map(int, stats[pid][11:15])) for pid in family if stats[pid]) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """Resident memory of its main process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


@contextmanager
def process(command: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[int]:
    """Run a command until the block ends."""
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(  # noqa: S603
            command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | (environment or {})
        )
        try:
            yield child.pid
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-2000:])
            raise
        finally:
            child.terminate()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def wait_until_up(url: str, path: str = "", timeout_s: float = 90.0) -> None:
    """Return once a small request, or a GET of the path, is answered with 200."""
    until = time.monotonic() + timeout_s
    body = None if path else json.dumps(request_body(max_tokens=1)).encode()
    request = urllib.request.Request(url + (path or PATH), body, HEADERS)  # noqa: S310
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def request_body(**fields: Any) -> dict[str, Any]:
    """Return a small chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "word " * 100}], "max_tokens": 3, **fields}


@contextmanager
def engine_processes(behaviour: Behaviour, count: int = ENGINES) -> Iterator[dict[str, int]]:
    """Run stand-in engines; yield their process by URL."""
    with ExitStack() as stack:
        found = {}
        for _ in range(count):
            port = free_port()
            pid = stack.enter_context(process([sys.executable, "-m", "benchmarks.stand_in", str(port)]))
            found[f"http://127.0.0.1:{port}"] = pid
        for url in found:
            wait_until_up(url)
        for url in found:
            behave(url, behaviour)
        yield found


@contextmanager
def engines(behaviour: Behaviour = Behaviour()) -> Iterator[list[str]]:  # noqa: B008  (frozen)
    """Run stand-in engines; yield their URLs."""
    with engine_processes(behaviour) as found:
        yield list(found)


@contextmanager
def gateway(
    name: str, command: Sequence[str], environment: dict[str, str] | None = None, ready: str = ""
) -> Iterator[Gateway]:
    """Run a gateway; `{port}` in its command is replaced. It is up when the path `ready`, or a request, is answered."""
    port = str(free_port())
    with process([word.replace("{port}", port) for word in command], environment) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(url, ready)
        yield Gateway(name, pid, url)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def ours(urls: Sequence[str], predictor: str, *options: str) -> list[str]:
    """Return the command of our gateway."""
    named = [word for url in urls for word in ("--engine", url)]
    command = [sys.executable, "-m", "lengthwise", "serve", "--port", "{port}", "--predictor", predictor]
    return [*command, *named, "--state", "off", *options]


def peers(arguments: argparse.Namespace, urls: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Return the commands of the other gateways whose Python is given."""
    commands = {}
    routers = {"sglang-router": "sglang_router.launch_router", "vllm-router": "vllm_router.launch_router"}
    for name, module in routers.items():
        if python := getattr(arguments, name.replace("-", "_")):
            metrics = str(free_port())
            where = ["--host", "127.0.0.1", "--port", "{port}", "--prometheus-port", metrics]
            commands[name] = [python, "-m", module, *where, "--worker-urls", *urls]
    if arguments.litellm:
        served = [
            {
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
            }
            for url in urls
        ]
        config = folder / "litellm.yaml"
        config.write_text(json.dumps({"model_list": served}))
        litellm = str(Path(arguments.litellm).parent / "litellm")
        commands["litellm"] = [litellm, "--config", str(config), "--host", "127.0.0.1", "--port", "{port}"]
    return commands


async def load(
    url: str, body: dict[str, Any], requests: int, concurrency: int, on_answer: Callable[[], None] | None = None
) -> None:
    """Send requests in a closed loop, each with another end of the prompt; every answer must be complete."""
    left = iter(range(requests))
    streams = body.get("stream", False)
    (message,) = body["messages"]

    async def client(http: aiohttp.ClientSession) -> None:
        for number in left:
            messages = [{**message, "content": f"{message['content']}{number}"}]
            async with http.post(url + PATH, json={**body, "messages": messages}) as response:
                answer = await response.read()
                if response.status != 200 or (streams and not answer.rstrip().endswith(b"[DONE]")):
                    raise RuntimeError(f"{response.status}: {answer[-300:]!r}")
            if on_answer is not None:
                on_answer()

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=HEADERS) as http:
        await asyncio.gather(*(client(http) for _ in range(concurrency)))


def measure(gateway: Gateway, body: dict[str, Any], requests: int, concurrency: int = CONCURRENCY) -> float:
    """Return the CPU time of a request, in ms, after a tenth of the requests as warm-up."""
    asyncio.run(load(gateway.url, body, requests // 10, concurrency))
    before = gateway.cpu_s()
    asyncio.run(load(gateway.url, body, requests, concurrency))
    return 1000 * (gateway.cpu_s() - before) / requests


def costs(arguments: argparse.Namespace) -> None:
    """Measure all gateways on small requests and on streams."""
    streamed = request_body(stream=True, max_tokens=CHUNKS)
    kinds = {"request": (request_body(), Behaviour(), arguments.requests), "stream": (streamed, STREAMED, CONCURRENCY)}
    found: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        urls = stack.enter_context(engines())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        commands = {"bare proxy": [sys.executable, "-m", "benchmarks.gateway", "proxy", "{port}", *urls]}
        commands |= {f"lengthwise, {name}": ours(urls, name) for name in ("none", "fast")}
        commands[WAITING] = ours(urls, "fast", "--in-flight", str(SLOTS))
        commands[HUGE_PAGES] = ours(urls, "none")
        commands |= peers(arguments, urls, folder)
        litellm_settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": KEY}
        settings = {HUGE_PAGES: HUGE_PAGES_SETTINGS}
        gateways = [
            stack.enter_context(gateway(name, command, settings.get(name, litellm_settings)))
            for name, command in commands.items()
        ]
        for _ in range(arguments.rounds):
            for (kind, (body, behaviour, requests)), one in itertools.product(kinds.items(), gateways):
                for url in urls:
                    behave(url, behaviour)
                if (one.name, kind) == (WAITING, "stream"):  # that of the others, with fewer at once
                    continue
                cpu_ms = measure(one, body, requests)
                found.setdefault((one.name, kind), []).append(cpu_ms)
                print(f"{one.name}: {cpu_ms:.3f} CPU-ms/{kind}", file=sys.stderr)
    absent = [name for name in ("sglang-router", "vllm-router", "litellm") if name not in commands]
    print(f"{machine()}; {ENGINES} engines, concurrency {CONCURRENCY}, medians of {arguments.rounds} rounds")
    print(f"a request of 500 bytes answered in one piece; a stream of {CHUNKS} chunks, 50 a second")
    print(f"{WAITING}: with fast and {SLOTS} slots per engine, so that requests wait and each is predicted")
    print(f"{'':<28}{'CPU-ms/request':>16}{'ratio':>8}{'CPU-ms/chunk':>16}{'ratio':>8}")
    for name in commands:
        cells = ""
        for kind, scale in (("request", 1), ("stream", CHUNKS)):
            rounds = found.get((name, kind), [])
            bare = found["bare proxy", kind][: len(rounds)]
            if not rounds:
                continue
            ratio = statistics.median(mine / base for mine, base in zip(rounds, bare, strict=True))
            cells += f"{statistics.median(rounds) / scale:>16.3f}{ratio:>8.2f}"
        print(f"{name:<28}{cells}")
    print(f"absent: {', '.join(absent) or 'none'}")


@dataclass(frozen=True)
class Survival:
    """What 300 clients saw while one engine of three failed."""

    failed: int
    slow: int
    """Answered after more than 5 s."""
    longest_s: float


def survival(arguments: argparse.Namespace) -> None:
    """Count the requests that fail at their clients while one engine of three answers 500, hangs for 10 s or dies.

    300 requests at 30 a second, every second one streamed, of 0.2 s each; the fault begins at the 60th. Clients wait
    for 30 s. Every gateway has its default settings, and engines and gateways start afresh.
    """
    found: dict[tuple[str, str], list[Survival]] = {}
    names: dict[str, None] = {}
    for _, fault in itertools.product(range(arguments.rounds), FAULTS):
        with tempfile.TemporaryDirectory() as folder:
            for name in gateways_beside(arguments, ["http://127.0.0.1:1"], Path(folder)):
                with engine_processes(Behaviour(10, CHUNK_S)) as running:
                    command = gateways_beside(arguments, list(running), Path(folder))[name]
                    with gateway(name, command) as one:
                        seen = asyncio.run(_survive(one.url, running, fault))
                names[name] = None
                found.setdefault((name, fault), []).append(seen)
                print(f"{name}, {fault}: {seen}", file=sys.stderr)
    print(f"{machine()}, load {os.getloadavg()[0]:.1f}; sums of {arguments.rounds} rounds of {SURVIVORS} requests")
    print("failed, answered after more than 5 s, and the longest in s")
    print(f"{'':<20}" + "".join(f"{fault:>24}" for fault in FAULTS))
    for name in names:
        cells = ""
        for fault in FAULTS:
            rounds = found[name, fault]
            failed, slow = sum(seen.failed for seen in rounds), sum(seen.slow for seen in rounds)
            cells += f"{f'{failed}, {slow}, {max(seen.longest_s for seen in rounds):.1f}':>24}"
        print(f"{name:<20}{cells}")


def gateways_beside(arguments: argparse.Namespace, urls: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Return the commands of our gateway and of its peers."""
    return {"lengthwise": ours(urls, "none"), **peers(arguments, urls, folder)}


async def _survive(url: str, running: dict[str, int], fault: Fault) -> Survival:
    """Send the requests of `survival` and let one engine fail meanwhile."""
    behaviour, broken = Behaviour(10, CHUNK_S), next(iter(running))
    took: list[float] = []
    failed = 0
    timeout, connector = aiohttp.ClientTimeout(total=SURVIVAL_TIMEOUT_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=HEADERS) as http:

        async def request(number: int) -> None:
            nonlocal failed
            began = time.monotonic()
            body = request_body(stream=number % 2 == 0, max_tokens=10)
            body["messages"][0]["content"] = f"{number} {body['messages'][0]['content']}"  # no prefix is shared
            try:
                async with http.post(url + PATH, json=body) as response:
                    answer = await response.read()
                    whole = not body["stream"] or answer.rstrip().endswith(b"[DONE]")
                    failed += response.status != 200 or not whole
            except (aiohttp.ClientError, TimeoutError):
                failed += 1
            took.append(time.monotonic() - began)

        async def fail() -> None:
            if (received := await asyncio.to_thread(behave, broken, behaviour)) < SURVIVORS / 50:
                raise RuntimeError(f"the engine that is to fail has received {received} requests")
            if fault == "killed":
                os.kill(running[broken], signal.SIGKILL)
                return
            await asyncio.to_thread(behave, broken, replace(behaviour, fault=fault))
            if fault == "hang":
                await asyncio.sleep(10)
                await asyncio.to_thread(behave, broken, behaviour)

        tasks = []
        began = time.monotonic()
        for number in range(SURVIVORS):
            await asyncio.sleep(max(0.0, began + number / 30 - time.monotonic()))
            tasks.append(asyncio.create_task(request(number)))
            if number == SURVIVORS // 5:
                tasks.append(asyncio.create_task(fail()))
        await asyncio.gather(*tasks)
    return Survival(failed, sum(seconds > 5 for seconds in took), max(took))


def streams(arguments: argparse.Namespace) -> None:
    """Hold many slow streams on one core; `load` raises if one of them fails."""
    seconds, rate = 20, 5
    body = request_body(stream=True, max_tokens=seconds * rate)
    with (
        engines(Behaviour(seconds * rate, 1 / rate)) as urls,
        gateway("ours", ours(urls, arguments.predictor, "--in-flight", "1000")) as one,
    ):
        for task in Path(f"/proc/{one.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {0})
        before, began = one.cpu_s(), time.monotonic()
        asyncio.run(load(one.url, body, arguments.clients, arguments.clients))
        used, passed = one.cpu_s() - before, time.monotonic() - began
    chunks = arguments.clients * seconds * rate
    print(f"{machine()}; predictor {arguments.predictor}")
    print(f"{arguments.clients} streams of {seconds * rate} chunks, {rate} a second each: no error")
    print(f"{1000 * used / chunks:.3f} CPU-ms/chunk, {used / passed:.0%} of a core, {passed:.0f} s (ideal {seconds} s)")


def memory(arguments: argparse.Namespace) -> None:
    """Fit a line through the resident memory over the requests, after a fifth of them."""
    samples: list[tuple[int, int]] = []
    counter = itertools.count(1)
    with engines() as urls, gateway("ours", ours(urls, arguments.predictor)) as one:

        def sample() -> None:
            if (done := next(counter)) % 2000 == 0:
                samples.append((done, one.rss_bytes()))

        asyncio.run(load(one.url, request_body(), arguments.requests, CONCURRENCY, sample))
    print(f"{machine()}; predictor {arguments.predictor}, {arguments.requests:,} requests")
    print(memory_growth(samples))


def memory_growth(samples: Sequence[tuple[int, int]]) -> str:
    """Describe the line through (requests so far, resident bytes) after a fifth of the requests."""
    settled = [(done, rss) for done, rss in samples if done >= samples[-1][0] / 5]
    slope = statistics.linear_regression(*zip(*settled, strict=True)).slope
    first, last = settled[0][1] / 2**20, settled[-1][1] / 2**20
    return f"resident memory {first:.1f} MiB after a fifth, {last:.1f} MiB at the end; {slope:.1f} bytes per request"


def queue(arguments: argparse.Namespace) -> None:
    """Measure a request behind a short and a long queue."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    slots = 8
    longest = min(arguments.waiting, hard // 2 - 200)  # a gateway takes half of its open files for clients
    found: dict[int, list[float]] = {100: [], longest: []}
    body = request_body()
    with engines(Behaviour(token_s=0.0007)) as urls:
        # Where all clients connect at once, the last ones send late.
        limits = ("--in-flight", str(slots), "--max-waiting", "20000", "--header-timeout-s", "600")
        with gateway("ours", ours(urls, arguments.predictor, *limits)) as one:
            for _, waiting in itertools.product(range(arguments.rounds), found):
                concurrency = waiting + ENGINES * slots
                found[waiting].append(measure(one, body, 2 * longest, concurrency))
    print(f"{machine()}; predictor {arguments.predictor}, {ENGINES} engines of {slots} slots")
    for waiting, rounds in found.items():
        print(f"{waiting:>8,} waiting: {statistics.median(rounds):.3f} CPU-ms/request")


def machine() -> str:
    """Return what the figures were measured on."""
    return f"Python {platform.python_version()}, {processor_name()}, {os.cpu_count()} cores"


def dashboard(arguments: argparse.Namespace) -> None:
    """Measure what an open dashboard adds to the gateway's CPU time at 100 requests/s, some of them waiting.

    The page is open and closed in turns of 10 s, so that what else the machine does counts alike in both.
    """
    rate, chunks, chunk_s, turn_s = 100, 50, 0.02, 10.0
    turns = max(2, int(arguments.seconds / turn_s)) // 2 * 2
    body = request_body(stream=True, max_tokens=chunks)
    slots = round(0.97 * rate * chunks * chunk_s / ENGINES)  # a little too few: a queue grows
    options = ["--in-flight", str(slots)]
    options += ["--header-timeout-s", "600", "--body-timeout-s", "600"]  # a busy machine is slow to read

    async def run(one: Gateway) -> tuple[list[float], float]:
        """Return the CPU time of each turn, the first without the page, and that of the snapshots."""
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=HEADERS) as http:

            async def request() -> None:
                async with http.post(one.url + PATH, json=body) as response:
                    await response.read()

            async def watch() -> None:
                async with http.get(one.url + "/lengthwise/v1/events") as response:
                    while await response.content.readany():
                        pass

            async def dashboard_s() -> float:
                async with http.get(one.url + "/metrics") as response:
                    lines = (await response.text()).splitlines()
                return sum(float(x.split()[1]) for x in lines if x.startswith("lengthwise_dashboard_cpu_seconds_total"))

            sent: list[asyncio.Task[None]] = []
            used, viewers = [], list[asyncio.Task[None]]()
            began = time.monotonic()
            for number in range(round(rate * turn_s * (turns + 1))):
                if number % (rate * turn_s) == 0:
                    used.append(one.cpu_s())
                    for viewer in viewers:
                        viewer.cancel()
                    with_page = len(used) % 2 == 1 and len(used) > 1  # the first turn warms up
                    viewers = [asyncio.create_task(watch()) for _ in range(arguments.viewers if with_page else 0)]
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                sent.append(asyncio.create_task(request()))
            used.append(one.cpu_s())
            await asyncio.gather(*sent)
            for viewer in viewers:
                viewer.cancel()
            return list(np.diff(used)[1:]), await dashboard_s()

    with (
        engines(Behaviour(chunks, chunk_s)) as urls,
        gateway("ours", ours(urls, arguments.predictor, *options)) as one,
    ):
        turn, snapshots_s = asyncio.run(run(one))
    closed, opened = np.array(turn[0::2]), np.array(turn[1::2])
    added = (opened - closed) / closed.mean()
    error = 1.96 * added.std(ddof=1) / math.sqrt(len(added)) if len(added) > 1 else math.nan
    traffic = f"{rate} streams/s of {chunks} chunks"
    print(f"{machine()}; predictor {arguments.predictor}, {traffic}")
    print(
        f"{arguments.viewers} viewers: {added.mean():+.2%} +- {error:.2%} of the CPU time without a page "
        f"({closed.mean() / turn_s:.3f} CPU-s/s), {len(added)} pairs of {turn_s:.0f} s; snapshots alone "
        f"{snapshots_s / opened.sum():.2%}"
    )


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for measured in (costs, survival, streams, memory, queue, dashboard):
        kind = kinds.add_parser(measured.__name__, help=measured.__doc__)
        kind.set_defaults(run=measured)
        requests = 200_000 if measured is memory else 2000
        add_options(
            kind,
            rounds=3 if measured is survival else 5,
            requests=requests,
            clients=1000,
            waiting=10_000,
            predictor="none",
        )
        add_options(kind, seconds=30, viewers=1)
        for peer in ("sglang-router", "vllm-router", "litellm"):
            kind.add_argument(f"--{peer}", metavar="PYTHON", help="Python of an environment that has it")
    proxy = kinds.add_parser("proxy", help="serve the bare proxy")
    proxy.add_argument("port", type=int)
    proxy.add_argument("engines", nargs="+")
    proxy.set_defaults(
        run=lambda arguments: uvicorn.run(
            BareProxy(arguments.engines), port=arguments.port, log_level="warning", access_log=False, lifespan="off"
        )
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes it started end too
    arguments.run(arguments)


if __name__ == "__main__":
    main()
