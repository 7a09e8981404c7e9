"""What the dashboard shows of a gateway: the state of one worker, and the states of all workers as one.

The worker that a viewer is connected to asks the others once a second; nothing is exchanged while no page is open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lengthwise.gateway.recent_requests import ROW, Names, Rows

_TENANT: Final = 4  # in a request of `queue` and `slots`
_STATES: Final = ("closed", "half_open", "open", "leaving", "down")


@dataclass(frozen=True)
class DashboardState:
    """One worker now: its counts, the first requests of its queue and slots, and the requests that have ended."""

    counts: dict[str, Any]
    """JSON: `added`, `waiting`, `running`, `failed`, `engines`, `queue`, `slots`, and the names that rows refer to."""
    rows: Rows

    def to_bytes(self) -> bytes:
        """Return the state for another worker: the counts on a line, then the rows."""
        return json.dumps(self.counts).encode() + b"\n" + self.rows.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> DashboardState:
        """Read what `to_bytes` has returned."""
        counts, _, rows = data.partition(b"\n")
        return cls(json.loads(counts), np.frombuffer(rows, ROW))


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
