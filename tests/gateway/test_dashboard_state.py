"""The dashboard merges the states of several workers: sums, names and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lengthwise.gateway.dashboard import DashboardState, merged_state
from lengthwise.gateway.recent_requests import ROW, Names


def engine(name: str, state: str = "closed", kv: float | None = None) -> dict[str, Any]:
    return {"name": name, "state": state, "running": 2, "slots": 3, "kv": kv, "kv_tokens": None, "prefix": None}


def state(*, tenants: list[str], ended: tuple[float, ...] = (), queue: int = 0, **engines: Any) -> DashboardState:
    rows = np.zeros(len(ended), ROW)
    rows["ended_s"], rows["number"], rows["tenant"] = ended, range(len(ended)), len(tenants) - 1
    counts = {
        "added": len(ended),
        "waiting": queue,
        "running": 2,
        "failed": 1,
        "engines": [engine("e", **engines)],
        "queue": [[place, 5.0, 1.0, 900, 0, 2, 10, 0.5] for place in range(queue)],
        "slots": [[7, 5.0, 1.0, 900, 0, 2, 10, "e", 4, float(queue)]],
        "policies": ["fcfs"],
        "tenants": tenants,
    }
    return DashboardState(counts, rows)


def test_counts_are_summed_and_names_numbered_consistently_over_workers() -> None:
    tenants = Names()
    first = state(tenants=["a", "b"], ended=(1.0, 4.0), queue=2, kv=0.5)
    second = state(tenants=["b"], ended=(2.0,), queue=1, state="open")
    found = merged_state({0: first, 1: second}, 2, Names(), tenants)
    assert {name: found.counts[name] for name in ("waiting", "running", "failed")} == {
        "waiting": 3,
        "running": 4,
        "failed": 2,
    }
    assert found.counts["engines"] == [{**engine("e", "open", 0.5), "running": 4, "slots": 6}]
    assert found.rows["ended_s"].tolist() == [1.0, 2.0, 4.0]
    assert [tenants.names[number] for number in found.rows["tenant"]] == ["b", "b", "b"]
    assert [tenants.names[each[4]] for each in found.counts["queue"]] == ["a", "b", "a"]  # interleaved


def test_requests_of_different_workers_have_different_stable_numbers() -> None:
    states = {number: state(tenants=["a"], ended=(1.0,), queue=2) for number in range(3)}
    names = Names(), Names()
    all_three = merged_state(states, 3, *names).counts["queue"]
    assert len({each[0] for each in all_three}) == 6
    two = merged_state({0: states[0], 2: states[2]}, 3, *names).counts["queue"]
    assert {each[0] for each in two} < {each[0] for each in all_three}


def test_a_state_is_encoded_and_decoded_unchanged() -> None:
    sent = state(tenants=["a"], ended=(1.0, 2.0), queue=1)
    received = DashboardState.from_bytes(sent.to_bytes())
    assert received.counts == sent.counts
    assert (received.rows == sent.rows).all()
