"""The property that holds after any fault: every request ends once, and the gateway holds nothing for it afterwards.

accepted = answered + failed, no request is answered twice, and queue entries, slots, open answers, held bytes, tasks
and connections are back to what they were.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from tests.gateway.helpers import PLAIN, body

End = Literal["answered", "failed", "left", "lost"]
_numbers = itertools.count()
_CONNECTED = {"01", "08"}  # established, and closed by the client only


@dataclass
class Ledger:
    """The requests that a test sends to one gateway, and their outcomes."""

    http: aiohttp.ClientSession
    url: str
    before: dict[str, float]
    ends: dict[str, End] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    retry_after: list[str] = field(default_factory=list)
    """The headers of refusals."""
    _sent: int = 0

    async def ask(
        self, *, stream: bool, tokens: int = 5, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> str:
        """Send a request and read its answer to the end; return its name."""
        self._sent += 1
        name = f"request-{next(_numbers)}"
        self.ends[name] = "lost"
        try:
            sent = body(name, tokens, stream=stream, **fields)
            async with self.http.post(self.url + PLAIN, json=sent, headers=headers) as response:
                self.statuses[response.status] += 1
                self.retry_after += response.headers.getall("retry-after", [])
                self.ends[name] = _end(response, await response.read())
        except asyncio.CancelledError:
            self.ends[name] = "left"
            raise
        except aiohttp.ClientError:
            pass
        return name

    async def load(self, requests: int, **fields: Any) -> None:
        """Send requests at once, every second one streamed."""
        await asyncio.gather(*(self.ask(stream=n % 2 == 0, **fields) for n in range(requests)))

    def count(self, *ends: End) -> int:
        return sum(end in ends for end in self.ends.values())

    def assert_all_answered(self) -> None:
        assert self.count("answered") == len(self.ends), f"statuses {self.statuses}, ends {Counter(self.ends.values())}"

    async def settle(self, answered_by_engines: Iterable[str] = ()) -> None:
        """Wait until the gateway has ended every request, and check the property."""
        assert self.count("lost") == 0, "a connection ended without an answer"
        names = [name for name in answered_by_engines if name in self.ends]
        assert len(names) == len(set(names)), "an engine answered a request twice"
        until = time.monotonic() + 60.0
        while (wrong := self._left(await read_metrics(self.http, self.url))) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        assert not wrong, f"left behind: {wrong}"

    def _left(self, now: dict[str, float]) -> dict[str, float]:
        """Return the figures that differ from those before the requests."""
        grown = {name: value - self.before.get(name, 0.0) for name, value in now.items()}
        ended = {name: value for name, value in grown.items() if name.startswith("lengthwise_requests_total{")}
        ok = sum(value for name, value in ended.items() if 'outcome="ok"' in name)
        wrong = {
            "received and not ended": grown["lengthwise_requests_received_total"] - sum(ended.values()),
            "sent and not received": max(0.0, self._sent - self.count("left") - sum(ended.values())),
            "answered and not counted as ok": max(0.0, self.count("answered") - ok),
            "bugs": sum(value for name, value in ended.items() if 'outcome="bug"' in name),
            "waiting": now["lengthwise_requests_waiting"],
            "held bytes": now["lengthwise_held_bytes"],
            "tasks": max(0.0, grown["lengthwise_tasks"]),
            "connections": max(0.0, connections(self.url) - 1.0),  # one is of this check, or just closed
        }
        gauges = ("lengthwise_requests_running{", "lengthwise_engine_answers_open{")
        wrong |= {name: value for name, value in now.items() if name.startswith(gauges)}
        return {name: value for name, value in wrong.items() if value}


@asynccontextmanager
async def ledger(url: str) -> AsyncIterator[Ledger]:
    """Yield a ledger of requests over connections that are not reused."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as http:
        yield Ledger(http, url, await read_metrics(http, url))


async def read_metrics(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with http.get(url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def connections(url: str) -> int:
    """Connections of clients that the server at `url` has not closed."""
    port = f":{int(url.rsplit(':', 1)[1]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(port) and row[3] in _CONNECTED for row in rows)


def _end(response: aiohttp.ClientResponse, data: bytes) -> End:
    """Return the outcome of an answer: answered, failed with an error, or lost."""
    if response.status != 200:
        return "failed" if data else "lost"
    if response.content_type != "text/event-stream":
        return "answered"
    last = data.strip().rpartition(b"\n\n")[2]
    if last == b"data: [DONE]":
        return "answered"
    return "failed" if last.startswith(b'data: {"error":') else "lost"
