"""What the worst bodies cost a gateway: memory over their bytes, and the time that they hold the event loop up.

    python -m benchmarks.bodies [--repeats 5]

Each body is read as the gateway reads it (`bodies.parse`, a job, `condense`), in a process of its own: small ones in
the event loop, large ones in a thread beside it. `held` is what Python holds after reading, the body included, over its
bytes (tracemalloc); `peak` the growth of resident memory while it is read, the body included, over its bytes, and in
MiB: of a tenant one large body is read at a time, of all two. `loop` is the longest time in which the loop came to
nothing else, over the time that reading a body of 10 kB takes in the same process: the least of the repeats, since
other load on the machine only adds to it; `idle` is the same without a body. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lengthwise.gateway.bodies import ChatBody, CompletionBody, parse
from lengthwise.gateway.config import GatewayConfig
from lengthwise.gateway.errors import ApiError
from lengthwise.gateway.json_fields import LARGE_BODY
from lengthwise.gateway.json_outline import MAX_CONTAINERS, MAX_ELEMENTS
from lengthwise.gateway.server import SWITCH_S
from lengthwise.gateway.streaming import BodyBudget

_LIMIT: Final[int] = GatewayConfig.model_fields["max_body_bytes"].default
_SMALL: Final = json.dumps({"model": "m", "messages": [{"role": "user", "content": "word " * 2000}]}).encode()


def _prompt(element: bytes, count: int) -> bytes:
    return b'{"model":"m","prompt":[' + b",".join([element] * count) + b"]}"


def _chat(**message: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [message]}, ensure_ascii=False).encode()


_ROOM: Final = _LIMIT - 1000
BODIES: Final[dict[str, Callable[[], bytes]]] = {
    "10 kB of text": lambda: _SMALL,
    "empty objects, 64 KiB": lambda: _prompt(b"{}", LARGE_BODY // 3 - 20),
    "empty objects, as many as may be": lambda: _prompt(b"{}", MAX_CONTAINERS - 2),
    "objects of one member": lambda: _prompt(b'{"":0}', MAX_CONTAINERS - 2),
    "arrays in metadata": lambda: b'{"model":"m","metadata":[' + b",".join([b"[]"] * (MAX_CONTAINERS - 2)) + b"]}",
    "a million token ids": lambda: _prompt(b"123456", 1_000_000),
    "a million digits": lambda: _prompt(b"7", 1_000_000),
    "texts of 48 bytes": lambda: _prompt(b'"' + b"x" * 46 + b'"', MAX_ELEMENTS - 10),
    "messages without a text": lambda: json.dumps({"model": "m", "messages": [{}] * (MAX_CONTAINERS - 2)}).encode(),
    "one text, 50 MiB": lambda: _chat(role="user", content="x" * _ROOM),
    "one text with an emoji, 50 MiB": lambda: _chat(role="user", content="😀" + "x" * _ROOM),
    "one text of escapes, 50 MiB": lambda: _chat(role="user", content='"' * (_ROOM // 2)),
    "refused: too many objects, 3.1 MB": lambda: _prompt(b"{}", 1_030_000),
}


def _read(raw: bytes) -> tuple[CompletionBody, Any] | None:
    try:
        body = parse(ChatBody if b'"messages"' in raw[:100] else CompletionBody, raw)
    except ApiError:
        return None
    job = body.job("1", 0.0, {})
    body.condense()
    return body, job


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) * 1024


async def _held_up_s(raw: bytes, idle_s: float = 0.0) -> float:
    """Return the longest time in which the event loop came to nothing else while a body was read, or for `idle_s`."""
    budget, loop = BodyBudget(1 << 30), asyncio.get_running_loop()
    if len(raw) < LARGE_BODY:
        began = time.perf_counter()
        _read(raw)
        return time.perf_counter() - began
    work = asyncio.sleep(idle_s) if idle_s else budget.read("tenant", lambda: _read(raw))
    reading = loop.create_task(work)
    longest, last = 0.0, time.perf_counter()
    while not reading.done():
        await asyncio.sleep(0.0002)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


def measure(name: str, repeats: int) -> dict[str, float]:
    """Return the costs of one body."""
    sys.setswitchinterval(SWITCH_S)
    _read(_SMALL)
    _read(_SMALL + b" " * LARGE_BODY)  # what is loaded once
    raw = BODIES[name]()
    gc.collect()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
    kept = _read(raw)
    size, peak = len(raw), max(0, _memory("VmHWM") - before)
    del kept
    small = statistics.median(asyncio.run(_held_up_s(_SMALL)) for _ in range(20 * repeats))
    began = time.perf_counter()
    _read(raw)
    took_s = time.perf_counter() - began
    idle = min(asyncio.run(_held_up_s(b" " * LARGE_BODY, took_s)) for _ in range(repeats))
    loop = min(asyncio.run(_held_up_s(raw)) for _ in range(repeats))
    tracemalloc.start()
    kept = _read(raw)
    held, _ = tracemalloc.get_traced_memory()
    del kept
    return {
        "bytes": size,
        "held": 1 + held / size,
        "peak": 1 + peak / size,
        "MiB": (size + peak) / (1 << 20),
        "loop": loop / small,
        "idle": idle / small,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=BODIES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measure(given.only, given.repeats)))
        return
    print("| body | bytes | held | peak | MiB | loop | idle |\n|---|---|---|---|---|---|---|")
    for name in BODIES:
        command = [sys.executable, "-m", "benchmarks.bodies", "--only", name, "--repeats", str(given.repeats)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603
        figures = " | ".join(f"{found[column]:.1f}" for column in ("held", "peak", "MiB", "loop", "idle"))
        print(f"| {name} | {found['bytes']:,.0f} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
