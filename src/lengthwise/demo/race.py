"""A race: the same requests at the same times to two gateways, what each client sees, and the verdict.

The left gateway serves first come, first served; the right one by the policy and the predicted lengths that are chosen.
Both may be changed while the race runs: figures and verdict are then of the requests that were sent since, on both
sides. A race ends when every request is answered.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from lengthwise.client.client import EngineClient, EngineError
from lengthwise.client.load import Sample, send_request
from lengthwise.demo.results import COMMANDS, WITHIN_S, decode_rate, live_figures, race_document, recent_latency
from lengthwise.demo.traffic import MAX_LOAD, MIN_LOAD, RaceTraffic
from lengthwise.errors import InputError
from lengthwise.policies import make_policy
from lengthwise.reports.page import Document
from lengthwise.reports.verdict import Verdict
from lengthwise.simulator.grid import BASELINE

State = Literal["running", "draining", "ended"]

OFFERED_POLICIES: Final = ("lengthwise", "sjf", "tie", "srpt", "fcfs")

_SHOWN: Final = 60  # waiting requests, in the order of the queue
_FASTER: Final = 4
"""How much faster the first requests arrive, where arrivals are drawn: without a queue there is nothing to see."""
_POINT_S: Final = 1.0
_MAX_POINTS: Final = 900


@dataclass(slots=True, eq=False)
class _Open:
    """A request that is not answered."""

    number: int
    row: int
    sample: Sample
    slot: int | None = None


@dataclass(eq=False)
class Side:
    """One gateway and what its client sees."""

    url: str
    policy: str
    token: str
    client: EngineClient
    samples: list[Sample] = field(default_factory=list)
    open: dict[int, _Open] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    """Numbers of waiting requests, the next first, as the gateway has last reported them."""

    async def use(self, policy: str) -> None:
        """Change the policy by the gateway's admin API."""
        headers = {"authorization": f"Bearer {self.token}"}
        body = json.dumps({"policy": policy}).encode()
        status, answer = await self.client.fetch("/lengthwise/v1/policy", body, headers=headers)
        if status != 200:
            raise InputError(json.loads(answer)["error"]["message"])
        self.policy = policy

    async def ask_order(self) -> None:
        """Ask the gateway for the order of its queue; a gateway that ends keeps the last one."""
        with suppress(EngineError, ValueError, LookupError):
            _, answer = await self.client.fetch(f"/lengthwise/v1/queue?limit={_SHOWN}")
            queues = json.loads(answer)["queues"]
            self.order = [int(each["request_id"]) for queue in queues for each in queue["requests"]]

    def waiting(self) -> list[_Open]:
        """Requests without a first token, in the order of the queue, then of arrival; those in prefill come first."""
        place = {number: at for at, number in enumerate(self.order)}
        found = [each for each in self.open.values() if math.isnan(each.sample.first_token_s)]
        newest = max(place, default=-1)

        def key(each: _Open) -> tuple[int, int]:
            at = place.get(each.number)
            return (
                (1, at)
                if at is not None
                else (0 if each.number < newest and not len(place) >= _SHOWN else 2, each.number)
            )

        return sorted(found, key=key)

    def running(self, slots: int) -> list[_Open]:
        """Requests with a first token; each keeps its slot to the end."""
        found = [each for each in self.open.values() if not math.isnan(each.sample.first_token_s)]
        free = iter(sorted(set(range(slots)) - {each.slot for each in found if each.slot is not None}))
        for each in found:
            if each.slot is None:
                each.slot = next(free, slots - 1)
        return found


