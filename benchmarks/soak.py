"""A long run under attack: every request ends once, nothing is left behind, and strangers cost their neighbours little.

    python -m benchmarks.soak [--requests 200000] [--rate 120] [--seed 1] [--write]     # 5,000 take a minute

Two replicas with keys in front of three engines, at half of the engines' capacity. 56 tenants send small requests; 8
hostile ones try what an operator fears of strangers (`ATTACKS`), in every second window of 10 s. In all windows engines
fail 6 % of the requests in some way, one is killed and started again, and the configuration of one replica is reloaded
twice. At the end:

- conservation, at each replica: tests/gateway/accounting.py; no engine executed a request more than twice, nor gave two
  whole answers to it; no attack got what it must not get, and no other tenant was refused by a limit;
- the other tenants' latency in windows with attacks over that in the windows without, in pairs of neighbours;
- resident memory and open files of both replicas over the run.

`--write` keeps the figures in experiments/results/soak.json. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import secrets
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from benchmarks import options
from benchmarks.faulty_engine import RESPONSES, UNREAD_TOKENS
from benchmarks.gateway import Gateway, free_port, gateway, machine, process, wait_until_up
from lengthwise.gateway.keys import add_key
from lengthwise.intervals import draw_rows, interval
from tests.gateway.accounting import Ledger, ledger, read_metrics
from tests.gateway.helpers import CHAT, PLAIN, body

_ids = itertools.count()

ENGINES: Final = 3
REPLICAS: Final = 2
SLOTS: Final = 4  # of an engine, for each replica
TENANTS: Final = 64
HOSTILE: Final = 8
LOAD: Final = 0.5
WINDOW_S: Final = 10.0
SETTLING_S: Final = 3.0  # of a window: what began in the one before still runs
FILE: Final = Path(__file__).parents[1] / "experiments" / "results" / "soak.json"


class Engines:
    """Processes of engines that are killed and started again."""

    def __init__(self, arguments: argparse.Namespace, journal: Path) -> None:
        self.ports = [free_port() for _ in range(ENGINES)]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.journal = journal
        self._answer_s = ENGINES * REPLICAS * SLOTS * LOAD / arguments.rate
        self._seeds = itertools.count(arguments.seed)
        self._running = [ExitStack() for _ in self.ports]

    def start(self, number: int) -> None:
        """Start an engine, killing it first."""
        self._running[number].close()
        command = [sys.executable, "-m", "benchmarks.faulty_engine", str(self.ports[number]), str(next(self._seeds))]
        self._running[number].enter_context(process([*command, str(self._answer_s), str(self.journal)]))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all engines."""
        try:
            for number in range(ENGINES):
                self.start(number)
            for url in self.urls:
                wait_until_up(url, "/health")
            yield
        finally:
            for running in self._running:
                running.close()

    def executions(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each request was executed, and how often it was answered whole."""
        lines = [line.split(" ") for line in self.journal.read_text().splitlines()]
        return tuple(Counter(name for name, what in lines if what == kind) for kind in ("executed", "answered"))  # type: ignore[return-value]


@dataclass
class Replica:
    """A gateway, its configuration and the ledger of the requests that others than the hostile tenants send to it."""

    gateway: Gateway
    file: Path
    config: dict[str, Any]
    book: Ledger

    def reload(self, **changes: Any) -> None:
        """Change the configuration, and tell the gateway."""
        self.file.write_text(json.dumps({**self.config, **changes}))
        os.kill(self.gateway.pid, signal.SIGHUP)

    def files(self) -> int:
        """Return the number of open files."""
        return sum(1 for _ in Path(f"/proc/{self.gateway.pid}/fd").iterdir())


@dataclass
class Run:
    """What a run has seen so far."""

    replicas: Sequence[Replica]
    chance: random.Random
    stored: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=500))
    """Stored answers of the tenants that are not hostile: the id, and the tenant's key."""
    attacked: asyncio.Event = field(default_factory=asyncio.Event)
    attacks: dict[str, Counter[str]] = field(default_factory=dict)
    """The statuses that each kind of attack got."""
    wrong: Counter[str] = field(default_factory=Counter)
    """What must not happen, and how often it did."""
    sent: int = 0
    latencies: list[list[float]] = field(default_factory=list)
    """Of the answered requests of other tenants, by window."""
    memory: list[list[int]] = field(default_factory=list)
    """Resident bytes of each replica, after every hundredth of the requests."""
    files: list[list[int]] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    """How late requests of other tenants were sent: above some ms this machine was the bottleneck."""

    def replica(self) -> Replica:
        """Return the replica to which a load balancer sends the next request."""
        return self.chance.choice(self.replicas)


@dataclass
class Attacker:
    """A hostile tenant."""

    run: Run
    headers: Mapping[str, str]
    name: str
    kind: str = ""

    async def send(self, path: str, data: object = None, method: str = "POST", **headers: str) -> str:
        """Send a request, read its answer, and return the status."""
        sent = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.run.sent += 1
        replica = self.run.replica()
        status = "no answer"
        # The session does not return to a pool; the timeout is the client's own.
        with suppress(aiohttp.ClientError, TimeoutError):
            async with (
                asyncio.timeout(20),
                replica.book.http.request(
                    method, replica.gateway.url + path, data=sent, headers={**self.headers, **headers}
                ) as response,
            ):
                await response.read()
                status = str(response.status)
        self.count(status)
        return status

    def count(self, status: str) -> None:
        """Count what an attack got."""
        self.run.attacks.setdefault(self.kind, Counter())[status] += 1

    def forbid(self, status: str, *allowed: str) -> None:
        """Note an answer that is none of those allowed."""
        if status not in {*allowed, "429", "503", "no answer"}:
            self.run.wrong[f"{self.kind}: {status}"] += 1

    def body(self, tokens: int = 5, **fields: Any) -> dict[str, Any]:
        """Return a completion's body."""
        return body(f"{self.name}-{next(_ids)}", tokens, **fields)

    async def raw(self, data: bytes, seconds: float, *, read: bool = False) -> None:
        """Send bytes from another address of this machine, and hold the connection without reading the answer."""
        port = int(self.run.replica().gateway.url.rsplit(":", 1)[1])
        self.run.sent += 1
        with suppress(OSError):
            sock = socket.socket()
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.bind(("127.0.0.2", 0))
            with sock:
                loop = asyncio.get_running_loop()
                await loop.sock_connect(sock, ("127.0.0.1", port))
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await loop.sock_sendall(sock, data)
                        answer = await loop.sock_recv(sock, 65536) if read else b""
                        self.count(answer[9:12].decode(errors="replace") or "held")
                        await asyncio.sleep(seconds)

    def head(self, length: int, **headers: str) -> bytes:
        """Return the head of a completion's request."""
        lines = [f"{name}: {value}" for name, value in {**self.headers, **headers, "content-length": length}.items()]
        return "\r\n".join([f"POST {PLAIN} HTTP/1.1", "host: g", *lines, "", ""]).encode()


COMPLEX: Final = {
    "objects": b'{"model":"stand-in","prompt":[' + b"{}," * 60_000 + b"{}]}",
    "too many objects": b'{"model":"stand-in","prompt":[' + b"{}," * 200_000 + b"{}]}",
    "arrays": b'{"model":"stand-in","prompt":"x","metadata":[' + b"[]," * 60_000 + b"[]]}",
    "depth": b'{"model":"stand-in","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "ids": b'{"model":"stand-in","max_tokens":5,"prompt":[' + b"12345," * 99_999 + b"1]}",
    "text": b'{"model":"stand-in","max_tokens":5,"prompt":"' + b"word " * 200_000 + b'"}',
}


async def read_others(who: Attacker) -> None:
    """D1: read, delete and continue the stored answer of another tenant."""
    if who.run.stored:
        name, _ = who.run.chance.choice(who.run.stored)
        for method in ("GET", "DELETE"):
            who.forbid(await who.send(f"{RESPONSES}/{name}", method=method), "404")
        sent = {"model": "stand-in", "input": "go on", "previous_response_id": name}
        who.forbid(await who.send(RESPONSES, sent), "404")
        who.forbid(await who.send(f"{RESPONSES}/{name.rpartition('_')[0]}", method="GET"), "404")


async def exhaust(who: Attacker) -> None:
    """D2: bodies that take many times their bytes."""
    path = who.run.chance.choice([PLAIN, PLAIN, CHAT, "/lengthwise/v1/predict", "/v1/embeddings"])
    who.forbid(await who.send(path, who.run.chance.choice(list(COMPLEX.values()))), "200", "400", "413", "500", "502")


async def administer(who: Attacker) -> None:
    """D3: administer the gateway from loopback without an admin key."""
    joined = {"url": f"http://127.0.0.1:{free_port()}", "name": "mine"}
    who.forbid(await who.send("/lengthwise/v1/engines", joined), "403")
    who.forbid(await who.send("/lengthwise/v1/policy", {"policy": "fcfs"}), "403")
    who.forbid(await who.send("/lengthwise/v1/queue", method="GET"), "403")
    who.forbid(await who.send("/lengthwise/v1/engines/engine-0", method="DELETE"), "403")


async def answer_long(who: Attacker) -> None:
    """D4: answers of 8,000 tokens, which must not be charged to others."""
    await asyncio.gather(*(who.send(PLAIN, who.body(8000)) for _ in range(3)))


async def avoid_charges(who: Attacker) -> None:
    """D5: no usage, a stream that is cut, a response in the background."""
    await who.send(PLAIN, who.body(400, stream=True, stream_options={"include_usage": False}, prompt=["x" * 9999] * 2))
    content = json.dumps(who.body(4000, stream=True)).encode()
    await who.raw(who.head(len(content)) + content, 0.05, read=True)
    await who.send(RESPONSES, {"model": "stand-in", "input": "x", "background": True})


async def claim(who: Attacker) -> None:
    """D6: claim one token and take 400."""
    fields = {
        "nvext": {"agent_hints": {"osl": 1, "priority": 1e308}},
        "vllm_xargs": {"expected_tokens": 1},
        "priority": -9,
    }
    await asyncio.gather(*(who.send(PLAIN, who.body(400, **fields)) for _ in range(3)))


async def read_nothing(who: Attacker) -> None:
    """D7: large answers, streamed and whole, that are never read."""
    contents = [json.dumps(who.body(UNREAD_TOKENS, stream=stream)).encode() for stream in (False, True)]
    await asyncio.gather(*(who.raw(who.head(len(content)) + content, 6.0) for content in contents))


async def hold_connections(who: Attacker) -> None:
    """D8: connections that send nothing, half a head or half a body."""
    halves = [b"", b"POST /v1/completions HTTP/1.1\r\nhost: g\r\n", who.head(1000) + b"{", b"\x16\x03\x01\x02\x00\x01"]
    await asyncio.gather(*(who.raw(half, 4.0) for half in halves * 3))


async def break_readers(who: Attacker) -> None:
    """D10: bodies that predictors and logs may not understand."""
    odd: list[Any] = [1, None, {}, {"role": 5}, {"role": "user", "content": [None, {"type": 5}]}]
    for message in odd:
        who.forbid(
            await who.send(CHAT, {"model": "stand-in", "messages": [message]}), "200", "400", "500", "502", "504"
        )


async def leave_the_paths(who: Attacker) -> None:
    """D11: paths that are not for tenants."""
    for path in (
        "/sleep",
        "/v1/files",
        "/v1/load_lora_adapter",
        "/v1/chat/completions/batch",
        "/v1/../sleep",
        "/v1/x%2fy",
    ):
        who.forbid(await who.send(path, {"model": "stand-in"}), "400", "404")


async def be_urgent(who: Attacker) -> None:
    """D12: latency limits, long hosts, uploads without a valid key, an id of another's request."""
    for seconds in ("0.001", "-1", "nan", "1e400"):
        await who.send(PLAIN, who.body(), **{"x-lengthwise-slo-s": seconds})
    url = {"url": "http://" + "a" * 5000}
    who.forbid(await who.send("/lengthwise/v1/engines", url), "403")
    who.forbid(await who.send(PLAIN, b"x" * 1_000_000, authorization="Bearer lw-none"), "401")


ATTACKS: Final[dict[str, Callable[[Attacker], Awaitable[None]]]] = {
    "D1 read others' stored answers": read_others,
    "D2 exhaust memory and loop": exhaust,
    "D3 administer": administer,
    "D4 long answers": answer_long,
    "D5 avoid charges": avoid_charges,
    "D6 claim short answers": claim,
    "D7 read nothing": read_nothing,
    "D8 hold connections": hold_connections,
    "D10 break readers": break_readers,
    "D11 leave the paths": leave_the_paths,
    "D12 urgency, hosts, uploads": be_urgent,
}


async def attack(who: Attacker, done: asyncio.Event) -> None:
    """Attack at random while it is the time for it."""
    while not done.is_set():
        if not who.run.attacked.is_set():
            await asyncio.sleep(0.1)
            continue
        who.kind = who.run.chance.choice(list(ATTACKS))
        await ATTACKS[who.kind](who)
        await asyncio.sleep(who.run.chance.expovariate(1.0))


async def ask(run: Run, key: str, window: int | None) -> None:
    """Send a request of a tenant that is not hostile."""
    replica, chance = run.replica(), run.chance
    headers = {"authorization": f"Bearer {key}"}
    kind, stream = chance.random(), chance.random() < 0.5
    run.sent += 1
    if kind < 0.02:
        with suppress(TimeoutError):
            await asyncio.wait_for(replica.book.ask(stream=stream, headers=headers), chance.uniform(0.0, 0.2))
        return
    if kind < 0.06:
        await _store(run, replica, headers, key)
        return
    began = time.monotonic()
    name = await replica.book.ask(stream=stream, headers=headers)
    if window is not None and replica.book.ends[name] == "answered":
        run.latencies[window].append(time.monotonic() - began)


async def _store(run: Run, replica: Replica, headers: Mapping[str, str], key: str) -> None:
    """Store an answer, or read one at any replica."""
    mine = [name for name, owner in run.stored if owner == key]
    method, path = ("GET", f"{RESPONSES}/{mine[-1]}") if mine and run.chance.random() < 0.5 else ("POST", RESPONSES)
    data = {"model": "stand-in", "input": "x"} if method == "POST" else None
    with suppress(aiohttp.ClientError):
        async with replica.book.http.request(
            method, replica.gateway.url + path, json=data, headers=headers
        ) as response:
            answer = await response.read()
        if response.status == 200 and method == "POST" and answer.startswith(b"{"):
            run.stored.append((json.loads(answer)["id"], key))
        elif response.status in (404, 429):
            run.wrong[f"another tenant's stored answer: {response.status}"] += 1


async def drive(run: Run, engines: Engines, keys: Sequence[str], arguments: argparse.Namespace) -> None:
    """Send everything: a warm-up of half a window, then pairs of windows."""
    tasks: set[asyncio.Task[None]] = set()

    def start(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(tasks.discard)

    began = time.monotonic()
    honest_rate = arguments.rate * (1 - HOSTILE / TENANTS)
    sample_every = max(1, arguments.requests // 100)
    due, sampled, acted = 0.0, 0, set[tuple[int, str]]()
    while run.sent < arguments.requests:
        due += run.chance.expovariate(honest_rate)
        await asyncio.sleep(max(0.0, began + due - time.monotonic()))
        run.late_s.append(time.monotonic() - began - due)
        window = int((due - WINDOW_S / 2) // WINDOW_S)
        within = (due - WINDOW_S / 2) % WINDOW_S
        if window >= 0:
            while len(run.latencies) <= window:
                run.latencies.append([])
            # without, with, with, without, ...
            (run.attacked.set if _attacked(window) else run.attacked.clear)()
            for what, second, act in _disturbances(run, engines, window):
                if within >= second and (window, what) not in acted:
                    acted.add((window, what))
                    start(asyncio.to_thread(act))
        counts = window >= 0 and within > SETTLING_S
        start(ask(run, run.chance.choice(keys), window if counts else None))
        if run.sent // sample_every > sampled:
            sampled = run.sent // sample_every
            run.memory.append([run.sent, *(replica.gateway.rss_bytes() for replica in run.replicas)])
            run.files.append([run.sent, *(replica.files() for replica in run.replicas)])
    run.attacked.clear()
    await asyncio.gather(*tasks)


def _attacked(window: int) -> bool:
    return window % 4 in (1, 2)


def _disturbances(run: Run, engines: Engines, window: int) -> list[tuple[str, float, Callable[[], None]]]:
    """Return what happens in a window, and when: the same in both windows of a pair."""
    pair = window // 2
    replica = run.replicas[pair % REPLICAS]
    fewer = [url for number, url in enumerate(engines.urls) if number != (pair + 1) % ENGINES]
    return [
        ("an engine leaves", 4.0, lambda: replica.reload(engines=fewer, in_flight=SLOTS + 2)),
        ("an engine is killed", 7.0, lambda: engines.start(pair % ENGINES)),
        ("it joins again", 6.0, lambda: replica.reload()),
    ]


async def soak(
    replicas: list[tuple[Gateway, Path, dict[str, Any]]],
    engines: Engines,
    keys: Sequence[str],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """Run it; return the figures."""
    async with AsyncExitStack() as stack:
        books = [await stack.enter_async_context(ledger(one.url)) for one, _, _ in replicas]
        parts = [Replica(*each, book) for each, book in zip(replicas, books, strict=True)]
        run = Run(parts, random.Random(arguments.seed))  # noqa: S311
        done = asyncio.Event()
        hostile = [
            Attacker(run, {"authorization": f"Bearer {key}"}, f"hostile-{n}") for n, key in enumerate(keys[:HOSTILE])
        ]
        attacks = [asyncio.create_task(attack(who, done)) for who in hostile]
        await drive(run, engines, keys[HOSTILE:], arguments)
        done.set()
        await asyncio.gather(*attacks)
        for replica in parts:
            try:
                await replica.book.settle()
            except AssertionError as error:
                run.wrong[f"not conserved: {error}"] += 1
        metrics = [await read_metrics(replica.book.http, replica.gateway.url) for replica in parts]
    executed, answered = engines.executions()
    run.wrong["executed more than twice"] += sum(count > 2 for count in executed.values())
    run.wrong["answered whole more than once"] += sum(count > 1 for count in answered.values())
    statuses = sum((replica.book.statuses for replica in parts), Counter[int]())
    run.wrong["another tenant was refused by a limit"] += statuses[429]
    ends = Counter(end for replica in parts for end in replica.book.ends.values())
    ratio = paired_p99(run.latencies)
    return {
        "machine": f"{machine()}, load average {os.getloadavg()[1]:.1f}",
        "python": platform.python_version(),
        "command": " ".join(["python -m benchmarks.soak", *sys.argv[1:]]),
        "requests": run.sent,
        "of other tenants": dict(ends),
        "their statuses": dict(sorted(statuses.items())),
        "attacks": {
            kind: dict(run.attacks[kind]) for kind in sorted(run.attacks, key=lambda kind: int(kind.split()[0][1:]))
        },
        "retries": int(
            sum(
                value for each in metrics for name, value in each.items() if name.startswith("lengthwise_retries_total")
            )
        ),
        "wrong": {what: count for what, count in run.wrong.items() if count},
        "p99 ratio": ratio,
        "late": _quantiles(run.late_s),
        "windows": [[len(each), *_quantiles(each)] for each in run.latencies],
        "memory": run.memory,
        "files": run.files,
    }


def paired_p99(windows: Sequence[Sequence[float]]) -> list[float]:
    """Return p99 with attacks over p99 without, over complete pairs, and its interval by a bootstrap of the pairs."""
    whole = windows[:-1]
    pairs = [
        (first, second) if _attacked(2 * number + 1) else (second, first)
        for number, (first, second) in enumerate(zip(whole[0::2], whole[1::2], strict=False))
        if first and second
    ]
    if not pairs:
        return []

    def ratio(chosen: Sequence[int]) -> float:
        without, under = (np.concatenate([pairs[n][side] for n in chosen]) for side in (0, 1))
        return float(np.quantile(under, 0.99) / np.quantile(without, 0.99))

    rows = draw_rows(len(pairs), seed=0, resamples=400)
    return [ratio(range(len(pairs))), *interval([ratio(row.tolist()) for row in rows])]


def _quantiles(seconds: Sequence[float]) -> list[float]:
    return [round(float(q), 4) for q in np.quantile(seconds, [0.5, 0.99])] if seconds else []


@contextmanager
def replicas(
    engines: Engines, folder: Path, arguments: argparse.Namespace
) -> Iterator[tuple[list[tuple[Gateway, Path, dict[str, Any]]], list[str]]]:
    """Run the gateways with one keys file and one secret; yield them and the tenants' keys, the hostile ones first."""
    limits = {"requests_per_minute": 3000, "tokens_per_minute": 100_000, "concurrency": 32}
    hostile = {**limits, "tokens_per_minute": 200_000, "concurrency": 2, "may_declare_length": True}
    file = folder / "keys.json"
    keys = [add_key(file, f"tenant-{n}", hostile if n < HOSTILE else limits) for n in range(TENANTS)]
    config = {
        "engines": engines.urls,
        "keys": str(file),
        "shared_secret": secrets.token_hex(16),
        "predictor": arguments.predictor,
        "state": "off",
        "in_flight": SLOTS,
        "first_byte_timeout_s": 3,
        "silence_timeout_s": 4,
        "write_timeout_s": 2,
        "header_timeout_s": 3,
        "body_timeout_s": 3,
        "breaker_s": 0.5,
        "health_interval_s": 0.2,
        "audit_log": str(folder / "audit.jsonl"),
    }
    with ExitStack() as stack:
        found = []
        for number in range(REPLICAS):
            path = folder / f"replica-{number}.yaml"
            path.write_text(json.dumps(config))
            command = [sys.executable, "-m", "lengthwise", "serve", "--config", str(path), "--port", "{port}"]
            found.append((stack.enter_context(gateway(f"replica {number}", command, ready="/ready")), path, config))
        yield found, keys


def table(kept: dict[str, Any]) -> str:
    """Return the figures as lines."""
    lines = [f"{kept['machine']}; {kept['requests']:,} requests; {kept['command']}"]
    lines += [
        f"other tenants: {kept['of other tenants']}, statuses {kept['their statuses']}; sent again {kept['retries']}"
    ]
    lines += [f"{kind:<34}{statuses}" for kind, statuses in kept["attacks"].items()]
    for attacked, name in ((False, "without attacks"), (True, "with attacks")):
        each = [one for number, one in enumerate(kept["windows"][:-1]) if one[0] and _attacked(number) == attacked]
        if each:
            p50, p99 = (statistics.median(one[place] for one in each) for place in (1, 2))
            count = f"{len(each)} windows, {sum(one[0] for one in each):,} requests"
            lines += [f"{name:<34}{count}, medians of p50 {p50:.3f} s and p99 {p99:.3f} s"]
    if kept["p99 ratio"]:
        lines += ["{:<34}{:.2f} [{:.2f}, {:.2f}]".format("p99 with attacks over without", *kept["p99 ratio"])]
    lines += ["{:<34}p50 {:.3f} s, p99 {:.3f} s".format("requests were sent late", *kept["late"])]
    lines += [f"{'CPU of the gateways':<34}{kept['CPU-ms per request']} ms per request"]
    for what, unit, scale in (("memory", "MiB", 2**20), ("files", "open files", 1)):
        for number in range(REPLICAS):
            settled = [(one[0], one[1 + number] / scale) for one in kept[what] if one[0] >= kept["requests"] / 5]
            quarter = max(1, len(settled) // 4)
            if len(settled) > 1:
                slope = statistics.linear_regression(*zip(*settled, strict=True)).slope
                first, last = (
                    statistics.median(value for _, value in part) for part in (settled[:quarter], settled[-quarter:])
                )
                grown = f"{first:.1f} {unit} in the second fifth, {last:.1f} in the last"
                lines += [f"{f'{what}, replica {number}':<34}{grown}, {1000 * slope:+.3f} per 1,000 requests"]
    return "\n".join([*lines, f"{'wrong':<34}{kept['wrong'] or 'nothing'}"])


def main() -> None:
    """Run the soak."""
    arguments = options(
        __doc__,
        requests=200_000,
        rate=120.0,
        seed=1,
        predictor="fast",
        write=False,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engines = Engines(arguments, folder / "journal")
        with engines.running(), replicas(engines, folder, arguments) as (gateways, keys):
            before = sum(one.cpu_s() for one, _, _ in gateways)
            kept = asyncio.run(soak(gateways, engines, keys, arguments))
            kept["CPU-ms per request"] = round(
                1000 * (sum(one.cpu_s() for one, _, _ in gateways) - before) / kept["requests"], 3
            )
    print(table(kept))
    if arguments.write:
        FILE.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    if kept["wrong"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
