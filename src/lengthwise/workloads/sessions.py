"""Multi-turn sessions: each turn's prompt is the whole conversation so far and a new user turn."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.workloads.blocks import BLOCK_TOKENS, stream_block_lists
from lengthwise.workloads.seeds import generator
from lengthwise.workloads.workload import Workload

_N = TypeVar("_N", np.int64, np.float64)


def into_sessions(workload: Workload, *, turns: float, think_s: float, seed: int) -> Workload:
    """The workload's requests as the turns of sessions.

    Turns per session are geometric with mean `turns`. A session begins when its first request did; the next
    turn follows after an exponential time with mean `think_s`, counted from arrival to arrival (open loop:
    it includes the time the answer takes).

    input of turn k = input and output of turn k - 1 + the tokens of the new user turn

    The result is a window on a steady state, with as many requests in the same time as before: turns that
    fall beyond its end come in at its beginning instead, as late turns of sessions begun before it.

    Nobody kept the texts of the answers, so blocks come from one stream per session, and `prompt` stays what
    it was: the new turn's own text.
    """
    if not turns >= 1:
        raise InputError(f"{turns:g} turns per session", field="turns", hint="a mean of at least 1")
    if not (np.isfinite(think_s) and think_s > 0):
        raise InputError(f"a think time of {think_s:g} s", field="think_s", hint="a number of seconds above 0")
    session = _session_of_each(len(workload), turns, generator(seed, "turns"))
    first = np.flatnonzero(np.diff(session, prepend=-1))
    think = generator(seed, "think").exponential(think_s, len(workload))
    think[first] = 0.0
    arrival = workload.arrival_s[first][session] + _running(think, first, session)
    said = _running(workload.input_tokens + workload.output_tokens, first, session)
    input_tokens = said - workload.output_tokens
    lap, arrival = _into_window(arrival, workload)
    streams = session + lap * len(workload) + int(generator(seed, "streams").integers(2**62))
    order = np.argsort(arrival, kind="stable")
    return workload.take(
        order,
        arrival_s=arrival[order],
        input_tokens=input_tokens[order],
        session=[_name(*ids) for ids in zip(session[order].tolist(), lap[order].tolist(), strict=True)],
        block_hashes=stream_block_lists(streams[order], input_tokens[order] // BLOCK_TOKENS),
        block_size=BLOCK_TOKENS,
    )


def _into_window(arrival: NDArray[np.float64], workload: Workload) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How many windows late each arrival is, and its place in the one window there is."""
    if not workload.has_arrivals:
        return np.zeros(len(arrival), np.int64), arrival
    window_s = workload.arrival_s[-1] + 1 / workload.rate
    lap = np.floor(arrival / window_s)
    return lap.astype(np.int64), np.maximum(arrival - lap * window_s, 0.0)


def _name(session: int, lap: int) -> str:
    return f"session-{session}" if lap == 0 else f"session-{session}-begun-{lap}-before"


def _session_of_each(n: int, turns: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Session numbers 0, 0, 0, 1, 2, 2, ...; the last session may be cut short."""
    sizes = rng.geometric(1 / turns, n)
    return np.repeat(np.arange(n), sizes)[:n].astype(np.int64)


def _running(values: NDArray[_N], first: NDArray[np.int64], session: NDArray[np.int64]) -> NDArray[_N]:
    """The sum of a session's values up to and with each turn."""
    total = np.cumsum(values)
    before = total[first] - values[first]
    return (total - before[session]).astype(values.dtype)
