"""Pools of engines that change with the predicted load: an engine leaves one pool and joins the other.

Every `period_s` the host counts the predicted work, asks `routers.pool_sizes` how many engines should compute prompts,
and lets engines drain. A draining engine accepts nothing new; once its requests have finished and their KV has been
sent it joins the other pool, with an empty prefix cache. Between two such moments no pool affects the other but by the
requests it hands over, so each is simulated up to the next one, the prefill pool first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.routers.base import Speed
from lengthwise.routers.pool_sizes import PoolDemand
from lengthwise.simulator.fleet import EngineSpec, FleetEvent
from lengthwise.simulator.fleet_run import FleetRun
from lengthwise.simulator.outcome import EngineOutcome, Move, Role, Timeline
from lengthwise.simulator.routing import speed_of
from lengthwise.simulator.traffic import Records, Traffic

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Switching:
    """When engines change pools: `prefill_engines` with `margin`, every `period_s`, by the arrivals of `window_s`."""

    period_s: float = 5.0
    window_s: float = 30.0
    margin: float = 0.1

    def __post_init__(self) -> None:
        for name in ("period_s", "window_s"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise InputError(f"{seconds:g} seconds", field=name, hint="give a number above 0")
        if not self.margin >= 0:
            raise InputError(f"a margin of {self.margin:g}", field="margin", hint="give a share of at least 0")


class WorkMeter:
    """The predicted work of both pools, in seconds of an engine by request, and how much of it there is per second.

        prefill    prompt tokens that are probably not cached, at the engine's speed
        decode     worth * predicted tokens * (step / requests that fit at once + sequence + KV tokens of the context)
        worth      (tokens generated so far / mean prediction + 10) / (answers finished + 10)

    The share of cached tokens is that of the prompts computed in the window. Sums of predictions may be far off where
    single ones are right, as the mean of a heavy tail is: `worth` is the mean length by the answers so far (that of an
    exponential distribution, of which running answers are censored) over the predicted one. `expected`: predicted
    tokens before and after prefill; `answers`: the records of the decode pool.
    """

    def __init__(
        self, traffic: Traffic, answers: Records, expected: tuple[Floats, Floats], spec: EngineSpec, window_s: float
    ) -> None:
        self._requests, self._arrival_s, self._window_s = traffic.requests, traffic.workload.arrival_s, window_s
        self._answers, self._expected = answers, expected[0]
        prompt, speed = traffic.workload.input_tokens.astype(np.float64), speed_of(spec.cost)
        self._prompt, self._prefill_s = prompt, prompt * (speed.prefill_token_s + speed.prefill_pair_s * prompt)
        self._arriving, self._alone_s = _decode_s(prompt, expected[0], spec, speed)
        self._waiting = _decode_s(prompt, expected[1], spec, speed)[0]

    def demand(self, now: float, queued: NDArray[np.int64], handed: NDArray[np.int64]) -> PoolDemand | None:
        """Return what arrived in the window, with what waits at its end; None if nothing did.

        `queued` and `handed` are the requests that wait for prefill and for decode.
        """
        begin = max(0.0, now - self._window_s)
        rows = np.arange(*np.searchsorted(self._arrival_s, (begin, now)))
        if not len(rows) or now <= begin:
            return None
        computed = rows[~np.isnan(self._requests["first_token"][rows])]
        tokens = self._prompt[computed].sum()
        uncached = 1.0 - self._requests["initial_cached"][computed].sum() / tokens if tokens else 1.0
        work = self._prefill_s[rows].sum() + self._prefill_s[queued].sum()
        worth = self.worth(now)
        decode = worth * (self._arriving[rows].sum() + self._waiting[handed].sum())
        return PoolDemand(
            prefill=float(uncached * work / (now - begin)),
            decode=float(decode / (now - begin)),
            prefill_s=float(uncached * self._prefill_s[rows].mean()),
            decode_s=float(worth * self._alone_s[rows].mean()),
        )

    def worth(self, now: float) -> float:
        """Return the mean length of answers by those begun so far, over their predicted one; 1 before there are any."""
        output, started, finish = (self._answers[name] for name in ("output", "started", "finish"))
        alone = (output == 1) & (self._requests["finish"] <= now)
        ended, running = finish <= now, (started <= now) & ~(finish <= now)
        begun = alone | ended | running
        if not begun.any():
            return 1.0
        seconds = (finish[ended] - started[ended]).sum()
        pace = (output[ended] - 1).sum() / seconds if seconds else 0.0
        generated = alone.sum() + output[ended].sum() + pace * (now - started[running]).sum()
        finished = int(alone.sum() + ended.sum())
        return float((generated / self._expected[begun].mean() + _PRIOR_ANSWERS) / (finished + _PRIOR_ANSWERS))


_PRIOR_ANSWERS: Final = 10
"""As many answers of the predicted length are assumed at the start."""


def _decode_s(prompt: Floats, expected: Floats, spec: EngineSpec, speed: Speed) -> tuple[Floats, Floats]:
    """Return an engine's seconds for each predicted answer, and those of the answer alone on it."""
    at_once = np.clip(spec.kv_tokens / (prompt + expected), 1.0, spec.max_num_seqs)
    token_s = speed.sequence_s + speed.kv_token_s * (prompt + expected / 2)
    return expected * (speed.step_s / at_once + token_s), expected * (speed.step_s + token_s)


