"""Several workers on one port share limits, apply one another's changes and are restarted."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lengthwise.gateway.config import EngineConfig, GatewayConfig, TenantConfig
from lengthwise.gateway.metrics import merged_metrics
from lengthwise.gateway.workers import _Change, _Worker
from tests.gateway.engine import StandIn, free_port, served, wait_for
from tests.gateway.helpers import PLAIN, body

WORKERS = 2


def fetch(url: str, data: object = None, method: str | None = None) -> str:
    """Return an answer; every call opens a connection, so any worker may accept it."""
    raw = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(url, raw, {"content-type": "application/json"}, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
        return str(response.read().decode())


def worker_pids(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in map(int, children) if b"spawn_main" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it ended since its parent was read
        return b""


@pytest.fixture
def engine() -> Iterator[str]:
    with served(StandIn(token_s=0.001).app()) as url:
        yield url


@pytest.fixture
def serving(engine: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    port, config = free_port(), tmp_path / "fleet.yaml"
    config.write_text(json.dumps({"engines": [engine], "policy": "fcfs", "predictor": "none"}))
    command = [sys.executable, "-m", "lengthwise", "serve", "--config", str(config), "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--workers", str(WORKERS)], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: b"serving on" in (tmp_path / "log").read_bytes() or process.poll() is not None, 180)
        assert process.poll() is None, (tmp_path / "log").read_text()
        yield process, url, config
    finally:
        process.kill()
        process.wait()


def policies(url: str) -> set[str]:
    """Return the policies in use, by the metrics of all workers."""
    found = re.findall(r'^lengthwise_policy\{worker="(\d)",policy="(\w+)"\} 1', fetch(url + "/metrics"), re.MULTILINE)
    assert len({worker for worker, _ in found}) in (1, WORKERS)
    return {policy for _, policy in found} if len(found) == WORKERS else {"not all yet"}


def running(url: str) -> float:
    found = re.findall(r"^lengthwise_requests_running\{.*\} (\S+)$", fetch(url + "/metrics"), re.MULTILINE)
    return sum(map(float, found))


def snapshots(url: str) -> Iterator[dict[str, Any]]:
    """The dashboard's snapshots, from any worker."""
    with urllib.request.urlopen(f"{url}/lengthwise/v1/events", timeout=20) as response:  # noqa: S310
        name = b""
        for line in response:
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"snapshot":
                yield json.loads(line[6:])


def received(url: str) -> list[float]:
    """The requests that each worker has received."""
    found = re.findall(r"^lengthwise_requests_received_total\{.*\} (\S+)$", fetch(url + "/metrics"), re.MULTILINE)
    return [float(each) for each in found]


def answers(url: str) -> bool:
    try:
        return "choices" in fetch(url + PLAIN, body())
    except OSError:
        return False


def test_changes_and_reloads_reach_all_workers_and_a_dead_worker_is_replaced(
    serving: tuple[subprocess.Popen[bytes], str, Path],
) -> None:
    process, url, config = serving
    assert all(answers(url) for _ in range(10))
    fetch(url + "/lengthwise/v1/policy", {"policy": "sjf"}, "PUT")
    wait_for(lambda: policies(url) == {"sjf"}, 20)

    before = worker_pids(process.pid)
    assert len(before) == WORKERS
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: len(set(worker_pids(process.pid)) - set(before)) == 1, 30)
    assert before[1] in worker_pids(process.pid)
    wait_for(lambda: policies(url) == {"sjf"}, 30)  # the new worker has it, too
    assert all(answers(url) for _ in range(10))

    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"policy": "ltr"}))
    process.send_signal(signal.SIGHUP)
    wait_for(lambda: policies(url) == {"ltr"}, 20)

    workers = worker_pids(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_stopping_gateway_finishes_the_requests_of_all_workers(
    serving: tuple[subprocess.Popen[bytes], str, Path],
) -> None:
    process, url, _ = serving
    raw = json.dumps(body(tokens=3000)).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PLAIN.encode(), len(raw))
    host, port = url.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=30) for _ in range(6)]
    for sock in sockets:
        sock.sendall(head + raw)
    wait_for(lambda: running(url) == 6, 20)
    process.send_signal(signal.SIGTERM)
    replies = []
    for sock in sockets:
        with sock:
            replies.append(sock.recv(65536))
    assert all(reply.startswith(b"HTTP/1.1 200") for reply in replies)
    assert process.wait(30) == 0


