"""What the dashboard shows of a gateway: the state of one worker, and the states of all workers as one.

With `--workers N` each worker answers on a Unix socket in the workers' private folder. The worker that a viewer is
connected to asks the others once a second, so that nothing is exchanged while no page is open.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.gateway.recent_requests import ROW, Names, Rows

_log = logging.getLogger(__name__)

_TENANT: Final = 4  # in a request of `queue` and `slots`
_ANSWER_S: Final = 2.0
_LINE_BYTES: Final = 1 << 20
_STATES: Final = ("closed", "half_open", "open", "leaving", "down")


@dataclass(frozen=True)
class DashboardState:
    """One worker now: its counts, the first requests of its queue and slots, and the requests that have ended."""

    counts: dict[str, Any]
    """JSON: `added`, `waiting`, `running`, `failed`, `engines`, `queue`, `slots`, and the names that rows refer to."""
    rows: Rows


def merged_state(states: Mapping[int, DashboardState], workers: int, policies: Names, tenants: Names) -> DashboardState:
    """Return the states of several of the `workers` as one, by the numbers of `policies` and `tenants`.

    Counts, running requests and slots are summed; an engine has the worst state that a worker sees. The queues are
    interleaved: the first request of each worker, then the second of each.
    """
    queue, slots, rows = [], [], []
    engines: dict[str, list[dict[str, Any]]] = {}
    for worker, state in sorted(states.items()):
        tenant = [tenants.number(name) for name in state.counts["tenants"]]
        policy = [policies.number(name) for name in state.counts["policies"]]
        for place, each in enumerate(state.counts["queue"]):
            queue.append((place, worker, _renumbered(each, workers, worker, tenant)))
        slots += [_renumbered(each, workers, worker, tenant) for each in state.counts["slots"]]
        for engine in state.counts["engines"]:
            engines.setdefault(engine["name"], []).append(engine)
        if len(state.rows):
            own = state.rows.copy()
            own["number"] = own["number"] * workers + worker
            own["tenant"] = np.asarray(tenant)[own["tenant"]]
            own["policy"] = np.asarray(policy)[own["policy"]]
            rows.append(own)
    together = np.concatenate(rows) if rows else np.zeros(0, ROW)
    counts = {name: sum(state.counts[name] for state in states.values()) for name in ("waiting", "running", "failed")}
    counts["engines"] = [_one_engine(seen) for seen in engines.values()]
    counts["queue"] = [each for *_, each in sorted(queue)]
    counts["slots"] = sorted(slots, key=lambda each: -each[-1])  # the longest running first
    return DashboardState(counts, together[np.argsort(together["ended_s"], kind="stable")])


def _renumbered(request: Sequence[Any], workers: int, worker: int, tenant: Sequence[int]) -> list[Any]:
    number, *rest = request
    return [number * workers + worker, *rest[: _TENANT - 1], tenant[request[_TENANT]], *request[_TENANT + 1 :]]


def _one_engine(seen: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an engine as all workers see it; what it reports itself is the same for all, and may come late to one."""
    reported = {
        name: next((each[name] for each in seen if each[name] is not None), None)
        for name in ("kv", "kv_tokens", "prefix")
    }
    summed = {name: sum(each[name] for each in seen) for name in ("running", "slots")}
    return {**seen[0], **reported, **summed, "state": max((each["state"] for each in seen), key=_STATES.index)}


class StateExchange:
    """Asks the other workers of a gateway for their states, and answers them; alone, it returns the own state only."""

    def __init__(self, own: Callable[[int | None], DashboardState]) -> None:
        """`own` returns the state with the requests that ended since that many; None: those of the last hour."""
        self._own = own
        self._folder: Path | None = None
        self.number = 0

    def join(self, folder: Path, number: int) -> None:
        """Be worker `number` of those whose sockets are in `folder`."""
        self._folder, self.number = folder, number

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer the other workers, if there are any."""
        if self._folder is None:
            yield
            return
        path = self._folder / f"{self.number}.sock"
        path.unlink(missing_ok=True)  # of a worker that died
        try:
            server = await asyncio.start_unix_server(self._answer, path)
        except OSError as error:  # a path of more than 107 bytes
            _log.warning("the dashboard of other workers does not show worker %d: %s", self.number, error)
            yield
            return
        try:
            yield
        finally:
            server.close()

    async def states(self, since: Mapping[int, int] | None = None) -> dict[int, DashboardState]:
        """Return the states of the workers that answer, by number, with the requests that ended since; None: all."""
        others: dict[int, Path] = {}
        if self._folder is not None:
            others = {int(path.stem): path for path in self._folder.glob("*.sock") if int(path.stem) != self.number}
        asked = (self._ask(path, None if since is None else since.get(number, 0)) for number, path in others.items())
        answers = await asyncio.gather(*asked)
        own = self._own(None if since is None else since.get(self.number, 0))
        found = {number: answer for number, answer in zip(others, answers, strict=True) if answer is not None}
        return {self.number: own, **found}

    async def _ask(self, path: Path, since: int | None) -> DashboardState | None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):  # it stops, starts or is busy
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES)
                try:
                    writer.write(json.dumps(since).encode() + b"\n")
                    counts = json.loads(await reader.readline())
                    data = await reader.readexactly(counts.pop("bytes"))
                finally:
                    writer.close()
            return DashboardState(counts, np.frombuffer(data, ROW))
        return None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError):  # the other worker has ended
            state = self._own(json.loads(await reader.readline()))
            data = state.rows.tobytes()
            writer.write(json.dumps({**state.counts, "bytes": len(data)}).encode() + b"\n" + data)
            await writer.drain()
        writer.close()