class Roles:
    """Which engines compute prompts and which decode: two runs of one fleet, in each of which the others are absent."""

    def __init__(self, prefill: FleetRun, decode: FleetRun, engines: int, count: int) -> None:
        """Let the first `count` engines compute prompts."""
        self.engines = engines
        self._runs: dict[Role, FleetRun] = {"prefill": prefill, "decode": decode}
        self._members: dict[Role, set[int]] = {"prefill": set(range(count)), "decode": set(range(count, engines))}
        self._leaving: dict[Role, set[int]] = {"prefill": set(), "decode": set()}
        self.moves: list[Move] = []
        for role, run in self._runs.items():
            for number in self._members[_other(role)]:
                run.apply(FleetEvent(0.0, number, "down"))

    @property
    def prefill(self) -> int:
        """Engines that will compute prompts once those that leave a pool have joined the other."""
        return len(self._members["prefill"]) - len(self._leaving["prefill"]) + len(self._leaving["decode"])

    def set_prefill(self, count: int, now: float) -> None:
        """Let engines drain, those with the fewest unfinished requests first; or stay, where they were to leave."""
        role: Role = "decode" if count > self.prefill else "prefill"
        for _ in range(abs(count - self.prefill)):
            if self._leaving[_other(role)]:
                number = min(self._leaving[_other(role)])
                self._leaving[_other(role)].discard(number)
                self._runs[_other(role)].apply(FleetEvent(now, number, "up"))
                continue
            staying = sorted(self._members[role] - self._leaving[role])
            number = min(staying, key=lambda each: self._runs[role].unfinished(each, now))
            self._leaving[role].add(number)
            self._runs[role].apply(FleetEvent(now, number, "drain"))

    def move_drained(self, now: float, sending_until: Floats) -> None:
        """Move the engines that have finished and sent everything."""
        for role, leaving in self._leaving.items():
            for number in sorted(leaving):
                if self._runs[role].unfinished(number, now) or sending_until[number] > now:
                    continue
                leaving.discard(number)
                self._members[role].discard(number)
                self._members[_other(role)].add(number)
                self._runs[role].apply(FleetEvent(now, number, "down"))
                self._runs[_other(role)].apply(FleetEvent(now, number, "up"))
                self.moves.append(Move(now, number, _other(role)))


def _other(role: Role) -> Role:
    return "decode" if role == "prefill" else "prefill"


def joined(first: EngineOutcome, second: EngineOutcome) -> EngineOutcome:
    """Return the totals of one engine in both pools, its timeline in order of time."""
    both = first.then(second)
    order = np.argsort(both.timeline.time, kind="stable")
    columns = (getattr(both.timeline, field.name)[order] for field in fields(Timeline))
    return replace(both, timeline=Timeline(*columns))