def test_the_dashboard_queue_and_explanations_of_any_worker_show_the_requests_of_all(
    serving: tuple[subprocess.Popen[bytes], str, Path],
) -> None:
    process, url, _ = serving
    raw = json.dumps(body(tokens=1_000_000)).encode()
    head = "POST {} HTTP/1.1\r\nhost: x\r\nx-request-id: id-{}\r\ncontent-length: {}\r\n\r\n"
    host, port = url.removeprefix("http://").split(":")
    sockets: list[socket.socket] = []
    while len(sockets) < 40:  # until both workers have accepted some
        sockets.append(socket.create_connection((host, int(port)), timeout=30))
        sockets[-1].sendall(head.format(PLAIN, len(sockets) - 1, len(raw)).encode() + raw)
        wait_for(lambda: running(url) == len(sockets), 20)
        if len(sockets) >= 4 and all(received(url)):
            break
    assert len(received(url)) == WORKERS
    for _ in range(4):  # whichever worker answers
        snapshot = next(snapshots(url))
        assert (snapshot["workers"], snapshot["running"]) == (WORKERS, len(sockets))
        assert [engine["running"] for engine in snapshot["engines"]] == [len(sockets)]
        assert len({row[0] for row in snapshot["slots"]}) == min(24, len(sockets))
        own = url + "/lengthwise/v1/"
        (engine,) = json.loads(fetch(own + "engines"))["engines"]
        assert engine["running"] == len(sockets)
        queues = json.loads(fetch(own + "queue"))["queues"]
        assert [queue["worker"] for queue in queues] == list(range(WORKERS))
        assert sum(queue["running"] for queue in queues) == len(sockets)
        found = [json.loads(fetch(f"{own}explain/id-{number}"))["requests"] for number in range(len(sockets))]
        assert [len(requests) for requests in found] == [1] * len(sockets)
        assert {request["worker"] for (request,) in found} == set(range(WORKERS))

    os.kill(worker_pids(process.pid)[0], signal.SIGKILL)
    wait_for(lambda: len(worker_pids(process.pid)) == WORKERS and len(received(url)) == WORKERS, 30)
    wait_for(lambda: next(snapshots(url))["workers"] == WORKERS, 30)  # including the new one
    for sock in sockets:
        sock.close()


def test_each_worker_has_its_share_of_the_limits() -> None:
    engines = (EngineConfig(url="http://a"), EngineConfig(url="http://b", in_flight=3))
    config = GatewayConfig(engines=engines, in_flight=5, workers=2)
    shares = [config.share_of(number) for number in range(2)]
    assert [share.in_flight for share in shares] == [3, 2]
    assert [share.engines[1].in_flight for share in shares] == [2, 1]
    assert sum(share.max_waiting for share in shares) == config.max_waiting
    assert [share.max_connections for share in shares] == [None, None]
    joining = EngineConfig(url="http://c", in_flight=7)
    assert [config.engine_share(joining, number).in_flight for number in range(2)] == [4, 3]
    tenant = TenantConfig(name="t", requests_per_minute=600, concurrency=1).shared_by(4)
    assert (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.concurrency) == (150, None, 1)


def test_changes_of_the_engines_are_repeated_in_their_order_and_a_policy_waits_for_none() -> None:
    order: list[str] = []
    joins = asyncio.Event()

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        if scope["method"] == "POST":
            await joins.wait()
        order.append(scope["method"])

    async def repeat() -> None:
        supervisor, link = multiprocessing.Pipe()
        worker = _Worker(app, link, None)  # type: ignore[arg-type]
        with supervisor, link:
            engines = "/lengthwise/v1/engines"
            for method, path in (("POST", engines), ("DELETE", f"{engines}/a"), ("PUT", "/lengthwise/v1/policy")):
                supervisor.send(_Change({"method": method, "path": path}, b""))
                worker._take()
            await asyncio.sleep(0.01)
            joins.set()
            await asyncio.gather(*worker._tasks)

    asyncio.run(repeat())
    assert order == ["PUT", "POST", "DELETE"]


def test_metrics_of_workers_are_merged_by_family() -> None:
    text = '# HELP a Text.\n# TYPE a gauge\na 1.0\n# HELP b Text.\n# TYPE b counter\nb{x="{y} z"} 2.0\n'
    assert merged_metrics({1: text, 0: text}).splitlines() == [
        "# HELP a Text.",
        "# TYPE a gauge",
        'a{worker="0"} 1.0',
        'a{worker="1"} 1.0',
        "# HELP b Text.",
        "# TYPE b counter",
        'b{worker="0",x="{y} z"} 2.0',
        'b{worker="1",x="{y} z"} 2.0',
    ]
