"""The arrays of a prefix memory and the functions on them: compiled with Numba, interpreted where it is missing.

`prefix_memory` states the model. A node is a row of `stats`; its key is in one of the WAYS rows of a set, which is one
cache line of `keys`. A new key replaces the least recently observed row of its set.
"""

# Arguments are Any: Numba types them.

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthwise.errors import InputError
from lengthwise.lengths import TIE_NU, log_t
from lengthwise.predictors.history import FAST_MEMORY, MEMORY

Function = TypeVar("Function", bound=Callable[..., Any])


def _interpreted(function: Function) -> Function:
    return function


compiled, inlined = _interpreted, _interpreted
with contextlib.suppress(InputError):  # no Numba
    from lengthwise.compiled import compiled, inlined

WAYS: Final = 8
NODE_BYTES: Final = 40

TENANT, TEMPLATE, SESSION, FIRST_BLOCK, BLOCK = range(5)
"""Kinds of scopes; the first three are positions in `names`, too."""
LLM: Final = 3
"""Position of the LLM's hash in `names`."""
PER_DOUBLING: Final = 4
MAX_SCOPES: Final = 3 + 16 * PER_DOUBLING
"""Enough for half a million blocks."""

WEIGHT, Y, YY, M_WEIGHT, M, MM, YM, STAMP = range(8)
"""Columns of `stats`: decayed weights, means and sums of squared deviations of the log lengths (y) and of the text
predictor's medians (m), and the time of the last observation."""