class Race:
    """The state of the race; `run` drives it until it has ended, and again after `restart`."""

    def __init__(self, traffic: RaceTraffic, urls: Sequence[str], token: str, policy: str, seconds_s: float) -> None:
        self.traffic = traffic
        self.load = traffic.load
        self.predictor = next(iter(traffic.plans))
        self.state: State = "running"
        self.verdict: Verdict | None = None
        self.late_s = 0.0
        self.points: list[list[float | None]] = []
        self.ended = asyncio.Event()
        self.laps = 0
        self._burst = traffic.fleet.slots * 3 // 2 if traffic.drawn else 0
        self._seconds_s = seconds_s
        self._loads = {self.load}
        self._since = 0  # the first request that figures are of
        self._changed_s = 0.0
        self._began = time.perf_counter()
        self._finish = asyncio.Event()
        self._again = asyncio.Event()
        policies = (BASELINE, policy)
        self.sides = [
            Side(url, name, token, EngineClient(url, keep=False)) for url, name in zip(urls, policies, strict=True)
        ]

    def clock(self) -> float:
        """Seconds since the race began."""
        return time.perf_counter() - self._began

    async def __aenter__(self) -> Self:
        """Open the connections to the gateways; before that there are no frames."""
        for side in self.sides:
            await side.client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for side in self.sides:
            await side.client.close()

    async def run(self, *, once: bool) -> None:
        """Run a race, and another whenever `restart` is called, unless `once`."""
        while True:
            await self._lap()
            if self.state == "ended" and once:
                return
            await self._again.wait()

    async def _lap(self) -> None:
        self._again.clear()
        self._finish.clear()
        self.ended.clear()
        self.state, self.verdict, self._since, self._changed_s = "running", None, 0, 0.0
        self._loads = {self.load}
        self.points.clear()
        self.laps += 1
        for side in self.sides:
            side.samples.clear()
            side.open.clear()
            side.order.clear()
        self._began = time.perf_counter()
        watching = asyncio.create_task(self._watch())
        restarting = asyncio.create_task(self._again.wait())
        sending = asyncio.create_task(self._send())
        try:
            await asyncio.wait([sending, restarting], return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
                self.verdict = self.document().verdict
                self.state = "ended"
                self.ended.set()
        finally:
            for task in (watching, restarting, sending):
                task.cancel()
            await asyncio.gather(watching, restarting, sending, return_exceptions=True)

    async def _send(self) -> None:
        """Send requests at the rate of the moment, the same to both sides; return once all are answered."""
        due, number = self.clock(), 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                row = number % len(self.traffic)
                rate = self.load * self.traffic.capacity_per_s * (_FASTER if number < self._burst else 1)
                due += self.traffic.gaps[row] / rate
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._finish.wait(), max(0.0, min(due, self._seconds_s) - self.clock()))
                if self._finish.is_set() or self.clock() >= self._seconds_s:
                    break
                path, body = self.traffic.request(row, self.predictor)
                for side in self.sides:
                    tasks.create_task(self._one(side, number, row, path, body))
                number += 1
            self.state = "draining"

    async def _one(self, side: Side, number: int, row: int, path: str, body: bytes) -> None:
        sample = Sample(number, self.clock(), int(self.traffic.workload.output_tokens[row]))
        side.samples.append(sample)
        side.open[number] = _Open(number, row, sample)
        try:
            await send_request(side.client, path, body, sample, self._began, {"x-request-id": str(number)})
        finally:
            side.open.pop(number, None)

    async def _watch(self) -> None:
        """Add a point of the latency curves every second."""
        while True:
            await asyncio.sleep(_POINT_S)
            now = self.clock()
            self.points.append(
                [round(now, 1), *(value for side in self.sides for value in recent_latency(side.samples, now))]
            )
            del self.points[:-_MAX_POINTS]

    async def control(self, wanted: Mapping[str, Any]) -> None:
        """Change load, policy or predictor, or finish or restart the race; InputError for anything else."""
        known = {"load", "policy", "predictor", "finish", "restart"}
        if not wanted or wanted.keys() - known:
            raise InputError("send load, policy, predictor, finish or restart")
        if "load" in wanted:
            load = wanted["load"]
            if isinstance(load, bool) or not isinstance(load, int | float) or not MIN_LOAD <= load <= MAX_LOAD:
                raise InputError(f"load: give a number from {MIN_LOAD:g} to {MAX_LOAD:g}")
            self.load = float(load)
            self._loads.add(self.load)
        if "predictor" in wanted:
            if wanted["predictor"] not in self.traffic.plans:
                raise InputError(f"predictor: give one of {', '.join(self.traffic.plans)}")
            self.predictor = str(wanted["predictor"])
            self._count_anew()
        if "policy" in wanted:
            name = make_policy(str(wanted["policy"])[:200], imports=False).name
            await self.sides[1].use(name)
            self._count_anew()
        if wanted.get("finish"):
            self._finish.set()
        if wanted.get("restart"):
            self._again.set()

    def _count_anew(self) -> None:
        """Let figures begin with the requests that are sent from now on."""
        if self.state == "running":
            self._since = len(self.sides[0].samples)
            self._changed_s = self.clock()
            self._loads = {self.load}

    # What is shown -------------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """Return what a viewer needs once."""
        return {
            "origin": self.traffic.origin,
            "fleet": str(self.traffic.fleet),
            "slots": self.traffic.fleet.slots,
            "widest": self.traffic.widest,
            "burst": self._burst,
            "faster": _FASTER,
            "loads": [MIN_LOAD, MAX_LOAD],
            "seconds": self._seconds_s,
            "predictors": list(self.traffic.plans),
            "policies": list(dict.fromkeys((self.sides[1].policy, *OFFERED_POLICIES))),
            "within_s": WITHIN_S,
            "points": self.points,
            "commands": COMMANDS,
        }

    async def frame(self) -> dict[str, Any]:
        """Return both sides now."""
        await asyncio.gather(*(side.ask_order() for side in self.sides))
        now = self.clock()
        verdict = self.verdict
        return {
            "now": round(now, 2),
            "lap": self.laps,
            "state": self.state,
            "load": round(self.load, 3),
            "rate": round(self.load * self.traffic.capacity_per_s, 2),
            "policy": self.sides[1].policy,
            "predictor": self.predictor,
            "since": round(self._changed_s, 1),
            "late": round(self.late_s, 2),
            "point": self.points[-1] if self.points else None,
            "sides": [self._side(side, now) for side in self.sides],
            "verdict": None if verdict is None else {"headline": verdict.headline, "lead": verdict.lead},
        }

    def _side(self, side: Side, now: float) -> dict[str, Any]:
        waiting, running = side.waiting(), side.running(self.traffic.fleet.slots)
        rate = decode_rate(side.samples)
        return {
            "waiting": len(waiting),
            "queue": [[*self._bar(each), round(now - each.sample.arrival_s, 1)] for each in waiting[:_SHOWN]],
            "slots": [[*self._bar(each), each.slot, self._done(each, now, rate)] for each in running],
            **live_figures(side.samples[self._since :], self._thirds(side), now),
        }

    def _bar(self, each: _Open) -> list[int]:
        return [each.number, int(self.traffic.workload.output_tokens[each.row]), int(self.traffic.thirds[each.row])]

    def _thirds(self, side: Side) -> NDArray[np.int64]:
        rows = np.array([each.request for each in side.samples[self._since :]], np.int64) % len(self.traffic)
        return self.traffic.thirds[rows]

    def _done(self, each: _Open, now: float, rate: float) -> float:
        """Return the share of an answer that is generated, by its time at the usual speed: streams come in chunks."""
        return round(min(0.99, (now - each.sample.first_token_s) * rate / each.sample.asked_tokens), 3)

    # The verdict ---------------------------------------------------------------------------------------------------

    def document(self) -> Document:
        """Return the verdict, a table and the facts, of the requests since the last change."""
        right = self.sides[1].policy
        notes = [f"The first {self._burst} requests arrive at {_FASTER} times the rate, so that there is a queue."]
        return race_document(
            self.traffic,
            [side.samples[self._since :] for side in self.sides],
            policy=right,
            predictor=self.predictor,
            loads=sorted(self._loads),
            late_s=self.late_s,
            notes=notes if self._burst and not self._since else [],
        )
