"""The dashboard's state of several workers as one: sums, names, numbers, and workers that do not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.gateway.dashboard_state import DashboardState, StateExchange, merged_state
from lengthwise.gateway.recent_requests import ROW, Names

pytestmark = pytest.mark.anyio


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


def test_counts_are_summed_and_names_have_the_same_number_whichever_worker_saw_them_first() -> None:
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


def test_requests_of_different_workers_keep_different_numbers_whichever_workers_answer() -> None:
    states = {number: state(tenants=["a"], ended=(1.0,), queue=2) for number in range(3)}
    names = Names(), Names()
    all_three = merged_state(states, 3, *names).counts["queue"]
    assert len({each[0] for each in all_three}) == 6
    two = merged_state({0: states[0], 2: states[2]}, 3, *names).counts["queue"]
    assert {each[0] for each in two} < {each[0] for each in all_three}


async def test_workers_exchange_their_states_and_one_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    asked: list[int | None] = []

    def own(since: int | None) -> DashboardState:
        asked.append(since)
        return state(tenants=["a"], ended=(1.0, 2.0), queue=1)

    exchanges = [StateExchange(own) for _ in range(2)]
    for number, exchange in enumerate(exchanges):
        exchange.join(tmp_path, number)
    (tmp_path / "2.sock").touch()  # of a worker that was killed
    async with exchanges[0].serving(), exchanges[1].serving():
        found = await exchanges[0].states()
        assert sorted(found) == [0, 1]
        assert (found[1].rows == found[0].rows).all()
        assert found[1].counts == found[0].counts
        await exchanges[1].states({0: 5, 1: 6})
        assert asked == [None, None, 5, 6]
        reader, writer = await asyncio.open_unix_connection(tmp_path / "0.sock")
        writer.write(b"not a number\n")
        assert await reader.read() == b""
        writer.close()
        assert sorted(await exchanges[1].states()) == [0, 1]


async def test_without_other_workers_there_is_the_own_state_only() -> None:
    exchange = StateExchange(lambda _since: state(tenants=["a"]))
    async with exchange.serving():
        assert list(await exchange.states()) == [0]