STRENGTHS: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""Observations that the scope above may be worth. For a kind of scope, `learned` has the decayed log likelihood of
each, and after them the share of each."""
EVIDENCE: Final = 5
"""First row of `learned` for the evidence classes: no scope with observations, one, more."""
CLASSES: Final = 3
SCALE, SCALE_COUNT = range(2)
"""Columns of these rows."""
CLOCK, HELD = range(2)
"""Positions in `counters`."""

# Before any evidence the scope above is worth about one observation, with a text predictor a thousand: prefixes must
# show that they say more than the text.
_PRIOR: Final[NDArray[np.float64]] = -np.abs(np.log(np.array(STRENGTHS) / [[1.0], [1000.0]]))

_NU: Final = TIE_NU
_KEEP: Final = 1.0 - 1.0 / FAST_MEMORY
_LEARNED_KEEP: Final = 0.999
_TAIL: Final = (_NU + 1.0) / 2.0
_VARIANCE_WEIGHT: Final = 3.0  # observations that the variance of the scope above is worth
_SLOPE_WEIGHT: Final = 8.0  # sum of squares that the slope of the scope above is worth
_MIN_SCALE: Final = 0.02
_MIN_LOCATION: Final = 0.0
_MAX_LOCATION: Final = 14.0

_outlier_weight = inlined(log_t.outlier_weight)
_read_beyond = inlined(log_t.read_beyond)


class Arrays(NamedTuple):
    """The state of a prefix memory."""

    keys: NDArray[np.uint64]
    """Of each node; 0 where the row is free."""
    stats: NDArray[np.float32]
    """(nodes, 8)"""
    stamps: NDArray[np.uint32]
    """The same memory as `stats`, for the column STAMP."""
    learned: NDArray[np.float64]
    """(without or with text, kinds of scopes and evidence classes, 2)"""
    counters: NDArray[np.int64]


def new_arrays(max_bytes: int) -> Arrays:
    """Return an empty memory of at most so many bytes of nodes; the system commits them as they are used."""
    rows = max_bytes // (NODE_BYTES * WAYS) * WAYS
    stats = _aligned(32 * rows).view(np.float32).reshape(rows, 8)
    learned = np.zeros((2, EVIDENCE + CLASSES, 2 * len(STRENGTHS)))
    learned[:, :EVIDENCE, : len(STRENGTHS)] = _PRIOR[:, None]
    learned[:, :EVIDENCE, len(STRENGTHS) :] = (np.exp(_PRIOR) / np.exp(_PRIOR).sum(axis=1, keepdims=True))[:, None]
    learned[:, EVIDENCE:, SCALE], learned[:, EVIDENCE:, SCALE_COUNT] = 1.0, 20.0
    return Arrays(_aligned(8 * rows).view(np.uint64), stats, stats.view(np.uint32), learned, np.zeros(2, np.int64))


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return zeros that start at a cache line."""
    whole = np.zeros(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


@inlined
def _share_out(learned: Any, text: Any, kind: Any) -> None:
    """Set the shares of the strengths in proportion to their likelihoods."""
    most = learned[text, kind, 0]
    for place in range(len(STRENGTHS)):
        most = max(most, learned[text, kind, place])
    total = 0.0
    for place in range(len(STRENGTHS)):
        share = math.exp(learned[text, kind, place] - most)
        learned[text, kind, len(STRENGTHS) + place] = share
        total += share
    for place in range(len(STRENGTHS)):
        learned[text, kind, len(STRENGTHS) + place] /= total


@inlined
def _find_all(keys: Any, blocks: Any, names: Any, own: Any, kinds: Any, rows: Any) -> Any:
    """Fill in key, kind and row (-1 without observations) of the scopes of a request; return their number."""
    count = 0
    for kind in (TENANT, TEMPLATE):
        if names[kind] != 0:
            own[count], kinds[count] = names[kind], kind
            count += 1
    number, step, doubled = 1, 1, 2 * PER_DOUBLING
    while number <= len(blocks) and count < MAX_SCOPES - 1:
        own[count], kinds[count] = blocks[number - 1] ^ names[LLM], FIRST_BLOCK if number == 1 else BLOCK
        count += 1
        if number == doubled:
            step, doubled = 2 * step, 2 * doubled
        number += step
    if names[SESSION] != 0:
        own[count], kinds[count] = names[SESSION], SESSION
        count += 1
    for scope in range(count):
        if own[scope] == 0:  # marks a free row
            own[scope] = 1
        first = _first_row(keys, own[scope])
        rows[scope] = -1
        for row in range(first, first + WAYS):
            if keys[row] == own[scope]:
                rows[scope] = row
    return count


@inlined
def _first_row(keys: Any, key: Any) -> Any:
    """Return the first row of the key's set."""
    return np.int64(key % np.uint64(len(keys) // WAYS)) * WAYS


@inlined
def _place(keys: Any, stats: Any, stamps: Any, counters: Any, key: Any) -> Any:
    """Return the row of a key; a new key takes a free row of its set, or the least recently observed one."""
    oldest = first = _first_row(keys, key)
    for row in range(first, first + WAYS):
        if keys[row] == key:
            return row
        if keys[row] == 0:
            counters[HELD] += 1
            keys[row] = key
            return row
        if stamps[row, STAMP] < stamps[oldest, STAMP]:
            oldest = row
    keys[oldest] = key
    for column in range(STAMP):
        stats[oldest, column] = 0.0
    return oldest


@inlined
def _descend(
    stats: Any, stamps: Any, learned: Any, kinds: Any, rows: Any, m: Any, sigma: Any, text: Any, y: Any, unit: Any
) -> Any:
    """Return location, scale and evidence class after all scopes; with a scale as `unit`, learn from y, too."""
    location, variance, slope, evidence = m, sigma * sigma, 1.0, 0
    for scope in range(len(rows)):
        at, kind = rows[scope], kinds[scope]
        if at < 0:
            continue
        below = scope + 1
        while below < len(rows) and rows[below] < 0:
            below += 1
        if below < len(rows):
            deeper = rows[below]
            if stamps[deeper, STAMP] == stamps[at, STAMP] and stats[deeper, WEIGHT] == stats[at, WEIGHT]:
                continue  # the same observations: the deepest scope counts
        squares: Any
        n, own, squares = np.float64(stats[at, WEIGHT]), np.float64(stats[at, Y]), np.float64(stats[at, YY])
        if text == 1 and stats[at, M_WEIGHT] > 0.0:
            mm, ym = np.float64(stats[at, MM]), np.float64(stats[at, YM])
            slope = (ym + _SLOPE_WEIGHT * slope) / (mm + _SLOPE_WEIGHT)
            own += slope * (m - stats[at, M])
            squares = max(0.0, squares - 2.0 * slope * ym + slope * slope * mm)
        step = own - location
        if unit > 0.0:
            for place, worth in enumerate(STRENGTHS):
                z = (y - location - n / (n + worth) * step) / unit
                kept = _LEARNED_KEEP * learned[text, kind, place] + (1.0 - _LEARNED_KEEP) * _PRIOR[text, place]
                learned[text, kind, place] = kept - _TAIL * math.log1p(z * z / _NU)
            _share_out(learned, text, kind)
        weight = 0.0
        for place, worth in enumerate(STRENGTHS):
            weight += learned[text, kind, len(STRENGTHS) + place] * n / (n + worth)
        location += weight * step
        variance = (_VARIANCE_WEIGHT * variance + squares) / (_VARIANCE_WEIGHT + n)
        evidence += 1
    return location, max(_MIN_SCALE, math.sqrt(variance)), EVIDENCE + min(evidence, CLASSES - 1)


@compiled
def predict(
    keys: Any, stats: Any, stamps: Any, learned: Any, blocks: Any, names: Any, m: Any, sigma: Any, text: Any
) -> Any:
    """Return location and scale of the log length; `m` and `sigma` are the prediction to start from."""
    own, kinds, rows = (
        np.empty(MAX_SCOPES, np.uint64),
        np.empty(MAX_SCOPES, np.int64),
        np.empty(MAX_SCOPES, np.int64),
    )
    count = _find_all(keys, blocks, names, own, kinds, rows)
    location, scale, evidence = _descend(stats, stamps, learned, kinds, rows[:count], m, sigma, text, 0.0, 0.0)
    return min(max(location, _MIN_LOCATION), _MAX_LOCATION), scale * learned[text, evidence, SCALE]


@compiled
def observe(
    keys: Any,
    stats: Any,
    stamps: Any,
    learned: Any,
    counters: Any,
    blocks: Any,
    names: Any,
    m: Any,
    sigma: Any,
    text: Any,
    y: Any,
    censored: Any,
) -> None:
    """Observe a log length, or a lower bound of it: one step of online EM in every scope."""
    own, kinds, rows = (
        np.empty(MAX_SCOPES, np.uint64),
        np.empty(MAX_SCOPES, np.int64),
        np.empty(MAX_SCOPES, np.int64),
    )
    count = _find_all(keys, blocks, names, own, kinds, rows)
    location, scale, evidence = _descend(stats, stamps, learned, kinds, rows[:count], m, sigma, text, 0.0, 0.0)
    scale *= learned[text, evidence, SCALE]
    z = (y - location) / scale
    spread = 0.0
    if censored:
        weight, z, spread = _read_beyond(z)
        y = location + scale * z
    else:
        weight = _outlier_weight(z)
        _descend(stats, stamps, learned, kinds, rows[:count], m, sigma, text, y, scale)
    seen = learned[text, evidence, SCALE_COUNT]
    learned[text, evidence, SCALE] *= math.sqrt(1.0 + (weight * z * z + spread - 1.0) / seen)
    learned[text, evidence, SCALE_COUNT] = min(seen + 1.0, MEMORY)
    counters[CLOCK] += 1
    for scope in range(count):
        row = rows[scope]
        if row < 0 or keys[row] != own[scope]:  # new, or replaced by a new scope of this request
            row = _place(keys, stats, stamps, counters, own[scope])
        _update(stats, row, y, m, text, weight, spread * scale * scale)
        stamps[row, STAMP] = counters[CLOCK]


@inlined
def _update(stats: Any, row: Any, y: Any, m: Any, text: Any, weight: Any, spread: Any) -> None:
    before = _KEEP * stats[row, WEIGHT]
    after = before + weight
    step = y - stats[row, Y]
    stats[row, WEIGHT] = after
    stats[row, Y] += weight / after * step
    stats[row, YY] = _KEEP * stats[row, YY] + weight * before / after * step * step + spread
    if text == 1:
        before = _KEEP * stats[row, M_WEIGHT]
        after = before + weight
        m_step = m - stats[row, M]
        stats[row, M_WEIGHT] = after
        stats[row, M] += weight / after * m_step
        stats[row, MM] = _KEEP * stats[row, MM] + weight * before / after * m_step * m_step
        stats[row, YM] = _KEEP * stats[row, YM] + weight * before / after * step * m_step


@compiled
def insert(keys: Any, stats: Any, stamps: Any, counters: Any, new_keys: Any, new_stats: Any) -> None:
    """Insert saved nodes, the least recently observed first."""
    for place in range(len(new_keys)):
        row = _place(keys, stats, stamps, counters, new_keys[place])
        for column in range(new_stats.shape[1]):
            stats[row, column] = new_stats[place, column]
